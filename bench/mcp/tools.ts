/**
 * Tool calls beside the same requests to the API, in turns within one run: processor time of the server for each, rate with 16
 * connections, and time of a request with one connection. The server has one core to itself; PostgreSQL and the load share the
 * others. Results are medians of the rounds; ratios are those of the medians.
 */

import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createAccount } from '../../src/accounts/account.ts';
import { createClient } from '../../src/clients/client.ts';
import { migrateCollections } from '../../src/collections/migrate.ts';
import { newId } from '../../src/crypto/ids.ts';
import { type Database, openDatabase } from '../../src/database/database.ts';
import { startEmbedded } from '../../src/database/embedded/embedded.ts';
import { migrate } from '../../src/database/migrate.ts';
import { createGrant } from '../../src/grants/grant.ts';
import type { Principal } from '../../src/grants/principal.ts';
import { defaultOAuthSettings } from '../../src/oauth/settings.ts';
import { ensureSigningKeys, loadSigningKeys } from '../../src/oauth/signing_keys.ts';
import { createTokenExchange } from '../../src/oauth/token_exchange.ts';
import { loadPlatform } from '../../src/platform.ts';
import { article, secret } from '../support/article.ts';
import { load } from '../support/load.ts';

const port = 4_813;
const baseUrl = `http://localhost:${port}`;
/** Fewer than the calls that a token can have in progress. */
const connections = 16;
const cores = { server: '0', rest: `1-${availableParallelism() - 1}` };
const scopes = ['read:posts', 'write:posts'];

interface Turn {
  /** Microseconds of the server's processor for each response, and of waiting for it with one connection. */
  cpu: number;
  wait: number;
  /** Responses a second. */
  rate: number;
}

interface Work {
  name: string;
  status: number;
  request: string;
}

/** @param options rounds, and seconds of each turn */
export async function measureTools([rounds = '5', seconds = '2']: readonly string[]): Promise<void> {
  // Before PostgreSQL starts, because it inherits the CPU affinity.
  const { status } = spawnSync('taskset', ['-a', '-c', '-p', cores.rest, String(process.pid)]);
  if (status !== 0) throw new Error('taskset is needed, and two cores');
  const dataDir = mkdtempSync(join(tmpdir(), 'nuncio-bench-'));
  const postgres = await startEmbedded({ dataDir, role: 'server' });
  const db = openDatabase({ connectionString: postgres.connectionString, connectionsMax: 4 });
  let server: ChildProcess | undefined;
  try {
    await migrate(postgres.connectionString);
    await migrateCollections(postgres.connectionString, (await loadPlatform(null)).collections);
    const tokens = await prepareTokens(db);
    server = await start(postgres.connectionString);
    const pairs = await preparePairs(tokens);
    await measure(server, pairs, Number(rounds), Number(seconds) * 1_000);
  } finally {
    if (server !== undefined) await stop(server);
    await db.destroy();
    await postgres.stop();
    rmSync(dataDir, { recursive: true, force: true });
  }
}

async function measure(
  server: ChildProcess,
  pairs: readonly (readonly [rest: Work, tool: Work])[],
  rounds: number,
  milliseconds: number,
): Promise<void> {
  const turns = new Map<string, Turn[]>();
  // The first round warms up the compiler.
  for (let round = 0; round <= rounds; round++) {
    for (const work of pairs.flat()) {
      const before = cpuMicros(server);
      const rate = await load({ ...work, port, connections, milliseconds });
      const cpu = (cpuMicros(server) - before) / ((rate * milliseconds) / 1_000);
      const wait = 1e6 / (await load({ ...work, port, connections: 1, milliseconds: milliseconds / 2 }));
      if (round > 0) turns.set(work.name, [...(turns.get(work.name) ?? []), { cpu, wait, rate }]);
    }
  }
  const median = ({ name }: Work, of: keyof Turn) =>
    (turns.get(name) ?? []).map((turn) => turn[of]).toSorted((a, b) => a - b)[Math.floor(rounds / 2)] ?? 0;
  console.log('                     processor µs          one connection µs     responses/s');
  for (const [rest, tool] of pairs) {
    const columns = (['cpu', 'wait', 'rate'] as const).map((of) => {
      const [one, other] = [median(rest, of), median(tool, of)];
      return `${one.toFixed(0).padStart(6)} ${other.toFixed(0).padStart(6)}  ${(other / one).toFixed(2)}`;
    });
    console.log(`${tool.name.padEnd(18)} ${columns.join('   ')}`);
  }
}

interface Tokens {
  api: string;
  mcp: string;
}

/** Tokens of one grant for both resources, as the server makes them. */
async function prepareTokens(db: Database): Promise<Tokens> {
  await ensureSigningKeys(db, secret);
  const password = `password-${newId()}`;
  const account = await createAccount(db, { email: 'bench@example.com', password, name: 'B' });
  const { client } = await createClient(db, { name: 'Bench', redirectUris: ['https://x.example/'], scopes });
  const grantId = await createGrant(db, { accountId: account.id, clientId: client.id, scopes });
  const keys = await loadSigningKeys(db, secret);
  const exchange = createTokenExchange(baseUrl, defaultOAuthSettings, () => keys, 900);
  const claims = { accountId: account.id, clientId: client.id, clientEpoch: client.epoch, grantId };
  const principal = { ...claims, grantRevision: 0, externalId: null, scopes: new Set(scopes) };
  const tokenFor = (audience: string) => exchange(principal as unknown as Principal, { audience, scopes });
  return { api: await tokenFor(baseUrl), mcp: await tokenFor(`${baseUrl}/mcp`) };
}

/** The same operation at the API and as a tool. */
async function preparePairs({ api, mcp }: Tokens): Promise<(readonly [Work, Work])[]> {
  const { title, body } = article;
  const created = JSON.stringify({ title, body });
  let id = '';
  for (let count = 0; count < 60; count++) {
    const headers = { authorization: `Bearer ${api}`, 'content-type': 'application/json' };
    const response = await fetch(`http://127.0.0.1:${port}/articles`, {
      method: 'POST',
      headers,
      body: created,
    });
    if (response.status !== 201) throw new Error(await response.text());
    ({ id } = (await response.json()) as { id: string });
  }
  const rest = (name: string, method: string, path: string, sent?: string): Work => ({
    name,
    status: method === 'POST' ? 201 : 200,
    request: requestText(method, path, api, sent),
  });
  const tool = (name: string, given: object): Work => ({
    name,
    status: 200,
    request: requestText(
      'POST',
      '/mcp',
      mcp,
      JSON.stringify({
        jsonrpc: '2.0',
        id: 1,
        method: 'tools/call',
        params: { name, arguments: given, _meta: meta },
      }),
      ['MCP-Protocol-Version: 2026-07-28', 'Mcp-Method: tools/call', `Mcp-Name: ${name}`],
    ),
  });
  return [
    [rest('GET', 'GET', `/articles/${id}`), tool('article_get', { id })],
    [rest('list of 20', 'GET', '/articles?limit=20'), tool('articles_list', { limit: 20 })],
    [rest('POST', 'POST', '/articles', created), tool('article_create', { title, body })],
  ];
}

const meta = {
  'io.modelcontextprotocol/protocolVersion': '2026-07-28',
  'io.modelcontextprotocol/clientCapabilities': {},
};

function requestText(
  method: string,
  path: string,
  token: string,
  body?: string,
  headers: string[] = [],
): string {
  const lines = [
    `${method} ${path} HTTP/1.1`,
    'Host: localhost',
    `Authorization: Bearer ${token}`,
    ...headers,
  ];
  if (body !== undefined) {
    lines.push('Content-Type: application/json', `Content-Length: ${Buffer.byteLength(body)}`);
  }
  return `${lines.join('\r\n')}\r\n\r\n${body ?? ''}`;
}

/** Processor time that the server has used so far. The kernel counts 100 ticks a second. */
function cpuMicros({ pid }: ChildProcess): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)?.split(' ') ?? [];
  return (Number(fields[11]) + Number(fields[12])) * 10_000;
}

async function start(connectionString: string): Promise<ChildProcess> {
  const script = new URL('../support/api_server.ts', import.meta.url).pathname;
  const words = ['-c', cores.server, process.execPath, script, 'nuncio', String(port), connectionString];
  const child = spawn('taskset', words, { stdio: ['ignore', 'pipe', 'inherit'] });
  await new Promise((resolve, reject) => {
    child.stdout?.once('data', resolve);
    child.once('exit', () => reject(new Error('the server did not start')));
  });
  return child;
}

async function stop(child: ChildProcess): Promise<void> {
  child.kill('SIGTERM');
  await new Promise((resolve) => child.once('exit', resolve));
}
