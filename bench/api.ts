/**
 * The API compared with its foundations. GET of an article and a list of 50 run beside bare Fastify routes that
 * return the same bytes from memory. POST with its event runs beside the database's own rate for the same rows.
 * Everything runs in turns within one run; the results are medians.
 *
 *   node bench/api.ts [--rounds 3] [--seconds 4] [--only GET,LIST,POST] [--profile GET|LIST|POST]
 *   node bench/api.ts --rounds 15 --seconds 1 --only ADMISSION    # GET beside a server that admits every request
 *
 * The measured server has one core to itself (`taskset`). PostgreSQL and the load generator share the others.
 */

import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { importJWK, SignJWT } from 'jose';
import { sql } from 'kysely';
import { createAccount } from '../src/accounts/account.ts';
import { createClient } from '../src/clients/client.ts';
import { migrateCollections } from '../src/collections/migrate.ts';
import { newId } from '../src/crypto/ids.ts';
import { type Database, openDatabase } from '../src/database/database.ts';
import { startEmbedded } from '../src/database/embedded/embedded.ts';
import { migrate } from '../src/database/migrate.ts';
import { appendEvent } from '../src/events/event.ts';
import { createGrant } from '../src/grants/grant.ts';
import { ensureSigningKeys, loadSigningKeys } from '../src/oauth/signing_keys.ts';
import { loadPlatform } from '../src/platform.ts';
import { article, secret } from './support/article.ts';
import { load } from './support/load.ts';
import { record } from './support/record.ts';

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '3' },
    seconds: { type: 'string', default: '4' },
    only: { type: 'string', default: 'GET,LIST,POST' },
    profile: { type: 'string' },
  },
});
const isWanted = (name: string) => values.only.split(',').includes(name);
const milliseconds = Number(values.seconds) * 1_000;
const connections = 32;
const ports = { bare: 4811, nuncio: 4812, open: 4823 };
const baseUrl = `http://localhost:${ports.nuncio}`;
const bodyOfPost = JSON.stringify({ title: article.title, body: article.body });

const cores = { server: '0', rest: `1-${availableParallelism() - 1}` };
// Before PostgreSQL starts, because it inherits the CPU affinity.
useCores(cores.rest);
const dataDir = mkdtempSync(join(tmpdir(), 'nuncio-bench-'));
const postgres = await startEmbedded({ dataDir, role: 'server' });
const children: ChildProcess[] = [];
const db = openDatabase({ connectionString: postgres.connectionString, connectionsMax: connections });
try {
  await migrate(postgres.connectionString);
  await migrateCollections(postgres.connectionString, (await loadPlatform(null)).collections);
  await measure();
} finally {
  for (const child of children) await stop(child);
  await db.destroy();
  await postgres.stop();
  rmSync(dataDir, { recursive: true, force: true });
}

async function measure(): Promise<void> {
  const { token, accountId } = await prepareToken();
  const profile = values.profile === undefined ? '' : join(dataDir, 'profile.json');
  const nuncio = await startProcess('nuncio', ports.nuncio, postgres.connectionString, profile);
  const id = await prepareArticles(token);
  const paths = { one: `/articles/${id}`, list: '/articles?limit=50' };
  const bare = await startBare(paths, token);
  const open = isWanted('ADMISSION')
    ? await startProcess('nuncio', ports.open, postgres.connectionString, '', {
        BENCH_CONCURRENT_REQUESTS: '0',
        BENCH_BASE_URL: baseUrl,
      })
    : undefined;
  const get = (port: number, path: string) => () =>
    load({ port, connections, milliseconds, status: 200, request: head('GET', path, token) });
  const post = () =>
    load({
      port: ports.nuncio,
      connections,
      milliseconds,
      status: 201,
      request: `${head('POST', '/articles', token, bodyOfPost)}${bodyOfPost}`,
    });
  if (profile !== '') {
    const work = {
      GET: get(ports.nuncio, paths.one),
      LIST: get(ports.nuncio, paths.list),
      POST: post,
    };
    const run = work[values.profile as keyof typeof work];
    // The first run warms up the compiler.
    await run();
    nuncio.kill('SIGUSR2');
    await run();
    await stop(nuncio);
    printProfile(profile);
    return;
  }
  const results: Record<string, { rate: number; micros: number }[]> = {};
  const note = async (name: string, work: () => Promise<number>, server?: ChildProcess) => {
    const before = server === undefined ? 0 : cpuMicros(server);
    const rate = await work();
    const spent = server === undefined ? 0 : cpuMicros(server) - before;
    results[name] = [...(results[name] ?? []), { rate, micros: spent / ((rate * milliseconds) / 1_000) }];
  };
  for (let round = 0; round < Number(values.rounds); round++) {
    if (isWanted('GET')) {
      await note('bare GET', get(ports.bare, paths.one), bare);
      await note('GET an article', get(ports.nuncio, paths.one), nuncio);
    }
    if (open !== undefined) {
      await note('GET without admission', get(ports.open, paths.one), open);
      await note('GET with admission', get(ports.nuncio, paths.one), nuncio);
    }
    if (isWanted('LIST')) {
      await note('bare list', get(ports.bare, paths.list), bare);
      await note('GET a list of 50', get(ports.nuncio, paths.list), nuncio);
    }
    if (isWanted('POST')) {
      // The process that sends the statements uses the core that the server uses otherwise.
      useCores(cores.server);
      await note('database alone', () => databaseAlone(accountId));
      useCores(cores.rest);
      await note('POST with its event', post, nuncio);
    }
  }
  const median = (name: string, of: 'rate' | 'micros' = 'rate') =>
    (results[name] ?? []).map((result) => result[of]).toSorted((a, b) => a - b)[
      Math.floor(Number(values.rounds) / 2)
    ] ?? 0;
  const shown = (name: string, width: number) =>
    `${name.padEnd(width)} ${median(name).toFixed(0).padStart(7)}/s ${median(name, 'micros').toFixed(0).padStart(5)} µs`;
  for (const [name, beside] of [
    ['GET an article', 'bare GET'],
    ['GET with admission', 'GET without admission'],
    ['GET a list of 50', 'bare list'],
    ['POST with its event', 'database alone'],
  ] as const) {
    if (results[name] === undefined) continue;
    const ratio = (median(name) / median(beside)).toFixed(2);
    record({ of: 'api', request: name, perSecond: median(name), micros: median(name, 'micros') });
    console.log(`${shown(name, 20)}   ${shown(beside, 15)}   ratio ${ratio}`);
  }
}

/** Moves this process to other cores. */
function useCores(list: string): void {
  const { status } = spawnSync('taskset', ['-a', '-c', '-p', list, String(process.pid)]);
  if (status !== 0) throw new Error('taskset is needed, and two cores');
}

/** Processor time that a server has used so far, in microseconds. The kernel counts 100 ticks a second. */
function cpuMicros({ pid }: ChildProcess): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)?.split(' ') ?? [];
  return (Number(fields[11]) + Number(fields[12])) * 10_000;
}

function head(method: string, path: string, token: string, body?: string): string {
  const lines = [`${method} ${path} HTTP/1.1`, 'Host: localhost', `Authorization: Bearer ${token}`];
  if (body !== undefined)
    lines.push('Content-Type: application/json', `Content-Length: ${Buffer.byteLength(body)}`);
  return `${lines.join('\r\n')}\r\n\r\n`;
}

/** Executes the same transactions directly in the database, over as many connections. */
async function databaseAlone(accountId: string): Promise<number> {
  let count = 0;
  const until = performance.now() + milliseconds;
  const startedAt = performance.now();
  const event = { accountId, kind: 'article.created', body: { article } };
  await Promise.all(
    Array.from({ length: connections }, async () => {
      while (performance.now() < until) {
        await db.transaction().execute(async (tx) => {
          await sql`
            insert into articles (id, author, created_at, updated_at, title, body, state, published_at)
            values (${newId()}, ${accountId}, ${new Date()}, ${new Date()}, ${article.title}, ${article.body}, 'draft', null)
            returning *`.execute(tx);
          await appendEvent(tx, event);
        });
        count += 1;
      }
    }),
  );
  return count / ((performance.now() - startedAt) / 1_000);
}

async function prepareToken(): Promise<{ token: string; accountId: string }> {
  await ensureSigningKeys(db as Database, secret);
  const account = await createAccount(db, {
    email: 'bench@example.com',
    password: `password-${newId()}`,
    name: 'B',
  });
  const scopes = ['read:posts', 'write:posts'];
  const { client } = await createClient(db, { name: 'Bench', redirectUris: ['https://x.example/'], scopes });
  const grantId = await createGrant(db, { accountId: account.id, clientId: client.id, scopes });
  const { privateKeys } = await loadSigningKeys(db, secret);
  const key = privateKeys.find((candidate) => candidate.alg === 'ES256');
  if (key === undefined) throw new Error('there is no ES256 key');
  const now = Math.floor(Date.now() / 1_000);
  const token = await new SignJWT({
    iss: baseUrl,
    aud: baseUrl,
    sub: account.id,
    client_id: client.id,
    client_epoch: client.epoch,
    grant_id: grantId,
    scope: scopes.join(' '),
    jti: newId(),
    iat: now,
    exp: now + 900,
  })
    .setProtectedHeader({ alg: 'ES256', typ: 'at+jwt', kid: key.kid as string })
    .sign(await importJWK(key, 'ES256'));
  return { token, accountId: account.id };
}

async function prepareArticles(token: string): Promise<string> {
  let id = '';
  for (let count = 0; count < 60; count++) {
    const response = await fetch(`http://127.0.0.1:${ports.nuncio}/articles`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body: bodyOfPost,
    });
    if (response.status !== 201) throw new Error(await response.text());
    ({ id } = (await response.json()) as { id: string });
  }
  return id;
}

/** Starts bare routes that return exactly the bytes of Nuncio's responses. */
async function startBare(paths: { one: string; list: string }, token: string): Promise<ChildProcess> {
  const ask = async (port: number, path: string) => {
    const response = await fetch(`http://127.0.0.1:${port}${path}`, {
      headers: { authorization: `Bearer ${token}` },
    });
    return response.text();
  };
  const answers = { one: await ask(ports.nuncio, paths.one), list: await ask(ports.nuncio, paths.list) };
  const file = join(dataDir, 'answers.json');
  writeFileSync(file, `{"one":${answers.one},"list":${answers.list}}`);
  const bare = await startProcess('bare', ports.bare, file);
  for (const name of ['one', 'list'] as const) {
    if ((await ask(ports.bare, paths[name])) !== answers[name]) throw new Error(`${name} is another`);
  }
  return bare;
}

async function startProcess(
  what: 'bare' | 'nuncio',
  port: number,
  source: string,
  profile = '',
  environment: Record<string, string> = {},
): Promise<ChildProcess> {
  const script = new URL('./support/api_server.ts', import.meta.url).pathname;
  const child = spawn(
    'taskset',
    ['-c', cores.server, process.execPath, script, what, String(port), source, profile],
    {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, ...environment },
    },
  );
  children.push(child);
  await new Promise((resolve, reject) => {
    child.stdout?.once('data', resolve);
    child.once('exit', () => reject(new Error(`${what} did not start`)));
  });
  return child;
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill('SIGTERM');
  await new Promise((resolve) => child.once('exit', resolve));
}

interface Profile {
  nodes: {
    id: number;
    callFrame: { functionName: string; url: string; lineNumber: number };
    hitCount?: number;
  }[];
}

/** Prints where the time went: by package or folder, then the functions with the most self time. */
function printProfile(file: string): void {
  const { nodes } = JSON.parse(readFileSync(file, 'utf8')) as Profile;
  const parts = new Map<string, number>();
  const functions = new Map<string, number>();
  let total = 0;
  let idle = 0;
  for (const { callFrame, hitCount = 0 } of nodes) {
    const { functionName, url, lineNumber } = callFrame;
    if (functionName === '(idle)') {
      idle += hitCount;
      continue;
    }
    const part =
      /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(url)?.[1] ??
      /\/(src\/[^/]+)/.exec(url)?.[1] ??
      (url.startsWith('node:') ? 'node' : functionName);
    const place = `${functionName} ${url.split('/').slice(-2).join('/')}:${lineNumber + 1}`;
    total += hitCount;
    parts.set(part, (parts.get(part) ?? 0) + hitCount);
    functions.set(place, (functions.get(place) ?? 0) + hitCount);
  }
  console.log(`idle: ${((idle / (idle + total)) * 100).toFixed(0)} % of the time\n`);
  for (const table of [parts, functions]) {
    for (const [name, hits] of [...table].sort(([, a], [, b]) => b - a).slice(0, 22)) {
      console.log(`${((hits / total) * 100).toFixed(1).padStart(5)} %  ${name}`);
    }
    console.log('');
  }
}
