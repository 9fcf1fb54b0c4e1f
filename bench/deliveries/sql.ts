/**
 * `npx node bench/deliveries.ts sql [seconds] [connections] [rounds]`: publishing by SQL compared with `POST
 * /events`, in turns within one run, with 100 subscriptions. It publishes:
 *
 *   one event per statement or request over `connections` connections;
 *   a thousand events per statement or request over two;
 *   a change of the application with its event, in one transaction or by a request after it;
 *   single events at 100 and 1,000 a second, for the latency.
 *
 * One rate counts committed or accepted events, the other extends to the last receipt. Latency is the time to the
 * receipt, from the application's `commit` or from the request.
 */

import pg from 'pg';
import { Pool } from 'undici';
import { loadToTheEnd } from '../support/load.ts';
import { monotonicMs } from '../support/measure.ts';
import { cpuMicros } from './processes.ts';
import { describeLatency, measureSteady } from './steady.ts';
import {
  type Bench,
  type BenchSubscriber,
  createAudience,
  eventBody,
  openBench,
  publishEvents,
  publishRequest,
  startNuncio,
  startSubscriber,
  waitFor,
} from './support.ts';

const subscriptions = 100;
const batchSize = 1_000;
const batchesAtOnce = 2;
const warmSeconds = 3;
const latencySeconds = 8;
const single = { name: 'publish', text: 'select nuncio.publish($1, $2, $3)' };
const changed = {
  name: 'change',
  text: 'insert into orders (body) values ($1)',
};
const changedAndPublished = {
  name: 'change_and_publish',
  text: `with change as (insert into orders (body) values ($3)) select nuncio.publish($1, $2, $3)`,
};
const many = {
  name: 'publish_many',
  text: `select count(nuncio.publish('push', e->>'account', e->'body')) from jsonb_array_elements($1::jsonb) as e`,
};

/** Publishes for some milliseconds. @returns the number of events */
type Load = (milliseconds: number) => Promise<number>;

export async function measureSql([
  secondsText = '8',
  connectionsText = '32',
  roundsText = '3',
]: string[]): Promise<void> {
  const [seconds, connections, rounds] = [Number(secondsText), Number(connectionsText), Number(roundsText)];
  const subscriber = await startSubscriber();
  const bench = await openBench();
  const server = await startNuncio(bench);
  const clients = await openClients(bench, connections);
  const http = new Pool(bench.baseUrl, { connections });
  const pool = new pg.Pool({ connectionString: bench.databaseUrl, max: connections });
  try {
    const url = `http://127.0.0.1:${subscriber.ports.accept}/hooks`;
    const { accounts, publisherToken } = await createAudience(bench, subscriptions, () => url);
    const pid = server.child.pid as number;
    const loads: Record<string, Load> = {
      'POST /events, one each': (milliseconds) =>
        loadToTheEnd({
          port: bench.config.port,
          connections,
          milliseconds,
          request: publishRequest(accounts[0] as string, publisherToken),
          status: 202,
        }),
      'SQL, one each': (milliseconds) => loadBySql(clients, accounts, milliseconds),
      'change, then POST /events': (milliseconds) =>
        loadChanges(clients, milliseconds, async (client, body) => {
          await client.query({ ...changed, values: [body] });
          const response = await http.request({
            method: 'POST',
            path: '/events',
            headers: { authorization: `Bearer ${publisherToken}`, 'content-type': 'application/json' },
            body: `{"kind":"push","account":"${accounts[0]}","body":${body}}`,
          });
          await response.body.dump();
          if (response.statusCode !== 202) throw new Error(`status ${response.statusCode}`);
        }),
      'change and SQL in one transaction': (milliseconds) =>
        loadChanges(clients, milliseconds, async (client, body) => {
          await client.query({ ...changedAndPublished, values: ['push', accounts[0], body] });
        }),
      'POST /events, a thousand': (milliseconds) =>
        inParallel(batchesAtOnce, milliseconds, () =>
          publishEvents(bench, publisherToken, batchOf(accounts)),
        ),
      'SQL, a thousand': (milliseconds) =>
        inParallel(batchesAtOnce, milliseconds, async (number) => {
          await clients[number]?.query({ ...many, values: [JSON.stringify(batchOf(accounts))] });
        }),
    };
    await clients[0]?.query(
      'create table orders (id bigint generated always as identity primary key, body jsonb)',
    );
    for (const load of Object.values(loads)) await measure('', bench, subscriber, pid, load, warmSeconds);
    for (let round = 0; round < rounds; round += 1) {
      for (const [name, load] of Object.entries(loads)) {
        await measure(name, bench, subscriber, pid, load, seconds);
      }
    }
    let next = 0;
    const account = () => accounts[next++ % accounts.length] as string;
    const byHttp = async (marks: number[]) => {
      await Promise.all(
        marks.map((mark) =>
          publishEvents(bench, publisherToken, [{ kind: 'push', account: account(), body: eventBody(mark) }]),
        ),
      );
    };
    const bySql = async (marks: number[], starts: Map<number, number>) => {
      await Promise.all(
        marks.map(async (mark) => {
          const client = await pool.connect();
          try {
            await client.query('begin');
            await client.query({ ...single, values: ['push', account(), eventBody(mark)] });
            starts.set(mark, monotonicMs());
            await client.query('commit');
          } finally {
            client.release();
          }
        }),
      );
    };
    for (const rate of [100, 1_000]) {
      for (const [name, publish] of [
        ['POST /events', byHttp],
        ['SQL', bySql],
      ] as const) {
        await measureSteady(subscriber, rate, warmSeconds, publish);
        const latency = await measureSteady(subscriber, rate, latencySeconds, publish);
        console.log(`${name}, ${rate} a second: ${describeLatency(latency)}`);
      }
    }
  } finally {
    await Promise.all([...clients.map((client) => client.end()), pool.end(), http.close()]);
    await server.stop();
    subscriber.stop();
    await bench.close();
  }
}

/** @param name empty to print nothing */
async function measure(
  name: string,
  bench: Bench,
  subscriber: BenchSubscriber,
  pid: number,
  load: Load,
  seconds: number,
): Promise<void> {
  await subscriber.ask('reset');
  const before = { node: cpuMicros([pid]), postgres: cpuMicros(bench.postgresPids()) };
  const startedAt = performance.timeOrigin + performance.now();
  const count = await load(seconds * 1_000);
  const publishedAt = performance.timeOrigin + performance.now();
  const { lastAt } = await waitFor(subscriber, count);
  // Waits for writes that follow the last receipt.
  await new Promise((resolve) => setTimeout(resolve, 1_000));
  if (name === '') return;
  const rate = (until: number) => `${Math.round((count * 1_000) / (until - startedAt))}/s`;
  const node = (cpuMicros([pid]) - before.node) / count;
  const postgres = (cpuMicros(bench.postgresPids()) - before.postgres) / count;
  console.log(
    `${name}: ${rate(publishedAt)} published, ${rate(lastAt)} received; ` +
      `Node ${node.toFixed(0)} µs, PostgreSQL ${postgres.toFixed(0)} µs each, of ${count}`,
  );
}

async function openClients(bench: Bench, count: number): Promise<pg.Client[]> {
  return Promise.all(
    Array.from({ length: count }, async () => {
      const client = new pg.Client({ connectionString: bench.databaseUrl });
      await client.connect();
      return client;
    }),
  );
}

function loadBySql(
  clients: readonly pg.Client[],
  accounts: readonly string[],
  milliseconds: number,
): Promise<number> {
  return loadChanges(clients, milliseconds, async (client, body) => {
    await client.query({ ...single, values: ['push', accounts[0], body] });
  });
}

/** Each client makes one change after another. @returns the number of changes */
async function loadChanges(
  clients: readonly pg.Client[],
  milliseconds: number,
  change: (client: pg.Client, body: string) => Promise<void>,
): Promise<number> {
  const body = JSON.stringify(eventBody('main'));
  const until = performance.now() + milliseconds;
  const counts = await Promise.all(
    clients.map(async (client) => {
      let count = 0;
      for (; performance.now() < until; count += 1) {
        await change(client, body);
      }
      return count;
    }),
  );
  return counts.reduce((sum, count) => sum + count, 0);
}

async function inParallel(
  atOnce: number,
  milliseconds: number,
  publish: (number: number) => Promise<void>,
): Promise<number> {
  const until = performance.now() + milliseconds;
  const counts = await Promise.all(
    Array.from({ length: atOnce }, async (_, number) => {
      let count = 0;
      for (; performance.now() < until; count += batchSize) await publish(number);
      return count;
    }),
  );
  return counts.reduce((sum, count) => sum + count, 0);
}

function batchOf(accounts: readonly string[]) {
  return Array.from({ length: batchSize }, (_, index) => ({
    kind: 'push',
    account: accounts[index % accounts.length],
    body: eventBody(index),
  }));
}
