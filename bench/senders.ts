/**
 * How fast this machine can send deliveries: the bare loop, and two senders built on widely used queues.
 *
 *   node bench/senders.ts [--jobs 20000] [--subscriptions 1] [--runs 3] [--tries 12] [--limit 60] [--only bare,pg-boss]
 *                         [--graphile-worker '{"concurrentJobs":24}'] [--pg-boss '{"batchSize":100}']
 *
 * `live`: published in batches of 1,000 while the sender works, timed from the first batch to the last receipt.
 * `backlog`: all published before the sender starts, timed from its start to the last receipt.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { runBareLoop } from './support/bare_loop.ts';
import { makeDeliveries } from './support/deliveries.ts';
import { graphileWorkerSettings, openGraphileWorkerSender } from './support/graphile_worker_sender.ts';
import { type Cost, measure, median, monotonicMs } from './support/measure.ts';
import { openPgBossSender, pgBossSettings } from './support/pg_boss_sender.ts';
import { startPostgres } from './support/postgres.ts';
import type { Sender } from './support/sender.ts';
import { startSubscriber } from './support/subscriber.ts';

const batchSize = 1_000;
/** Warm-up for the compiler: the first 20,000 deliveries are a third slower than those after 100,000. */
const warmUpJobs = 20_000;
/** The bare loop makes this many times as many deliveries; otherwise it would finish within half a second. */
const bareFactor = 5;
/**
 * A run is repeated, whatever its result, if other processes used more than this share of one core. No other
 * criterion discards a run, and it applies to all senders alike.
 */
const foreignShareMax = 0.15;
/** Timeout for writing what is in flight at the last receipt. */
const recordTimeoutMs = 10_000;

const { values: flags } = parseArgs({
  options: {
    jobs: { type: 'string', default: '20000' },
    subscriptions: { type: 'string', default: '1' },
    runs: { type: 'string', default: '3' },
    tries: { type: 'string', default: '12' },
    limit: { type: 'string', default: '60' },
    only: { type: 'string', default: 'bare,graphile-worker,pg-boss' },
    'graphile-worker': { type: 'string', default: '{}' },
    'pg-boss': { type: 'string', default: '{}' },
  },
});
const subscriptions = Number(flags.subscriptions);
const limitMs = Number(flags.limit) * 1_000;

type Mode = 'live' | 'backlog';
type Open = (databaseUrl: string, origin: string) => Promise<Sender>;

const graphileWorker = { ...graphileWorkerSettings, ...JSON.parse(flags['graphile-worker']) };
const pgBoss = { ...pgBossSettings, ...JSON.parse(flags['pg-boss']) };
const senders: Record<string, Open> = {
  'graphile-worker': (url, origin) => openGraphileWorkerSender(url, origin, graphileWorker),
  'pg-boss': (url, origin) => openPgBossSender(url, origin, pgBoss),
};

interface Run {
  /** Deliveries a second. */
  rate: number;
  delivered: number;
  cost: Cost;
}

const contestants: Record<string, (jobs: number) => Promise<Run>> = {
  bare: (jobs) => runBare(jobs * bareFactor),
};
for (const [name, open] of Object.entries(senders)) {
  for (const mode of ['live', 'backlog'] as const) {
    contestants[`${name}, ${mode}`] = (jobs) => runSender(open, jobs, mode);
  }
}
const wanted = Object.keys(contestants).filter((name) =>
  flags.only.split(',').includes(name.split(', ')[0] ?? ''),
);
const postgres = await startPostgres();
const subscriber = await startSubscriber();
const runs = new Map<string, Run[]>();
try {
  for (const name of wanted) await contestants[name]?.(warmUpJobs);
  // In turns, because other load on the machine varies from minute to minute.
  for (let count = 0; count < Number(flags.tries); count++) {
    for (const name of wanted) {
      if (quiet(name).length < Number(flags.runs)) await note(name);
    }
  }
} finally {
  await subscriber.stop();
  await postgres.stop();
}
print();

async function note(name: string): Promise<void> {
  const run = await contestants[name]?.(Number(flags.jobs));
  if (run === undefined) throw new Error(`there is no ${name}`);
  runs.set(name, [...(runs.get(name) ?? []), run]);
  const foreign = Math.round(100 * foreignShare(run));
  console.error(`${name}: ${Math.round(run.rate)} a second; others used ${foreign} % of a core`);
}

function foreignShare({ cost }: Run): number {
  return cost.foreignCpu / cost.seconds;
}

/** Returns the runs that count: all of them where the load of other processes is unknown (no /proc). */
function quiet(name: string): Run[] {
  return (runs.get(name) ?? []).filter((run) => !(foreignShare(run) > foreignShareMax));
}

async function runBare(count: number): Promise<Run> {
  const database = await postgres.createDatabase();
  try {
    const deliveries = makeDeliveries(count, subscriptions);
    const { result, cost } = await measure(database.client, [subscriber.pid], () =>
      runBareLoop(subscriber.origin, deliveries),
    );
    return { rate: result, delivered: count, cost };
  } finally {
    await database.drop();
  }
}

async function runSender(open: Open, jobs: number, mode: Mode): Promise<Run> {
  const database = await postgres.createDatabase();
  const sender = await open(database.url, subscriber.origin);
  try {
    await subscriber.expect({ receipts: jobs });
    const deliveries = makeDeliveries(jobs, subscriptions);
    const publish = async () => {
      for (let from = 0; from < jobs; from += batchSize) {
        await sender.publish(deliveries.slice(from, from + batchSize));
      }
    };
    if (mode === 'backlog') await publish();
    else await sender.start();
    const { result, cost } = await measure(database.client, [subscriber.pid], async () => {
      const startedAt = monotonicMs();
      await (mode === 'backlog' ? sender.start() : publish());
      await Promise.race([subscriber.reached(), sleep(limitMs, undefined, { ref: false })]);
      const { received, lastAt } = await subscriber.read();
      await settle(sender, received);
      return { delivered: received, rate: (received * 1_000) / (lastAt - startedAt) };
    });
    return { ...result, cost };
  } finally {
    await sender.stop();
    await database.drop();
  }
}

/** Waits until all delivered deliveries are recorded. @throws Error on timeout */
async function settle(sender: Sender, delivered: number): Promise<void> {
  const giveUp = monotonicMs() + recordTimeoutMs;
  while ((await sender.recorded()) < delivered) {
    if (monotonicMs() > giveUp) throw new Error(`${await sender.recorded()} of ${delivered} were recorded`);
    await sleep(20);
  }
}

function print(): void {
  const bare = median(quiet('bare').map(({ rate }) => rate));
  const rows = wanted.flatMap((name) => {
    const counted = quiet(name);
    if (counted.length === 0) {
      console.error(`${name}: others disturbed every run`);
      return [];
    }
    const each = (value: (cost: Cost) => number) =>
      median(counted.map(({ cost, delivered }) => value(cost) / delivered));
    const rates = counted.map((run) => run.rate);
    return {
      sender: name,
      'a second': Math.round(median(rates)),
      from: Math.round(Math.min(...rates)),
      to: Math.round(Math.max(...rates)),
      'of bare': Number((median(rates) / bare).toFixed(2)),
      'Node µs': Math.round(each(({ nodeCpu }) => nodeCpu * 1e6)),
      'PostgreSQL µs': Math.round(each(({ postgresCpu }) => postgresCpu * 1e6)),
      'subscriber µs': Math.round(each(({ otherCpu }) => otherCpu * 1e6)),
      'WAL bytes': Math.round(each(({ walBytes }) => walBytes)),
      statements: Number(each(({ statements }) => statements).toFixed(3)),
      runs: counted.length,
      disturbed: (runs.get(name) ?? []).length - counted.length,
    };
  });
  console.table(rows);
}
