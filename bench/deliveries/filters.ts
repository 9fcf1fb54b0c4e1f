/**
 * `npx node bench/deliveries.ts filters [deliveries] [subscriptions] [filters] [rounds]`: what filters cost. Rounds without and with
 * filters alternate on the same subscriptions, and each filter lets every event pass, so both send the same. Two shapes: 100 subscriptions for each
 * account, with different filters, so that each event meets 100 of them; and one for each account, so that each delivery has an evaluation
 * of its own.
 */

import { hash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import type { Database } from '../../src/database/database.ts';
import { type Filter, filterPath } from '../../src/events/filter.ts';
import { cpuMicros } from './processes.ts';
import {
  type BenchSubscriber,
  createAudience,
  makeBatches,
  openBench,
  percentile,
  publishBatches,
  startNuncio,
  startSubscriber,
  waitFor,
} from './support.ts';

const perAccount = 100;
const settleMs = 3_000;

export async function measureFilters([
  deliveriesText = '100000',
  sizeText = '10000',
  filtersText = '100',
  roundsText = '5',
]: string[]): Promise<void> {
  const [deliveries, size, count] = [deliveriesText, sizeText, filtersText].map(Number) as [
    number,
    number,
    number,
  ];
  const subscriber = await startSubscriber();
  const bench = await openBench();
  const server = await startNuncio(bench);
  try {
    const url = `http://127.0.0.1:${subscriber.ports.accept}/hooks`;
    const { accounts, publisherToken } = await createAudience(bench, size, () => url);
    const filters = Array.from({ length: count }, (_none, number) => filterOf(number));
    for (const shape of ['one', 'many'] as const) {
      const owners = shape === 'one' ? accounts : accounts.slice(0, Math.ceil(size / perAccount));
      if (shape === 'many') await gather(bench.db, owners);
      const events = shape === 'one' ? deliveries : Math.ceil(deliveries / perAccount);
      const run = async () => {
        await sleep(settleMs);
        const pids = [server.child.pid as number, ...bench.postgresPids()];
        const before = cpuMicros(pids);
        const perSecond = await measure(subscriber, deliveries, () =>
          publishBatches(bench, publisherToken, makeBatches(owners, events)),
        );
        return { perSecond, micros: (cpuMicros(pids) - before) / deliveries };
      };
      await run();
      const rounds: Record<'without' | 'with', Awaited<ReturnType<typeof run>>[]> = { without: [], with: [] };
      for (let round = 0; round < Number(roundsText); round += 1) {
        await setFilters(bench.db, []);
        rounds.without.push(await run());
        await setFilters(bench.db, filters);
        rounds.with.push(await run());
      }
      console.log(
        `${size} subscriptions, ${shape === 'one' ? 1 : perAccount} for each account, ${count} filters:`,
      );
      for (const [name, figures] of Object.entries(rounds)) {
        const rates = figures.map(({ perSecond }) => Math.round(perSecond)).join(', ');
        const micros = figures.map(({ micros }) => micros.toFixed(1)).join(', ');
        console.log(`  ${name} filters: ${rates} a second; ${micros} µs of server and database each`);
      }
      const median = (name: 'without' | 'with', what: 'perSecond' | 'micros') =>
        percentile(
          rounds[name].map((each) => each[what]),
          0.5,
        );
      const ratio = (what: 'perSecond' | 'micros') =>
        (median('with', what) / median('without', what)).toFixed(3);
      console.log(`  with/without, medians: rate ${ratio('perSecond')}, processor ${ratio('micros')}`);
    }
  } finally {
    await server.stop();
    await bench.close();
    subscriber.stop();
  }
}

/** Lets every event of the benchmark pass. @param number makes it different from the others */
function filterOf(number: number): Filter {
  return {
    all: [
      { path: '/ref', prefix: 'refs/heads/' },
      { not: { path: '/repository/name', in: [`other ${number}`, 'unknown'] } },
    ],
  };
}

/** Gives the filters to all subscriptions in turn; none removes them. */
async function setFilters(db: Database, filters: readonly Filter[]): Promise<void> {
  if (filters.length === 0) {
    await sql`update subscriptions set filter = null, filter_path = null, filter_digest = null`.execute(db);
    return;
  }
  const paths = filters.map(filterPath);
  await sql`
    update subscriptions s set filter = g.filter::json, filter_path = g.path::jsonpath, filter_digest = g.digest
    from (
      select id, (row_number() over (partition by account_id order by id) + row_number() over (order by account_id)) % ${filters.length} as number
      from subscriptions
    ) as numbered
    join unnest(
      ${filters.map((filter) => JSON.stringify(filter))}::text[], ${paths}::text[],
      ${paths.map((path) => hash('sha256', path, 'buffer'))}::bytea[]
    ) with ordinality as g (filter, path, digest, place) on g.place = numbered.number + 1
    where s.id = numbered.id`.execute(db);
}

/** Moves all subscriptions to the first accounts, the same number for each. */
async function gather(db: Database, accounts: readonly string[]): Promise<void> {
  await sql`
    update subscriptions s set account_id = o.account_id, grant_id = o.grant_id
    from (select id, row_number() over (order by id) % ${accounts.length} as number from subscriptions) as numbered
    join (
      select account_id, id as grant_id, row_number() over (order by id) - 1 as number from grants
      where account_id = any(${accounts}::uuid[])
    ) as o on o.number = numbered.number
    where s.id = numbered.id`.execute(db);
}

/** @returns deliveries a second, from the first request to the last receipt */
async function measure(
  subscriber: BenchSubscriber,
  deliveries: number,
  publish: () => Promise<void>,
): Promise<number> {
  await subscriber.ask('reset');
  const startedAt = performance.now();
  await publish();
  await waitFor(subscriber, deliveries);
  return deliveries / ((performance.now() - startedAt) / 1_000);
}
