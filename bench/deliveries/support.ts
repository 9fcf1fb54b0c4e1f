/** Shared code of the delivery benchmarks: processes, a database, an audience, and cost figures. */

import { type ChildProcess, fork, spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { Agent, request } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import { migrateCollections } from '../../src/collections/migrate.ts';
import { type Config, loadConfig } from '../../src/config/config.ts';
import { newId } from '../../src/crypto/ids.ts';
import { createSealer } from '../../src/crypto/sealing.ts';
import { type Database, openDatabase } from '../../src/database/database.ts';
import { startEmbedded } from '../../src/database/embedded/embedded.ts';
import { migrate } from '../../src/database/migrate.ts';
import { loadPlatform } from '../../src/platform.ts';
import { newLane } from '../../src/webhooks/subscriptions/delivery_id.ts';
import { makeSecret } from '../../src/webhooks/subscriptions/signature.ts';
import { createSubscription } from '../../src/webhooks/subscriptions/subscription.ts';
import { SubscriptionQuotas } from '../../src/webhooks/subscriptions/subscription_quotas.ts';
import { createTestClient, mintAccessToken } from '../../test/support/clients/oauth.ts';
import { freePort, testSecret } from '../../test/support/servers/server.ts';
import { childrenOf } from './processes.ts';
import { wantStatements } from './statements.ts';
import type { Receipt } from './subscriber.ts';

/** Returns about 1 KB, of the kind `push`. @param mark makes each body unique */
export function eventBody(mark: number | string): Record<string, unknown> {
  const message = 'A message of some length that says what was changed and why it was changed. '.repeat(2);
  const commits = Array.from({ length: 4 }, (_, index) => ({
    id: `9c1185a5c5e9fc54612808977ee8f548b2258d3${index}`,
    message,
  }));
  return { ref: `refs/heads/${mark}`, commits, repository: { name: 'example' } };
}

export interface SubscriberReport {
  count: number;
  firstAt: number;
  lastAt: number;
  cpu: { user: number; system: number };
  receipts: Receipt[] | null;
}

export interface BenchSubscriber {
  ports: { accept: number; hang: number };
  ask: (what: 'reset' | 'latency' | 'report') => Promise<SubscriberReport>;
  stop: () => void;
}

export async function startSubscriber(): Promise<BenchSubscriber> {
  const child = fork(fileURLToPath(new URL('subscriber.ts', import.meta.url)));
  const next = <T>() =>
    new Promise<T>((resolve) => child.once('message', (message) => resolve(message as T)));
  const { ports } = await next<{ ports: BenchSubscriber['ports'] }>();
  return {
    ports,
    ask(what) {
      const answer = next<SubscriberReport>();
      child.send(what);
      return answer;
    },
    stop: () => child.disconnect(),
  };
}

export interface Bench {
  db: Database;
  databaseUrl: string;
  config: Config;
  baseUrl: string;
  postgresPids: () => number[];
  close: () => Promise<void>;
}

/** @param withStatements enables pg_stat_statements, which itself costs some time */
export async function openBench({ withStatements = false } = {}): Promise<Bench> {
  const dataDir = mkdtempSync(join(tmpdir(), 'nuncio-bench-'));
  let postgres = await startEmbedded({ dataDir, role: 'server' });
  await migrate(postgres.connectionString);
  if (withStatements) {
    const first = openDatabase({ connectionString: postgres.connectionString, connectionsMax: 1 });
    await wantStatements(first);
    await first.destroy();
    await postgres.stop();
    postgres = await startEmbedded({ dataDir, role: 'server' });
  }
  const platform = await loadPlatform(null);
  await migrateCollections(postgres.connectionString, platform.collections);
  const db = openDatabase({ connectionString: postgres.connectionString, connectionsMax: 4 });
  const { rows } = await sql<{ pid: number; file: string }>`
    select pg_backend_pid() as pid, current_setting('data_directory') as file`.execute(db);
  const postmaster = Number(readFileSync(join(rows[0]?.file ?? '', 'postmaster.pid'), 'utf8').split('\n')[0]);
  const port = String(await freePort());
  const config = loadConfig({ ...settings(postgres.connectionString, port) }, 'start');
  return {
    db,
    databaseUrl: postgres.connectionString,
    config,
    baseUrl: config.baseUrl,
    postgresPids: () => [postmaster, ...childrenOf(postmaster)],
    async close() {
      await db.destroy();
      await postgres.stop();
      rmSync(dataDir, { recursive: true, force: true });
    },
  };
}

function settings(databaseUrl: string, port: string, logLevel = 'warn') {
  return {
    PORT: port,
    DATABASE_URL: databaseUrl,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    NUNCIO_RATE_LIMIT: '0',
    LOG_LEVEL: logLevel,
  };
}

export interface NuncioServer {
  child: ChildProcess;
  stop: () => Promise<void>;
}

/**
 * @param nodeFlags such as `--cpu-prof`; added to those in BENCH_NODE_FLAGS. BENCH_PRELOAD names another
 * allocator, such as `libjemalloc.so.2`
 * @param isAsked whether the benchmark sends messages to the process
 */
export async function startNuncio(
  bench: Bench,
  nodeFlags: string[] = [],
  { isAsked = false, port = String(bench.config.port), logLevel = 'warn' } = {},
): Promise<NuncioServer> {
  const cli = fileURLToPath(new URL('../../src/cli.ts', import.meta.url));
  const {
    PATH,
    HOME,
    BENCH_NODE_FLAGS = '',
    BENCH_PRELOAD = '',
    MALLOC_CONF,
    NODE_EXTRA_CA_CERTS,
  } = process.env;
  const flags = [...nodeFlags, ...BENCH_NODE_FLAGS.split(' ').filter((flag) => flag !== '')];
  const allocator = BENCH_PRELOAD === '' ? {} : { LD_PRELOAD: BENCH_PRELOAD, MALLOC_CONF };
  const child = spawn(process.execPath, [...flags, cli, 'start'], {
    stdio: isAsked ? ['ignore', 'inherit', 'inherit', 'ipc'] : ['ignore', 'inherit', 'inherit'],
    env: {
      ...allocator,
      ...(NODE_EXTRA_CA_CERTS === undefined ? {} : { NODE_EXTRA_CA_CERTS }),
      ...settings(bench.databaseUrl, port, logLevel),
      PATH,
      HOME,
      NUNCIO_BASE_URL: bench.baseUrl,
    },
  });
  const ended = new Promise((resolve) => child.once('exit', resolve));
  for (;;) {
    if (child.exitCode !== null) throw new Error('the server ended');
    const isReady = await fetch(`http://localhost:${port}/readyz`).then(
      ({ ok }) => ok,
      () => false,
    );
    if (isReady) break;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return {
    child,
    async stop() {
      child.kill('SIGTERM');
      await ended;
    },
  };
}

export interface Audience {
  accounts: string[];
  publisherToken: string;
}

/** Creates users who each granted one app, with one subscription each. @param urlOf returns the URL of each subscription */
export async function createAudience(
  bench: Bench,
  size: number,
  urlOf: (index: number) => string,
): Promise<Audience> {
  const { accounts, client } = await createSubscribers(bench, size, urlOf);
  const { accessToken } = await mintAccessToken(bench, { client, scopes: ['write:events'] });
  return { accounts, publisherToken: accessToken };
}

export interface GrantPlace {
  accountId: string;
  clientId: string;
  grantId: string;
}

/** Adds one subscription to pushes for a grant. */
export async function addSubscription(
  bench: Pick<Bench, 'db'>,
  grant: GrantPlace,
  url: string,
  fields: { rateLimit?: number; ordered?: boolean } = {},
): Promise<void> {
  const made = await createSubscription(
    bench.db,
    { kind: 'grant', ...grant },
    {
      url,
      kinds: ['push'],
      signature: 'timestamp',
      format: 'json',
      version: null,
      ordered: false,
      handshake: false,
      rateLimit: null,
      description: '',
      retrySchedule: null,
      filter: null,
      ...fields,
    },
    makeSecret(),
    createSealer(testSecret, 'subscription-secret'),
    new SubscriptionQuotas(bench.db),
  );
  if (made === undefined) throw new Error('the subscription was refused');
}

/** Like `createAudience`, without a publisher token. The server must have been started once before. */
export async function createSubscribers(bench: Bench, size: number, urlOf: (index: number) => string) {
  const scopes = ['read:posts', 'read:webhooks', 'write:webhooks'];
  const client = await createTestClient(bench, { scopes: [...scopes, 'write:events'] });
  const accounts: string[] = [];
  for (let from = 0; from < size; from += subscribersAtOnce) {
    const count = Math.min(subscribersAtOnce, size - from);
    const urls = Array.from({ length: count }, (_, offset) => urlOf(from + offset));
    accounts.push(...(await insertSubscribers(bench.db, client.id, scopes, urls)));
  }
  return { accounts, client };
}

const subscribersAtOnce = 2_000;

/** Inserts a user, a grant and a subscription for each URL: one by one, 150,000 would take half an hour. @returns the users */
async function insertSubscribers(
  db: Database,
  clientId: string,
  scopes: readonly string[],
  urls: readonly string[],
): Promise<string[]> {
  const sealer = createSealer(testSecret, 'subscription-secret');
  const rows = urls.map((url) => ({ account: newId(), grant: newId(), id: newId(), lane: newLane(), url }));
  const given = sql`unnest(
    ${rows.map(({ account }) => account)}::uuid[], ${rows.map(({ grant }) => grant)}::uuid[],
    ${rows.map(({ id }) => id)}::uuid[], ${rows.map(({ lane }) => lane)}::bigint[],
    ${rows.map(({ url }) => url)}::text[], ${rows.map(({ id }) => sealer.seal(makeSecret(), id))}::bytea[]
  ) as given (account_id, grant_id, id, lane, url, secret)`;
  await db.transaction().execute(async (tx) => {
    await sql`insert into accounts (id, email, name) select account_id, id || '@example.com', '' from ${given}`.execute(
      tx,
    );
    await sql`
      insert into grants (id, account_id, client_id, scopes)
      select grant_id, account_id, ${clientId}, ${scopes}::text[] from ${given}`.execute(tx);
    await sql`
      insert into subscriptions (id, lane, owner, grant_id, account_id, client_id, url, kinds, signature, secret)
      select id, lane, 'grant', grant_id, account_id, ${clientId}, url, '{push}', 'timestamp', secret from ${given}`.execute(
      tx,
    );
    await sql`insert into lanes (id) select lane from ${given}`.execute(tx);
    await sql`insert into lane_progress (lane) select lane from ${given}`.execute(tx);
  });
  return rows.map(({ account }) => account);
}

/** Prepares bodies of `POST /events` with 1,000 events each, for all accounts in turn. */
export function makeBatches(accounts: readonly string[], events: number): string[] {
  const batches: string[] = [];
  for (let from = 0; from < events; from += 1_000) {
    const batch = [];
    for (let index = from; index < Math.min(from + 1_000, events); index++) {
      batch.push({ kind: 'push', account: accounts[index % accounts.length], body: eventBody(index) });
    }
    batches.push(JSON.stringify(batch));
  }
  return batches;
}

/** Publishes batches, several concurrently. */
export async function publishBatches(
  bench: Bench,
  token: string,
  batches: string[],
  atOnce = 2,
): Promise<void> {
  const left = [...batches];
  const run = async () => {
    for (let batch = left.shift(); batch !== undefined; batch = left.shift()) await post(bench, token, batch);
  };
  await Promise.all(Array.from({ length: atOnce }, run));
}

/** Publishes events with one request. */
export function publishEvents(bench: Bench, token: string, events: readonly unknown[]): Promise<void> {
  return post(bench, token, JSON.stringify(events));
}

const agent = new Agent({ keepAlive: true });

/** Uses `node:http`, because `fetch` allocates more, and its garbage collections delay what is measured. */
function post(bench: Bench, token: string, body: string): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const headers = {
    authorization: `Bearer ${token}`,
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
  };
  request(`${bench.baseUrl}/events`, { agent, method: 'POST', headers }, (response) => {
    const chunks: Buffer[] = [];
    response.on('data', (chunk: Buffer) => chunks.push(chunk)).on('error', reject);
    response.on('end', () => {
      if (response.statusCode === 202) resolve();
      else reject(new Error(`publishing gave ${response.statusCode}: ${Buffer.concat(chunks)}`));
    });
  })
    .on('error', reject)
    .end(body);
  return promise;
}

/** Waits until the subscriber has received a number of deliveries. */
export async function waitFor(subscriber: BenchSubscriber, count: number): Promise<SubscriberReport> {
  const until = Date.now() + 600_000;
  for (;;) {
    const report = await subscriber.ask('report');
    if (report.count >= count) return report;
    if (Date.now() > until) throw new Error(`${report.count} of ${count} came`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Bytes of WAL written, and transactions committed, so far. */
export async function databaseWork(db: Database): Promise<{ walBytes: number; commits: number }> {
  const { rows } = await sql<{ wal: string; commits: string }>`
    select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0') as wal,
      (select sum(xact_commit) from pg_stat_database) as commits`.execute(db);
  return { walBytes: Number(rows[0]?.wal), commits: Number(rows[0]?.commits) };
}

export function percentile(values: readonly number[], part: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? Number.NaN;
}

/** A whole request to publish one event, head and body. */
export function publishRequest(account: string, token: string, kind = 'push'): string {
  return postRequest('/events', token, { kind, account, body: eventBody('main') });
}

export function postRequest(path: string, token: string, value: unknown): string {
  const body = JSON.stringify(value);
  return [
    `POST ${path} HTTP/1.1`,
    'Host: 127.0.0.1',
    `Authorization: Bearer ${token}`,
    'Content-Type: application/json',
    `Content-Length: ${Buffer.byteLength(body)}`,
    '',
    body,
  ].join('\r\n');
}
