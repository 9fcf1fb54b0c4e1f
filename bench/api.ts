/**
 * The API beside what it stands on: GET of an article and a list of 50 beside bare Fastify routes that answer the
 * same out of memory; POST with its event beside the database's own rate for the same rows. All in one run, round by
 * round, medians.
 *
 *   node bench/api.ts [--rounds 3] [--seconds 4] [--profile GET|LIST|POST]
 *
 * The server under measurement has a core of its own (`taskset`); PostgreSQL and the load share the rest.
 */

import { type ChildProcess, spawn } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
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

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '3' },
    seconds: { type: 'string', default: '4' },
    profile: { type: 'string' },
  },
});
const milliseconds = Number(values.seconds) * 1_000;
const connections = 32;
const ports = { bare: 4811, nuncio: 4812 };
const baseUrl = `http://localhost:${ports.nuncio}`;
const bodyOfPost = JSON.stringify({ title: article.title, body: article.body });

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
  const profileDir =
    values.profile === undefined ? undefined : mkdtempSync(join(tmpdir(), 'nuncio-profile-'));
  await startProcess('bare', ports.bare);
  const nuncio = await startProcess('nuncio', ports.nuncio, profileDir);
  const id = await prepareArticles(token);
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
  if (profileDir !== undefined) {
    const work = {
      GET: get(ports.nuncio, `/articles/${id}`),
      LIST: get(ports.nuncio, '/articles?limit=50'),
      POST: post,
    };
    await work[values.profile as keyof typeof work]();
    await stop(nuncio);
    printProfile(profileDir);
    rmSync(profileDir, { recursive: true });
    return;
  }
  const results: Record<string, number[]> = {};
  const note = async (name: string, work: () => Promise<number>) => {
    const rate = await work();
    results[name] = [...(results[name] ?? []), rate];
  };
  for (let round = 0; round < Number(values.rounds); round++) {
    await note('bare GET', get(ports.bare, `/articles/${id}`));
    await note('GET an article', get(ports.nuncio, `/articles/${id}`));
    await note('bare list', get(ports.bare, '/articles?limit=50'));
    await note('GET a list of 50', get(ports.nuncio, '/articles?limit=50'));
    await note('database alone', () => databaseAlone(accountId));
    await note('POST with its event', post);
  }
  const median = (name: string) =>
    (results[name] ?? []).toSorted((a, b) => a - b)[Math.floor(Number(values.rounds) / 2)] ?? 0;
  for (const [name, beside] of [
    ['GET an article', 'bare GET'],
    ['GET a list of 50', 'bare list'],
    ['POST with its event', 'database alone'],
  ] as const) {
    const ratio = median(name) / median(beside);
    console.log(
      `${name.padEnd(20)} ${median(name).toFixed(0).padStart(7)}/s   ${beside.padEnd(15)} ${median(beside).toFixed(0).padStart(7)}/s   ratio ${ratio.toFixed(2)}`,
    );
  }
}

function head(method: string, path: string, token: string, body?: string): string {
  const lines = [`${method} ${path} HTTP/1.1`, 'Host: localhost', `Authorization: Bearer ${token}`];
  if (body !== undefined)
    lines.push('Content-Type: application/json', `Content-Length: ${Buffer.byteLength(body)}`);
  return `${lines.join('\r\n')}\r\n\r\n`;
}

/** The same rows in the same transaction, said to the database directly, on as many connections. */
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

async function startProcess(
  what: 'bare' | 'nuncio',
  port: number,
  profileDir?: string,
): Promise<ChildProcess> {
  const flags = profileDir === undefined ? [] : ['--cpu-prof', `--cpu-prof-dir=${profileDir}`];
  const script = new URL('./support/api_server.ts', import.meta.url).pathname;
  const child = spawn(
    'taskset',
    ['-c', '0', process.execPath, ...flags, script, what, String(port), postgres.connectionString],
    { stdio: ['ignore', 'pipe', 'inherit'] },
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

/** Where the time went: by package or folder, then the functions that took most themselves. */
function printProfile(directory: string): void {
  const [file = ''] = readdirSync(directory);
  const { nodes } = JSON.parse(readFileSync(join(directory, file), 'utf8')) as Profile;
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
  console.log(`idle, start and end included: ${((idle / (idle + total)) * 100).toFixed(0)} % of the time\n`);
  for (const table of [parts, functions]) {
    for (const [name, hits] of [...table].sort(([, a], [, b]) => b - a).slice(0, 22)) {
      console.log(`${((hits / total) * 100).toFixed(1).padStart(5)} %  ${name}`);
    }
    console.log('');
  }
}
