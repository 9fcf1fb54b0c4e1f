/** What is left when nothing happens any more, and what a light load costs. */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { applyRetention } from '../../src/webhooks/log/retention.ts';
import { cpuMicros, residentBytes } from '../deliveries/processes.ts';
import { measureSteady } from '../deliveries/steady.ts';
import { eventBody, publishEvents, waitFor } from '../deliveries/support.ts';
import { type CrowdMember, makeCrowd } from './crowd.ts';
import type { Incident, Row } from './row.ts';
import { type Stage, withStage } from './stage.ts';

const churned = 5_700;
const mebibyte = 1_048_576;

/** Subscriptions that were made and deleted long ago leave no rows. */
export const churn: Incident = (size) =>
  withStage(size, async (stage) => {
    const { db } = stage.bench;
    const crowd = await makeCrowd(stage.bench, {
      users: 3,
      subscriptionsOfEach: churned / 3,
      urlOf: () => stage.othersUrl,
    });
    const lanes = crowd.flatMap((member) => member.lanes);
    await sql`
      update subscriptions set state = 'ended', ended_at = now() - interval '60 days'
      where lane = any(${lanes}::bigint[])`.execute(db);
    await applyRetention(db);
    const left = await countRowsOf(stage, lanes);
    const rows = [...left].map(([table, count]) => `${count} in ${table}`).join(', ');
    const count = [...left.values()].reduce((sum, each) => sum + each, 0);
    return [row('churn', [{ what: 'rows left', value: count, max: 0 }], rows)];
  });

/** Counts the rows of these lanes in each table that refers to lanes. */
async function countRowsOf({ bench: { db } }: Stage, lanes: readonly number[]): Promise<Map<string, number>> {
  const { rows: tables } = await sql<{ name: string; column: string }>`
    select quote_ident(c.table_name) as name, quote_ident(c.column_name) as column
    from information_schema.columns c
    join information_schema.tables t using (table_schema, table_name)
    where c.table_schema = current_schema() and t.table_type = 'BASE TABLE' and c.data_type = 'bigint'
      and (c.column_name = 'lane' or (c.table_name = 'lanes' and c.column_name = 'id'))
      and not (select relispartition from pg_class
        where oid = (quote_ident(c.table_schema) || '.' || quote_ident(c.table_name))::regclass)`.execute(db);
  const counts = new Map<string, number>();
  for (const { name, column } of tables) {
    const { rows } = await sql<{ count: number }>`
      select count(*)::int as count from ${sql.raw(name)} where ${sql.raw(column)} = any(${lanes}::bigint[])`.execute(
      db,
    );
    if (rows[0]?.count) counts.set(name, rows[0].count);
  }
  return counts;
}

/** The server's memory a minute after a load of 60,000 deliveries. */
export const rest: Incident = (size) =>
  withStage(size, async (stage) => {
    const crowd = await makeCrowd(stage.bench, {
      users: 100,
      subscriptionsOfEach: 1,
      urlOf: () => stage.othersUrl,
    });
    const each = size.of(200, 600);
    for (const { accountId } of crowd) await stage.publish(accountId, each);
    await waitFor(stage.others, crowd.length * each);
    const busy = residentBytes(stage.pid()) / mebibyte;
    await sleep(size.of(30_000, 60_000));
    const resting = residentBytes(stage.pid()) / mebibyte;
    return [
      row(
        'rest',
        [{ what: 'resident, MiB', value: resting, max: 200 }],
        `${Math.round(busy)} MiB at the end of the load`,
      ),
    ];
  });

/** A hundred single events a second. */
export const single: Incident = (size) =>
  withStage(size, async (stage) => {
    const { bench, others, token } = stage;
    const crowd = await makeCrowd(bench, {
      users: 100,
      subscriptionsOfEach: 1,
      urlOf: () => stage.othersUrl,
    });
    let next = 0;
    const publish = async (marks: number[]) => {
      for (const mark of marks) {
        const { accountId } = crowd[next++ % crowd.length] as CrowdMember;
        await publishEvents(bench, token, [{ kind: 'push', account: accountId, body: eventBody(mark) }]);
      }
    };
    await measureSteady(others, 100, 8, publish);
    const seconds = size.of(15, 30);
    const before = { server: cpuMicros([stage.pid()]), postgres: cpuMicros(bench.postgresPids()) };
    const latency = await measureSteady(others, 100, seconds, publish);
    const used = {
      server: cpuMicros([stage.pid()]) - before.server,
      postgres: cpuMicros(bench.postgresPids()) - before.postgres,
    };
    const eventMs = (micros: number) => (micros / 1_000 / latency.count).toFixed(2);
    const result = row(
      'single-100',
      [
        { what: 'share of a core, server', value: used.server / 1e6 / seconds, max: 0.2 },
        { what: 'p50, ms', value: latency.p50, max: 4 },
        { what: 'p99, ms', value: latency.p99, max: 10 },
      ],
      `ms of processor time for each event: server ${eventMs(used.server)}, PostgreSQL ${eventMs(used.postgres)}`,
    );
    return [{ ...result, phases: { alone: latency } }];
  });

function row(incident: string, checks: Row['checks'], note: string): Row {
  return { incident, phases: {}, missing: null, checks, note };
}
