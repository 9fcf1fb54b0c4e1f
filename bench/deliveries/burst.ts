/**
 * `npx node bench/deliveries.ts burst [seconds] [steady seconds]`: the after-effects of a burst. A steady 100 events
 * a second, first in a fresh database, then after a burst of batches, then after a burst of single events (32
 * connections). Prints latency, processor time, and the database cost of each statement.
 */

import { sql } from 'kysely';
import type { Database } from '../../src/database/database.ts';
import { cpuMicros } from './processes.ts';
import { readStatements, resetStatements } from './statements.ts';
import { describeLatency, measureSteady } from './steady.ts';
import {
  type Audience,
  type Bench,
  type BenchSubscriber,
  createAudience,
  eventBody,
  makeBatches,
  openBench,
  publishBatches,
  publishEvents,
  startNuncio,
  startSubscriber,
  waitFor,
} from './support.ts';

const subscriptions = 100;
const perSecond = 100;
const connections = 32;
const batchedEvents = 60_000;
const statementsShown = 6;

export async function measureBurst([burstText = '20', steadyText = '15']: string[]): Promise<void> {
  const subscriber = await startSubscriber();
  const bench = await openBench({ withStatements: true });
  const server = await startNuncio(bench);
  try {
    const url = `http://127.0.0.1:${subscriber.ports.accept}/hooks`;
    const audience = await createAudience(bench, subscriptions, () => url);
    const steady = (name: string) =>
      measurePhase(name, { bench, subscriber, audience, seconds: Number(steadyText) }, server.child.pid ?? 0);
    await measureSteady(subscriber, perSecond, 5, publisherOf(bench, audience));
    await steady('fresh');
    await subscriber.ask('reset');
    await publishBatches(bench, audience.publisherToken, makeBatches(audience.accounts, batchedEvents));
    await waitFor(subscriber, batchedEvents);
    await steady('after batches');
    const count = await burst(bench, subscriber, audience, Number(burstText));
    await steady(`after ${count} single events`);
  } finally {
    await server.stop();
    subscriber.stop();
    await bench.close();
  }
}

function publisherOf(bench: Bench, { accounts, publisherToken }: Audience) {
  let next = 0;
  return (marks: number[]) =>
    publishEvents(
      bench,
      publisherToken,
      marks.map((mark) => ({
        kind: 'push',
        account: accounts[next++ % accounts.length],
        body: eventBody(mark),
      })),
    );
}

/** Publishes one event per request, as fast as the server responds, until all are received. @returns the number of events */
async function burst(
  bench: Bench,
  subscriber: BenchSubscriber,
  audience: Audience,
  seconds: number,
): Promise<number> {
  await subscriber.ask('reset');
  const until = Date.now() + seconds * 1_000;
  const publish = publisherOf(bench, audience);
  let count = 0;
  const run = async () => {
    while (Date.now() < until) {
      count += 1;
      await publish([count]);
    }
  };
  await Promise.all(Array.from({ length: connections }, run));
  await waitFor(subscriber, count);
  return count;
}

interface Phase {
  bench: Bench;
  subscriber: BenchSubscriber;
  audience: Audience;
  seconds: number;
}

async function measurePhase(name: string, phase: Phase, pid: number): Promise<void> {
  const { bench, subscriber, audience, seconds } = phase;
  await resetStatements(bench.db);
  const before = { node: cpuMicros([pid]), postgres: cpuMicros(bench.postgresPids()) };
  const startedAt = performance.now();
  const latency = await measureSteady(subscriber, perSecond, seconds, publisherOf(bench, audience));
  const micros = (performance.now() - startedAt) * 1_000;
  const cores = (used: number) => (used / micros).toFixed(2);
  console.log(
    `${name}: ${describeLatency(latency)}; cores: Node ${cores(cpuMicros([pid]) - before.node)}, ` +
      `PostgreSQL ${cores(cpuMicros(bench.postgresPids()) - before.postgres)}; ${await describeOutbox(bench.db)}`,
  );
  for (const { text, calls, milliseconds, pages } of (await readStatements(bench.db)).slice(
    0,
    statementsShown,
  )) {
    console.log(
      `  ${(milliseconds / calls).toFixed(2)} ms and ${Math.round(pages / calls)} pages each, ${calls} calls: ${text.slice(0, 90)}`,
    );
  }
}

async function describeOutbox(db: Database): Promise<string> {
  const { rows } = await sql<{ dead: string; bytes: string; vacuums: string }>`
    select n_dead_tup as dead, pg_total_relation_size(relid) as bytes, autovacuum_count + vacuum_count as vacuums
    from pg_stat_user_tables where schemaname = current_schema() and relname = 'outbox'`.execute(db);
  const { dead, bytes, vacuums } = rows[0] as { dead: string; bytes: string; vacuums: string };
  return `the outbox: ${dead} dead rows, ${Math.round(Number(bytes) / 1_024)} KiB, vacuumed ${vacuums} times`;
}
