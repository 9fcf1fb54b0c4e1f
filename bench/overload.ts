/**
 * A node under several times the load that it can serve. Finds the best goodput, then offers multiples of it, open-loop: reads, lists,
 * writes and publishes, and one journey a second (sign-in, consent, token, request, withdrawal) by a client of its own.
 *
 *   npx node bench/overload.ts [--limit 64] [--seconds 20] [--factors 1,2,4,1] [--connections 2000]
 *   npx node bench/overload.ts --factors 1@20,2@100,1@20,2@100,1@20,2@100,1@20,2@100,1@20,2@100,1@20,2@100,1@20    # twice the load for ten minutes
 *
 * `2@100` is twice the rate for 100 seconds. `--limit` sets NUNCIO_CONCURRENT_REQUESTS of the measured servers, one after the other; 0 is a server without admission. The server
 * has one core (`taskset`). PostgreSQL, the generator and the journeys share the others.
 */

import { type ChildProcess, fork, spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { createAccount } from '../src/accounts/account.ts';
import { createClient } from '../src/clients/client.ts';
import { migrateCollections } from '../src/collections/migrate.ts';
import { type Database, openDatabase } from '../src/database/database.ts';
import { startEmbedded } from '../src/database/embedded/embedded.ts';
import { migrate } from '../src/database/migrate.ts';
import { loadPlatform } from '../src/platform.ts';
import { formsOf } from '../test/support/browser/browser.ts';
import { authorize, clientToken, type TestAccount, type TestClient } from '../test/support/clients/oauth.ts';
import { pushBody } from '../test/support/webhooks/apps.ts';
import { article } from './support/article.ts';
import { load } from './support/load.ts';
import type { Phase, PhaseResult } from './support/open_loop.ts';

const { values } = parseArgs({
  options: {
    limit: { type: 'string', default: '64' },
    seconds: { type: 'string', default: '20' },
    // One network gets 4,375 connections of a node.
    connections: { type: 'string', default: '2000' },
    factors: { type: 'string', default: '1,2,4,1' },
  },
});
const seconds = Number(values.seconds);
const connectionsMax = Number(values.connections);
/** A response that takes longer is of no use to its client. */
const latencyMsMax = 2_000;
const searchSeconds = 5;
/** A slow moment of the machine is not the rate that a node holds. */
const missesMax = 3;
const port = 4_829;
const baseUrl = `http://localhost:${port}`;
const server = { baseUrl };
const users = 16;
const password = 'a password for measuring';
const scopes = ['read:posts', 'write:posts'];

const cores = { server: '0', rest: `1-${availableParallelism() - 1}` };
// Before PostgreSQL starts, because it inherits the CPU affinity.
if (spawnSync('taskset', ['-a', '-c', '-p', cores.rest, String(process.pid)]).status !== 0)
  throw new Error('taskset is needed, and two cores');

async function measure(limit: string): Promise<void> {
  const dataDir = mkdtempSync(join(tmpdir(), 'nuncio-bench-'));
  const postgres = await startEmbedded({ dataDir, role: 'server' });
  const db = openDatabase({ connectionString: postgres.connectionString, connectionsMax: 2 });
  const children: ChildProcess[] = [];
  try {
    await migrate(postgres.connectionString);
    await migrateCollections(postgres.connectionString, (await loadPlatform(null)).collections);
    const nuncio = await startServer(postgres.connectionString, limit);
    const generator = fork(new URL('./support/open_loop.ts', import.meta.url), { serialization: 'advanced' });
    children.push(generator, nuncio);
    await compare(limit, db, { nuncio, generator, dataDir });
  } finally {
    for (const child of children) await stop(child);
    await db.destroy();
    await postgres.stop();
    rmSync(dataDir, { recursive: true, force: true });
  }
}

interface Measured {
  nuncio: ChildProcess;
  generator: ChildProcess;
  dataDir: string;
}

async function compare(limit: string, db: Database, measured: Measured) {
  const { client, accounts } = await prepareAccounts(db);
  const requests = await prepareRequests(db, client, accounts);
  console.log(`\nNUNCIO_CONCURRENT_REQUESTS=${limit}`);
  const offer = async (name: string, rate: number, duration: number) => {
    const journeys = new Journeys(client, accounts);
    journeys.start();
    const sampling = sample(measured);
    const phase = { port, rate, seconds: duration, connectionsMax, requests, latencyMsMax };
    const result = await runPhase(measured.generator, phase);
    const text = await sampling.end();
    await journeys.stop();
    show(`offered ${rate}/s${name}`, result);
    const good = result.good / result.seconds;
    const work = result.goodOf.reduce((sum, count, kind) => sum + (count * (costs[kind] ?? 0)) / duration, 0);
    const byKind = result.goodOf.map((count) => Math.round(count / duration)).join(', ');
    return { ...result, rate: good, work, text: `by kind ${byKind}; ${text}; ${journeys.describe()}` };
  };
  let best = { rate: 0, work: 0 };
  const costs = await closedLoop(requests);
  const meanCost = costs.reduce((sum, cost, kind) => sum + (cost * (requests[kind]?.weight ?? 0)) / 100, 0);
  const each = costs.map((cost) => (cost * 1e6).toFixed(0)).join(', ');
  console.log(`microseconds of a request by kind (an article, a list, a creation, a publish): ${each}`);
  // Up to a rate that the node does not hold, whenever it is tried.
  for (let rate = Math.round(0.7 / meanCost), misses = 0; misses < missesMax; ) {
    const result = await offer('', rate, searchSeconds);
    if (result.rate > best.rate) best = result;
    const isHeld = result.good > 0.9 * result.offered;
    misses = isHeld ? 0 : misses + 1;
    if (isHeld) rate = Math.round(rate * 1.2);
  }
  const rates = new Map<string, (typeof best)[]>();
  for (const each of values.factors.split(',')) {
    const [factor = '', duration = seconds] = each.split('@');
    const result = await offer(`, ${factor} x`, Math.round(best.rate * Number(factor)), Number(duration));
    rates.set(factor, [...(rates.get(factor) ?? []), result]);
    const ratios = [result.rate / best.rate, result.work / best.work].map((ratio) => ratio.toFixed(2));
    console.log(`  goodput ${ratios[0]} of the best in requests, ${ratios[1]} in work; ${result.text}`);
  }
  // The machine's speed changes from minute to minute, and the best goodput is one of a few seconds.
  const meanOf = (factor: string, of: keyof typeof best) => {
    const all = (rates.get(factor) ?? []).map((each) => each[of]);
    return all.reduce((a, b) => a + b, 0) / all.length;
  };
  for (const factor of rates.keys()) {
    const [inRequests, inWork] = (['rate', 'work'] as const).map((of) =>
      (meanOf(factor, of) / meanOf('1', of)).toFixed(2),
    );
    const rate = meanOf(factor, 'rate').toFixed(0);
    console.log(
      `${factor} x: ${rate}/s on average, ${inRequests} of 1 x in requests, ${inWork} of it in work`,
    );
  }
}

function show(name: string, { seconds: duration, processor, ...result }: PhaseResult) {
  const a = (count: number) => `${Math.round(count / duration)}/s`;
  const { good, late, refused, failed, failures, unsent, p50Ms, p99Ms, refusedP50Ms } = result;
  console.log(
    `${name.padEnd(22)} good ${a(good)}, late ${a(late)}, refused ${a(refused)}, failed ${a(failed)}${failed > 0 ? ` (${[...failures].map((each) => each.join(': ')).join(', ')})` : ''}, unsent ${a(unsent)}; ` +
      `accepted p50 ${p50Ms.toFixed(0)} ms, p99 ${p99Ms.toFixed(0)} ms, refused p50 ${refusedP50Ms.toFixed(0)} ms; ` +
      `generator ${processor.toFixed(2)} cores`,
  );
}

/** Signs in, allows, gets a token, uses it, and withdraws: one a second, whether or not the earlier ones have ended. */
class Journeys {
  begun = 0;
  done = 0;
  readonly failures = new Map<string, number>();
  readonly #durations: number[] = [];
  readonly #running = new Set<Promise<void>>();
  readonly #client: TestClient;
  readonly #accounts: readonly TestAccount[];
  #timer: NodeJS.Timeout | undefined;

  constructor(client: TestClient, accounts: readonly TestAccount[]) {
    this.#client = client;
    this.#accounts = accounts;
  }

  start(): void {
    this.#timer = setInterval(() => {
      const account = this.#accounts[this.begun % this.#accounts.length] as TestAccount;
      this.begun += 1;
      const running = this.#travel(account).finally(() => this.#running.delete(running));
      this.#running.add(running);
    }, 1_000);
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await Promise.all(this.#running);
  }

  describe(): string {
    const failures = [...this.failures].map(([message, count]) => `, ${count} x ${message}`);
    const [p50, max] = [this.#quantile(0.5), this.#quantile(1)];
    return `journeys ${this.done} of ${this.begun}, p50 ${p50} ms, max ${max} ms${failures.join('')}`;
  }

  #quantile(share: number): number {
    const sorted = this.#durations.toSorted((a, b) => a - b);
    return Math.round(sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN);
  }

  async #travel(account: TestAccount): Promise<void> {
    const startedAt = performance.now();
    try {
      const { browser, accessToken } = await authorize(server, { account, client: this.#client, scopes });
      const page = await browser.open(`${baseUrl}/account`);
      const form = formsOf(page.text).findIndex(({ action }) => action === '/account/withdraw');
      if (form < 0) throw new Error(`the account page is ${page.response.status}`);
      const { response } = await browser.submit(page, {}, form);
      if (response.status !== 200) throw new Error(`the withdrawal is ${response.status}`);
      const duration = performance.now() - startedAt;
      // The promise is that a node refuses it a second later.
      await new Promise((resolve) => setTimeout(resolve, 1_000));
      const headers = { authorization: `Bearer ${accessToken}` };
      const { status } = await fetch(`${baseUrl}/articles`, { headers });
      if (status === 200) throw new Error('the withdrawn token is accepted');
      this.done += 1;
      this.#durations.push(duration);
    } catch (error) {
      const message = (error as Error).message.slice(0, 60).replaceAll('\n', ' ');
      this.failures.set(message, (this.failures.get(message) ?? 0) + 1);
    }
  }
}

/** Where time goes: processors, memory, event loop, places and reasons of refusals, from now to `end`. */
function sample({ nuncio, dataDir }: Measured) {
  const used = () => ({
    at: performance.now(),
    nuncio: cpuSeconds([nuncio.pid as number]),
    postgres: cpuSeconds(postgresProcesses(dataDir)),
  });
  const before = used();
  let rssMax = 0;
  let loopLag = 0;
  let heapMax = 0;
  const limits: number[] = [];
  let reading: Promise<void> | undefined;
  let first = '';
  let last = '';
  const read = async () => {
    const pages = readFileSync(`/proc/${nuncio.pid}/statm`, 'utf8').split(' ')[1];
    rssMax = Math.max(rssMax, Number(pages) * 4_096);
    last = await (await fetch(`${baseUrl}/metrics`)).text();
    if (first === '') first = last;
    const value = (name: string) => Number(new RegExp(`^${name} (\\S+)`, 'm').exec(last)?.[1]);
    heapMax = Math.max(heapMax, value('nodejs_heap_size_used_bytes'));
    loopLag = Math.max(loopLag, value('nodejs_eventloop_lag_p99_seconds'));
    limits.push(value('nuncio_requests_limit'));
  };
  const timer = setInterval(() => {
    reading ??= read()
      .catch(() => {})
      .finally(() => {
        reading = undefined;
      });
  }, 1_000);
  return {
    async end() {
      clearInterval(timer);
      await reading;
      const after = used();
      const cores = (of: 'nuncio' | 'postgres') =>
        ((after[of] - before[of]) * 1_000) / (after.at - before.at);
      const refused = last.match(/^nuncio_requests_refused_total\S+ [1-9].*/gm) ?? [];
      const collected = ['minor', 'major', 'incremental'].map((kind) => {
        const sum = new RegExp(`^nodejs_gc_duration_seconds_sum{kind="${kind}"} (\\S+)`, 'm');
        const [before = 0, after = 0] = [first, last].map((text) => Number(sum.exec(text)?.[1] ?? 0));
        return `${kind} ${(after - before).toFixed(2)} s`;
      });
      const text =
        `garbage collection ${collected.join(', ')}; heap max ${Math.round(heapMax / 1_048_576)} MiB; ` +
        `server ${cores('nuncio').toFixed(2)} cores, PostgreSQL ${cores('postgres').toFixed(2)}; ` +
        `RSS max ${Math.round(rssMax / 1_048_576)} MiB; event loop p99 max ${Math.round(loopLag * 1_000)} ms; ` +
        `places ${Math.min(...limits)} to ${Math.max(...limits)}; ` +
        `refused so far ${refused.map((line) => line.replace('nuncio_requests_refused_total', '')).join(' ')}`;
      return text;
    },
  };
}

function postgresProcesses(dataDir: string): number[] {
  const postmaster = Number(
    readFileSync(join(dataDir, 'postgres', 'postmaster.pid'), 'utf8').split('\n', 1)[0],
  );
  const children = readFileSync(`/proc/${postmaster}/task/${postmaster}/children`, 'utf8');
  return [postmaster, ...children.trim().split(' ').map(Number)];
}

/** Processor time that processes have used. The kernel counts 100 ticks a second. */
function cpuSeconds(pids: readonly number[]): number {
  let ticks = 0;
  for (const pid of pids) {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').at(-1)?.split(' ') ?? [];
    ticks += Number(fields[11]) + Number(fields[12]);
  }
  return ticks / 100;
}

/** Seconds that the node needs for a request of each kind, from the rate of 32 connections that send as fast as responses arrive. */
async function closedLoop(requests: Phase['requests']): Promise<number[]> {
  const costs: number[] = [];
  for (const [kind, status] of [200, 200, 201, 202].entries()) {
    const { text = '' } = requests.find((each) => each.kind === kind) ?? {};
    costs.push(1 / (await load({ port, connections: 32, milliseconds: 3_000, request: text, status })));
  }
  return costs;
}

async function prepareAccounts(db: Database) {
  const accounts: TestAccount[] = [];
  for (let index = 0; index < users; index += 1) {
    const account = await createAccount(db, { email: `user-${index}@example.com`, password });
    accounts.push({ ...account, password });
  }
  const redirectUri = 'https://app.example/callback';
  const created = await createClient(db, {
    name: 'Bench',
    redirectUris: [redirectUri],
    grantTypes: ['authorization_code', 'refresh_token'],
    scopes,
  });
  return { accounts, client: { ...created.client, secret: created.secret, redirectUri } };
}

/** Four kinds of requests for each user. Each user has an app of its own. */
async function prepareRequests(db: Database, journeyClient: TestClient, accounts: readonly TestAccount[]) {
  const { client: publisher, secret } = await createClient(db, {
    name: 'Publisher',
    redirectUris: [],
    grantTypes: ['client_credentials'],
    scopes: ['write:events'],
  });
  const machine = { ...publisher, secret, redirectUri: '' };
  const publishing = await clientToken(server, machine, ['write:events']);
  const requests: { text: string; weight: number; kind: number }[] = [];
  for (const [index, account] of accounts.entries()) {
    const { client, secret: own } = await createClient(db, {
      name: `App ${index}`,
      redirectUris: [journeyClient.redirectUri],
      grantTypes: ['authorization_code', 'refresh_token'],
      scopes,
    });
    const app = { ...client, secret: own, redirectUri: journeyClient.redirectUri };
    const { accessToken } = await authorize(server, { account, client: app, scopes });
    const body = JSON.stringify({ title: article.title, body: article.body });
    let id = '';
    for (let count = 0; count < 25; count += 1) {
      const headers = { authorization: `Bearer ${accessToken}`, 'content-type': 'application/json' };
      const response = await fetch(`${baseUrl}/articles`, { method: 'POST', headers, body });
      ({ id } = (await response.json()) as { id: string });
    }
    const event = JSON.stringify({ kind: 'push', account: account.id, body: pushBody('measured') });
    requests.push(
      { text: head('GET', `/articles/${id}`, accessToken), weight: 50, kind: 0 },
      { text: head('GET', '/articles?limit=20', accessToken), weight: 10, kind: 1 },
      { text: head('POST', '/articles', accessToken, body) + body, weight: 15, kind: 2 },
      { text: head('POST', '/events', publishing, event) + event, weight: 25, kind: 3 },
    );
  }
  return requests;
}

function head(method: string, path: string, token: string, body?: string): string {
  const lines = [`${method} ${path} HTTP/1.1`, 'Host: localhost', `Authorization: Bearer ${token}`];
  if (body !== undefined)
    lines.push('Content-Type: application/json', `Content-Length: ${Buffer.byteLength(body)}`);
  return `${lines.join('\r\n')}\r\n\r\n`;
}

function runPhase(generator: ChildProcess, phase: Phase): Promise<PhaseResult> {
  return new Promise((resolve) => {
    generator.once('message', (result) => resolve(result as PhaseResult));
    generator.send(phase);
  });
}

async function startServer(databaseUrl: string, limit: string): Promise<ChildProcess> {
  const script = new URL('./support/api_server.ts', import.meta.url).pathname;
  const child = spawn(
    'taskset',
    ['-c', cores.server, process.execPath, script, 'nuncio', String(port), databaseUrl],
    {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, BENCH_CONCURRENT_REQUESTS: limit },
    },
  );
  await new Promise((resolve, reject) => {
    child.stdout?.once('data', resolve);
    child.once('exit', () => reject(new Error('the server did not start')));
  });
  return child;
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill('SIGTERM');
  await new Promise((resolve) => child.once('exit', resolve));
}

for (const limit of values.limit.split(',')) await measure(limit);
