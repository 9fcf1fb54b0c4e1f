/**
 * `npx node bench/deliveries.ts database [events] [subscriptions…]`: the processor time that each statement of a
 * delivery costs PostgreSQL. The statements run one after the other with nothing else running: publishing in batches
 * of 1,000, the passes of the fan-out, outcomes in batches of 150. schedstat provides nanoseconds for the
 * connection's own process; PostgreSQL's helper processes (walwriter, checkpointer, …) are listed separately. Needs
 * no quiet machine, because a waiting process uses no processor time.
 */

import { readFileSync } from 'node:fs';
import { sql } from 'kysely';
import { newId } from '../../src/crypto/ids.ts';
import { type Database, openDatabase } from '../../src/database/database.ts';
import { createCatalogue } from '../../src/events/catalogue.ts';
import { storeEvents } from '../../src/events/store.ts';
import { loadPlatform } from '../../src/platform.ts';
import { fanOut, kindArrays, type LaneAddition } from '../../src/webhooks/fan_out/fan_out.ts';
import { markDue } from '../../src/webhooks/fan_out/mark_due.ts';
import { passLimits } from '../../src/webhooks/fan_out/outbox_selection.ts';
import { Turns } from '../../src/webhooks/fan_out/turns.ts';
import { writeOutcomes } from '../../src/webhooks/lanes/outcome_store.ts';
import { createSubscribers, databaseWork, eventBody, openBench, percentile } from './support.ts';

const lotSize = 150;
const rounds = 5;
const node = '4711';

export async function measureDatabase([eventsText = '20000', ...sizeTexts]: string[]): Promise<void> {
  const events = Number(eventsText);
  const sizes = sizeTexts.length > 0 ? sizeTexts.map(Number) : [100, 10_000];
  const bench = await openBench();
  const { eventKinds } = await loadPlatform(null);
  const kinds = kindArrays(createCatalogue(eventKinds));
  const options = `${new URL(bench.databaseUrl).searchParams.get('options') ?? ''} -c enable_seqscan=off -c jit=off`;
  const url = new URL(bench.databaseUrl);
  url.searchParams.set('options', options.trim());
  const publisher = openDatabase({ connectionString: bench.databaseUrl, connectionsMax: 1 });
  const engine = openDatabase({ connectionString: url.href, connectionsMax: 1 });
  try {
    await sql`insert into nodes (id, host, process, alive_until, generation) values (${node}::bigint, 'bench', 'bench', now() + interval '1 day', 2)`.execute(
      engine,
    );
    for (const size of sizes) {
      const { accounts } = await createSubscribers(bench, size, () => 'http://127.0.0.1:9/hooks');
      const meter = await openMeter(bench.postgresPids, publisher, engine);
      const found: (Lap & { outcome: number; wal: number })[] = [];
      for (let round = 0; round <= rounds; round += 1) {
        const count = round === 0 ? Math.max(20_000, size) : events;
        const before = await databaseWork(bench.db);
        meter.lap();
        for (let from = 0; from < count; from += 1_000) {
          const batch = Array.from({ length: Math.min(1_000, count - from) }, (_, index) => ({
            id: newId(),
            accountId: accounts[(from + index) % accounts.length] as string,
            kind: 'push',
            body: Buffer.from(JSON.stringify(eventBody(from + index))),
            version: null,
            traceparent: null,
          }));
          await storeEvents(publisher, batch, []);
        }
        const published = meter.lap();
        const additions: LaneAddition[] = [];
        const turns = new Turns(new Date().toISOString().slice(0, 10));
        const heavy = {
          resting: [],
          entitled: [],
          heavyShare: passLimits.deliveries,
          skipsFrom: passLimits.deliveries,
        };
        for (;;) {
          await turns.update(engine);
          const range = turns.range({ limits: passLimits, heavy, isApart: () => false });
          if (range === undefined) break;
          const pass = await fanOut(engine, kinds, range);
          turns.advance(pass);
          // Only in the first round: the node then knows that it holds the lanes.
          if (round === 0) await markDue(engine, pass.additions, node);
          additions.push(...pass.additions);
        }
        const fannedOut = meter.lap();
        for (const lot of lotsOf(additions)) {
          const lanes = new Map(lot.map(({ lane, sequence }) => [lane, sequence]));
          const progress = [...lanes].map(([lane, cursor]) => ({
            lane,
            cursor,
            failures: 0,
            pauseMs: 0,
            mayLag: cursor % 128 !== 0,
          }));
          await writeOutcomes(engine, node, progress, lot.map(outcomeOf));
        }
        const recorded = meter.lap();
        const { walBytes } = await databaseWork(bench.db);
        if (round === 0) continue;
        found.push({
          publisher: published.publisher / count,
          engine: fannedOut.engine / count,
          outcome: recorded.engine / count,
          helpers: (published.helpers + fannedOut.helpers + recorded.helpers) / count,
          wal: (walBytes - before.walBytes) / count,
        });
      }
      const each = (key: keyof (typeof found)[0], digits = 2) =>
        `${percentile(
          found.map((lap) => lap[key]),
          0.5,
        ).toFixed(digits)} (${Math.min(...found.map((lap) => lap[key])).toFixed(digits)})`;
      console.log(
        `${size} subscriptions, µs for each delivery, median (least) of ${rounds}: event ${each('publisher')}, ` +
          `fan-out ${each('engine')}, outcome ${each('outcome')}, helpers ${each('helpers')}; WAL ${each('wal', 0)} bytes`,
      );
    }
  } finally {
    await publisher.destroy();
    await engine.destroy();
    await bench.close();
  }
}

/** Yields deliveries in roughly the order of sending: the lanes of a pass take turns. */
function* lotsOf(
  additions: readonly LaneAddition[],
): Generator<{ lane: number; sequence: number; day: string }[]> {
  let lot: { lane: number; sequence: number; day: string }[] = [];
  for (const { lane, first, day, events } of additions) {
    for (const [index] of events.entries()) {
      lot.push({ lane, sequence: first + index, day });
      if (lot.length < lotSize) continue;
      yield lot;
      lot = [];
    }
  }
  if (lot.length > 0) yield lot;
}

function outcomeOf({ lane, sequence, day }: { lane: number; sequence: number; day: string }) {
  return {
    lane,
    sequence,
    day,
    attempt: {
      number: 1,
      trigger: 's' as const,
      revision: 1,
      startedAt: performance.now() - 5,
      durationMs: 4.2,
      firstByteMs: 4.1,
      status: 200,
      error: null,
      connection: null,
      headers: '{"content-type":"text/plain","content-length":"2"}',
      body: Buffer.from('ok'),
      truncated: false,
    },
    retry: null,
    hadRetry: false,
    wasManual: false,
  };
}

interface Lap {
  publisher: number;
  engine: number;
  helpers: number;
}

async function openMeter(pids: () => number[], publisher: Database, engine: Database) {
  const pidOf = async (db: Database) => {
    const { rows } = await sql<{ pid: number }>`select pg_backend_pid() as pid`.execute(db);
    return rows[0]?.pid ?? 0;
  };
  const own = { publisher: await pidOf(publisher), engine: await pidOf(engine) };
  const isBackend = (pid: number) => /nuncio .*\[local\]/.test(readFileSync(`/proc/${pid}/cmdline`, 'utf8'));
  let before = new Map<number, number>();
  return {
    /** Microseconds that each process has used since the last lap. */
    lap(): Lap {
      const now = new Map(pids().map((pid) => [pid, processorMicros(pid)]));
      const used = (pid: number) => (now.get(pid) ?? 0) - (before.get(pid) ?? 0);
      const helpers = [...now.keys()].filter((pid) => !isBackend(pid));
      const lap = {
        publisher: used(own.publisher),
        engine: used(own.engine),
        helpers: helpers.reduce((sum, pid) => sum + used(pid), 0),
      };
      before = now;
      return lap;
    },
  };
}

function processorMicros(pid: number): number {
  try {
    return Number(readFileSync(`/proc/${pid}/schedstat`, 'utf8').split(' ')[0]) / 1_000;
  } catch {
    return 0;
  }
}
