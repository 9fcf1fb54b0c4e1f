/**
 * `npx node bench/deliveries.ts latency [seconds] [rates…]`: the time from publishing to the subscriber, at 100 and
 * 1,000 events a second with 100 subscriptions. Nuncio (over HTTP), graphile-worker and pg-boss (each in this
 * process, with the settings of bench/senders.ts, which favour throughput) run one after the other.
 */

import { randomUUID } from 'node:crypto';
import { graphileWorkerSettings, openGraphileWorkerSender } from '../support/graphile_worker_sender.ts';
import { openPgBossSender, pgBossSettings } from '../support/pg_boss_sender.ts';
import { startPostgres } from '../support/postgres.ts';
import { record } from '../support/record.ts';
import type { Sender } from '../support/sender.ts';
import { describeLatency, measureSteady } from './steady.ts';
import {
  type BenchSubscriber,
  createAudience,
  eventBody,
  openBench,
  publishEvents,
  startNuncio,
  startSubscriber,
} from './support.ts';

const subscriptions = 100;
const warmSeconds = 3;

export async function measureLatency([secondsText = '10', ...rateTexts]: string[]): Promise<void> {
  const rates = rateTexts.length > 0 ? rateTexts.map(Number) : [100, 1_000];
  const seconds = Number(secondsText);
  const subscriber = await startSubscriber();
  try {
    await ofNuncio(subscriber, rates, seconds);
    await ofSender('graphile-worker', subscriber, rates, seconds, (url, origin) =>
      openGraphileWorkerSender(url, origin, graphileWorkerSettings),
    );
    await ofSender('pg-boss', subscriber, rates, seconds, (url, origin) =>
      openPgBossSender(url, origin, pgBossSettings),
    );
  } finally {
    subscriber.stop();
  }
}

type Publish = (marks: number[]) => Promise<void>;

async function measureRates(
  name: string,
  subscriber: BenchSubscriber,
  rates: number[],
  seconds: number,
  publish: Publish,
): Promise<void> {
  await measureSteady(subscriber, 1_000, warmSeconds, publish);
  for (const rate of rates) {
    const latency = await measureSteady(subscriber, rate, seconds, publish);
    const { p50, p99, max } = latency;
    record({ of: 'latency', sender: name, rate, p50Ms: p50, p99Ms: p99, maxMs: max });
    console.log(`${name}, ${rate} a second: ${describeLatency(latency)}`);
  }
}

async function ofNuncio(subscriber: BenchSubscriber, rates: number[], seconds: number): Promise<void> {
  const bench = await openBench();
  const server = await startNuncio(bench);
  try {
    const url = `http://127.0.0.1:${subscriber.ports.accept}/hooks`;
    const { accounts, publisherToken } = await createAudience(bench, subscriptions, () => url);
    let next = 0;
    await measureRates('Nuncio', subscriber, rates, seconds, (marks) =>
      publishEvents(
        bench,
        publisherToken,
        marks.map((mark) => ({
          kind: 'push',
          account: accounts[next++ % accounts.length],
          body: eventBody(mark),
        })),
      ),
    );
  } finally {
    await server.stop();
    await bench.close();
  }
}

async function ofSender(
  name: string,
  subscriber: BenchSubscriber,
  rates: number[],
  seconds: number,
  open: (databaseUrl: string, origin: string) => Promise<Sender>,
): Promise<void> {
  const postgres = await startPostgres();
  const database = await postgres.createDatabase();
  const sender = await open(database.url, `http://127.0.0.1:${subscriber.ports.accept}`);
  try {
    await sender.start();
    let next = 0;
    await measureRates(name, subscriber, rates, seconds, (marks) =>
      sender.publish(
        marks.map((mark) => ({
          id: randomUUID(),
          path: `/hooks/${next % subscriptions}`,
          sequence: next++,
          secret: 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
          body: JSON.stringify(eventBody(mark)),
        })),
      ),
    );
  } finally {
    await sender.stop();
    await database.drop();
    await postgres.stop();
  }
}
