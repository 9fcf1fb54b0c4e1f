/**
 * Tool calls beside the same requests to the API, in turns of a tenth of a second, so that both have the same share of what else runs on
 * the machine: processor time of the server for each, rate with 16 connections, and time of a request with one connection. The
 * connections stay open. The server has one core to itself; PostgreSQL and the load share the others.
 *
 * The same for a bare Fastify that returns the bytes of one article: what a POST with this body and this response costs beside a GET,
 * whatever the server does for it.
 */

import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
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
import { openLoad } from '../support/load.ts';

const port = 4_813;
const barePort = 4_814;
const baseUrl = `http://localhost:${port}`;
/** Fewer than the calls that a token can have in progress. */
const connections = 16;
const cores = { server: '0', rest: `1-${availableParallelism() - 1}` };
const scopes = ['read:posts', 'write:posts'];

const warmUpMs = 2_000;
const turnMs = 100;

/** What the turns of a load took together. */
interface Sum {
  responses: number;
  milliseconds: number;
  /** Processor time of the server in microseconds. */
  cpu: number;
}

interface Work {
  name: string;
  status: number;
  request: string;
}

/** The same operation at the API and as a tool. */
type Pair = readonly [rest: Work, tool: Work];

/** @param options seconds for each operation */
export async function measureTools([seconds = '20']: readonly string[]): Promise<void> {
  // Before PostgreSQL starts, because it inherits the CPU affinity.
  const { status } = spawnSync('taskset', ['-a', '-c', '-p', cores.rest, String(process.pid)]);
  if (status !== 0) throw new Error('taskset is needed, and two cores');
  const dataDir = mkdtempSync(join(tmpdir(), 'nuncio-bench-'));
  const postgres = await startEmbedded({ dataDir, role: 'server' });
  const db = openDatabase({ connectionString: postgres.connectionString, connectionsMax: 4 });
  const servers: ChildProcess[] = [];
  try {
    await migrate(postgres.connectionString);
    await migrateCollections(postgres.connectionString, (await loadPlatform(null)).collections);
    const tokens = await prepareTokens(db);
    const nuncio = await start('nuncio', port, postgres.connectionString);
    servers.push(nuncio);
    const pairs = await preparePairs(tokens);
    const file = join(dataDir, 'responses.json');
    writeFileSync(file, JSON.stringify(await readResponses(pairs[0] as Pair)));
    const bare = await start('bare', barePort, file);
    servers.push(bare);
    console.log('                     processor µs          one connection µs     responses/s');
    for (const pair of pairs) await measure(nuncio, port, pair, Number(seconds) * 1_000);
    const [rest, tool] = pairs[0] as Pair;
    await measure(bare, barePort, [rest, { ...tool, name: `bare ${tool.name}` }], Number(seconds) * 1_000);
  } finally {
    for (const server of servers) await stop(server);
    await db.destroy();
    await postgres.stop();
    rmSync(dataDir, { recursive: true, force: true });
  }
}

async function measure(server: ChildProcess, at: number, pair: Pair, milliseconds: number): Promise<void> {
  const busy = await measureTurns(server, at, pair, connections, milliseconds);
  const single = await measureTurns(server, at, pair, 1, milliseconds / 2);
  const columns = [
    busy.map(({ cpu, responses }) => cpu / responses),
    single.map((sum) => (sum.milliseconds * 1_000) / sum.responses),
    busy.map((sum) => (sum.responses * 1_000) / sum.milliseconds),
  ].map(([rest = 0, tool = 0]) => {
    return `${rest.toFixed(0).padStart(6)} ${tool.toFixed(0).padStart(6)}  ${(tool / rest).toFixed(2)}`;
  });
  console.log(`${pair[1].name.padEnd(18)} ${columns.join('   ')}`);
}

/** @returns a sum for each, in their order */
async function measureTurns(
  server: ChildProcess,
  at: number,
  works: readonly Work[],
  ofEach: number,
  milliseconds: number,
): Promise<Sum[]> {
  const loads = await Promise.all(works.map((work) => openLoad({ ...work, port: at, connections: ofEach })));
  const sums = works.map((): Sum => ({ responses: 0, milliseconds: 0, cpu: 0 }));
  // Compiles the code.
  for (const load of loads) await load.run(warmUpMs);
  const endsAt = performance.now() + milliseconds;
  while (performance.now() < endsAt) {
    for (const [index, load] of loads.entries()) {
      const sum = sums[index] as Sum;
      const [cpu, begunAt] = [cpuMicros(server), performance.now()];
      sum.responses += await load.run(turnMs);
      sum.milliseconds += performance.now() - begunAt;
      sum.cpu += cpuMicros(server) - cpu;
    }
  }
  for (const load of loads) load.close();
  return sums;
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

async function preparePairs({ api, mcp }: Tokens): Promise<Pair[]> {
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

/** What a bare server returns for both. */
async function readResponses([rest, tool]: Pair): Promise<{ one: unknown; call: string }> {
  const send = async ({ request }: Work) => {
    const [head = '', body = ''] = request.split('\r\n\r\n');
    const [first = '', ...lines] = head.split('\r\n');
    const [method = '', path = ''] = first.split(' ');
    const headers = lines
      .map((line) => line.split(': ') as [string, string])
      .filter(([name]) => !/^(?:host|content-length)$/i.test(name));
    const response = await fetch(`http://127.0.0.1:${port}${path}`, {
      method,
      headers,
      ...(body === '' ? {} : { body }),
    });
    return response.text();
  };
  return { one: JSON.parse(await send(rest)), call: await send(tool) };
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

/** Processor time that the threads of the server have used so far. */
function cpuMicros({ pid }: ChildProcess): number {
  const threads = readdirSync(`/proc/${pid}/task`);
  const times = threads.map((id) => readFileSync(`/proc/${pid}/task/${id}/schedstat`, 'utf8').split(' ')[0]);
  return times.reduce((sum, nanoseconds) => sum + Number(nanoseconds) / 1_000, 0);
}

async function start(what: string, at: number, source: string): Promise<ChildProcess> {
  const script = new URL('../support/api_server.ts', import.meta.url).pathname;
  const words = ['-c', cores.server, process.execPath, script, what, String(at), source];
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
