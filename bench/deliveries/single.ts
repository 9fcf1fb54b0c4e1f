/**
 * `npx node bench/deliveries.ts single [seconds] [connections] [names…]`: one event per request and one subscription.
 * Each connection sends its next request after the response to the last one. Measures from the first request to the
 * last receipt: the rate, and the processor time of all participants for each event with its delivery.
 *
 * Names are `nuncio` (the default, with the others), `publish` (Nuncio without a subscription), `graphile-worker` and
 * `pg-boss` (each behind an HTTP server, see bench/support/sender_server.ts), and `bare`, the same HTTP server without a sender.
 * `livez` and `refused` are requests of Nuncio that need no database: its cheapest one, and events of a kind that does not exist. `svix` needs its program (bench/deliveries/svix.ts). With STATEMENTS=1 it also prints
 * PostgreSQL's statement statistics.
 */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import { loadToTheEnd } from '../support/load.ts';
import { record } from '../support/record.ts';
import { cpuMicros, threadMicros, threadsSince } from './processes.ts';
import { readStatements, resetStatements } from './statements.ts';
import {
  type Bench,
  type BenchSubscriber,
  createAudience,
  databaseWork,
  openBench,
  publishRequest,
  startNuncio,
  startSubscriber,
  waitFor,
} from './support.ts';
import { openSvix } from './svix.ts';

const warmSeconds = 4;
const ofNuncio = ['nuncio', 'publish', 'livez', 'refused'];
const names = [...ofNuncio, 'bare', 'graphile-worker', 'pg-boss'];
const withStatements = process.env.STATEMENTS === '1';

/** A server that accepts `POST /events`. */
interface Target {
  pid: number;
  port: number;
  request: string;
  /** Of every response. */
  status: number;
  isDelivering: boolean;
  stop: () => Promise<unknown>;
}

export async function measureSingle([
  secondsText = '10',
  connectionsText = '32',
  ...wanted
]: string[]): Promise<void> {
  const load = { connections: Number(connectionsText), seconds: Number(secondsText) };
  const subscriber = await startSubscriber();
  const bench = await openBench({ withStatements });
  try {
    for (const name of wanted.length > 0 ? wanted : names) {
      const target = ofNuncio.includes(name)
        ? await openNuncio(bench, subscriber, name)
        : await openSender(bench, subscriber, name);
      try {
        await measure(name, bench, subscriber, target, load);
      } finally {
        await target.stop();
      }
    }
  } finally {
    subscriber.stop();
    await bench.close();
  }
}

async function measure(
  name: string,
  bench: Bench,
  subscriber: BenchSubscriber,
  target: Target,
  { connections, seconds }: { connections: number; seconds: number },
): Promise<void> {
  const send = (milliseconds: number) =>
    loadToTheEnd({
      port: target.port,
      connections,
      milliseconds,
      request: target.request,
      status: target.status,
    });
  await subscriber.ask('reset');
  const warmed = await send(warmSeconds * 1_000);
  if (target.isDelivering) await waitFor(subscriber, warmed);
  // Waits for writes that follow the last receipt.
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  if (withStatements) await resetStatements(bench.db);
  const [threads, work] = [threadMicros(target.pid), await databaseWork(bench.db)];
  const before = { node: cpuMicros([target.pid]), postgres: cpuMicros(bench.postgresPids()) };
  await subscriber.ask('reset');
  const startedAt = performance.timeOrigin + performance.now();
  const count = await send(seconds * 1_000);
  const publishedAt = performance.timeOrigin + performance.now();
  const lastAt = target.isDelivering ? (await waitFor(subscriber, count)).lastAt : publishedAt;
  await new Promise((resolve) => setTimeout(resolve, 500));
  const node = (cpuMicros([target.pid]) - before.node) / count;
  const postgres = (cpuMicros(bench.postgresPids()) - before.postgres) / count;
  const after = await databaseWork(bench.db);
  const parts = [...threadsSince(threads, target.pid)].map(
    ([part, used]) => `${part} ${(used / count).toFixed(0)}`,
  );
  const perSecond = (until: number) => (count * 1_000) / (until - startedAt);
  const rate = (until: number) => `${Math.round(perSecond(until))}/s`;
  record({
    of: 'single',
    sender: name,
    perSecond: perSecond(lastAt),
    nodeMicros: node,
    postgresMicros: postgres,
  });
  console.log(
    `${name}: ${rate(lastAt)} (taken at ${rate(publishedAt)}); ${(node + postgres).toFixed(0)} µs each: ` +
      `Node ${node.toFixed(0)} (${parts.join(', ')}), PostgreSQL ${postgres.toFixed(0)}; ` +
      `WAL ${Math.round((after.walBytes - work.walBytes) / count)} bytes, ` +
      `${((after.commits - work.commits) / count).toFixed(3)} transactions, of ${count}`,
  );
  if (withStatements) await printStatements(bench, count);
}

async function printStatements(bench: Bench, count: number): Promise<void> {
  for (const { text, calls, milliseconds, rows } of (await readStatements(bench.db)).slice(0, 12)) {
    console.log(
      `  ${((milliseconds * 1_000) / count).toFixed(1)} µs of each; ${calls} calls of ` +
        `${(milliseconds / calls).toFixed(2)} ms, ${(rows / calls).toFixed(1)} rows: ${text.slice(0, 110)}`,
    );
  }
}

async function openNuncio(bench: Bench, subscriber: BenchSubscriber, name: string): Promise<Target> {
  const url = `http://127.0.0.1:${subscriber.ports.accept}/hooks`;
  const server = await startNuncio(bench);
  const audience = await createAudience(bench, 1, () => url);
  const isDelivering = name === 'nuncio';
  if (!isDelivering) await sql`update subscriptions set state = 'ended'`.execute(bench.db);
  return {
    pid: server.child.pid as number,
    port: bench.config.port,
    request:
      name === 'livez'
        ? 'GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n'
        : publishRequest(
            audience.accounts[0] as string,
            audience.publisherToken,
            name === 'refused' ? 'none' : 'push',
          ),
    status: { livez: 200, refused: 422 }[name] ?? 202,
    isDelivering,
    stop: () => server.stop(),
  };
}

async function openSender(bench: Bench, subscriber: BenchSubscriber, name: string): Promise<Target> {
  if (name === 'svix') return openSvix(bench, `http://127.0.0.1:${subscriber.ports.accept}/hooks`);
  const database = name.replaceAll('-', '_');
  await sql.raw(`create database ${database}`).execute(bench.db);
  const url = new URL(bench.databaseUrl);
  url.pathname = `/${database}`;
  const script = fileURLToPath(new URL('../support/sender_server.ts', import.meta.url));
  const { port } = bench.config;
  const origin = `http://127.0.0.1:${subscriber.ports.accept}`;
  const child = spawn(process.execPath, [script, name, String(port), url.href, origin], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const ended = once(child, 'exit');
  await Promise.race([
    once(child.stdout, 'data'),
    ended.then(() => Promise.reject(new Error(`${name} ended`))),
  ]);
  return {
    pid: child.pid as number,
    port,
    request: publishRequest('01981f6d-0f3c-7e1b-a6d5-4c2b1a0f9e88', 'none'),
    status: 202,
    isDelivering: name !== 'bare',
    async stop() {
      child.kill('SIGTERM');
      await ended;
    },
  };
}
