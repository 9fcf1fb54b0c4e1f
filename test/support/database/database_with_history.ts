/**
 * A database with history, created by bulk statements: accounts, apps, subscriptions, and a delivery log of 30 days
 * with realistic states. Its times come from the clock of this database. The engine ignores these rows, because none
 * of them is due.
 */

import { sql } from 'kysely';
import { bigintArray } from '../../../src/database/arrays.ts';
import type { Database } from '../../../src/database/database.ts';
import { newLane } from '../../../src/webhooks/subscriptions/delivery_id.ts';

/** Days of the history. */
export const historyDays = 30;
/** The kind of one event in 5,000. */
export const rareKind = 'issue.deleted';
/** The newest deliveries of the busy subscription, which have no attempts yet. */
const freshDeliveries = 20;

export interface Parties {
  accounts: number;
  apps: number;
  subscriptions: number;
}

/** Creates accounts, apps owned by `accountId`, and subscriptions: one for each account, the rest shared among the apps. */
export async function seedParties(db: Database, accountId: string, parties: Parties): Promise<void> {
  const { accounts, apps, subscriptions } = parties;
  await sql`
    insert into accounts (id, email, name)
    select gen_random_uuid(), 'seeded-' || number || '@example.com', 'Seeded ' || number
    from generate_series(1, ${accounts}::int) as number`.execute(db);
  await sql`
    insert into clients (id, name, redirect_uris, scopes, origin, may_subscribe, created_at)
    select gen_random_uuid()::text, 'Seeded App ' || number, array['https://app-' || number || '.example/callback'],
      '{read:posts,read:webhooks,write:webhooks}', 'account', true, now() - number * interval '1 hour'
    from generate_series(1, ${apps}::int) as number`.execute(db);
  await sql`
    insert into app_members (client_id, account_id, role)
    select id, ${accountId}, 'owner' from clients where name like 'Seeded App %'`.execute(db);
  await sql`
    insert into grants (id, account_id, client_id, scopes)
    select gen_random_uuid(), a.id, c.id, '{read:posts}'
    from (select id, row_number() over (order by email) as number from accounts where name like 'Seeded %') as a
    join (select id, row_number() over (order by name) as number from clients where name like 'Seeded App %') as c
      on c.number = 1 + a.number % ${apps}::int`.execute(db);
  const lanes = Array.from({ length: subscriptions }, newLane);
  await sql`
    with given as (
      select lane, number, gen_random_uuid() as id
      from unnest(${bigintArray(lanes)}::bigint[]) with ordinality as given (lane, number)
    ), app as (
      select id, row_number() over (order by name) as number from clients where name like 'Seeded App %'
    ), person as (
      select id, row_number() over (order by email) as number from accounts where name like 'Seeded %'
    )
    insert into subscriptions (id, lane, owner, account_id, client_id, url, kinds, signature, secret, state, created_at)
    select given.id, lane, case when person.id is null then 'client' else 'user' end, person.id,
      case when person.id is null then app.id end, 'https://127.0.0.1:10009/hooks/' || given.number, '{*}', 'nuncio', '',
      case when given.number % 50 = 0 then 'disabled' else 'active' end, now() - ${sql.lit(historyDays + 1)} * interval '1 day'
    from given
    left join person on person.number = given.number
    left join app on app.number = 1 + given.number % ${apps}::int`.execute(db);
  await sql`insert into lanes (id) select lane from subscriptions on conflict do nothing`.execute(db);
  await sql`insert into lane_progress (lane) select lane from subscriptions on conflict do nothing`.execute(
    db,
  );
}

/**
 * Replaces the log. Three of four deliveries belong to the busy subscription. The others are spread evenly over the
 * other subscriptions.
 * @param busyLane the lane of the busy subscription
 */
export async function seedLog(db: Database, busyLane: number, deliveries: number): Promise<void> {
  await makePartitions(db);
  await sql`truncate events, event_ids, deliveries, attempts, retries, delivery_stats, audit_entries`.execute(
    db,
  );
  // On one connection, because the planned history is a temporary table.
  await db.connection().execute(async (connection) => {
    await sql`set statement_timeout = 0`.execute(connection);
    await planHistory(connection, busyLane, deliveries);
    await writeLog(connection);
    await writeRetries(connection);
    await writeCounts(connection, busyLane);
    await sql`drop table planned`.execute(connection);
    // Reads every row: plans must not depend on which rows a sample happens to contain.
    await sql`set default_statistics_target = 1000`.execute(connection);
    await sql`analyze`.execute(connection);
    await sql`reset default_statistics_target`.execute(connection);
    await sql`reset statement_timeout`.execute(connection);
  });
}

/** Creates partitions for the past days, like those that the server creates for future days. */
async function makePartitions(db: Database): Promise<void> {
  await sql`
    select ensure_day_partition(parent, (now() at time zone 'utc')::date - ago)
    from unnest(array['events', 'deliveries', 'attempts']) as parent, generate_series(0, ${historyDays}::int) as ago`.execute(
    db,
  );
}

/** Chooses the outcome of each delivery, in chronological order. */
async function planHistory(connection: Database, busyLane: number, deliveries: number): Promise<void> {
  await sql`
    create temporary table planned as
    with other as (
      select lane, row_number() over (order by lane) - 1 as turn
      from subscriptions where lane <> ${sql.lit(busyLane)}
    ), counted as (
      select count(*) as lanes from other
    ), each as (
      select number, now() - ${sql.lit(historyDays)} * interval '1 day' * (1 - number / ${sql.lit(deliveries)}.0) as at,
        case when number % 4 <> 0 then ${sql.lit(busyLane)} else other.lane end as lane
      from generate_series(1, ${sql.lit(deliveries)}) as number
      cross join counted
      left join other on number % 4 = 0 and other.turn = (number / 4) % counted.lanes
    )
    select number as position, at, (at at time zone 'utc')::date as day, lane,
      row_number() over (partition by lane order by number) as sequence,
      case
        when number > ${sql.lit(deliveries - Math.ceil((freshDeliveries * 4) / 3))} then 'fresh'
        when number % 100 < 2 then 'failed'
        when number % 100 = 2 then 'held'
        when number % 100 = 3 then 'cancelled'
        when number % 100 < 9 then 'retried'
        else 'succeeded'
      end as fate,
      case when number % 5000 = 7 then ${sql.lit(rareKind)} when number % 10 = 0 then 'article.published' else 'push' end as kind
    from each`.execute(connection);
  await sql`analyze planned`.execute(connection);
}

async function writeLog(connection: Database): Promise<void> {
  await sql`
    insert into events (day, position, id, account_id, kind, body, created_at)
    select p.day, p.position,
      case when p.position % 10 = 1 then 'order-' || p.position else
        regexp_replace(lpad(to_hex((extract(epoch from p.at) * 1000)::bigint), 12, '0')
          || '7' || substr(md5(p.position::text), 1, 3) || '8' || substr(md5(p.position::text), 4, 15),
          '(.{8})(.{4})(.{4})(.{4})(.{12})', '\\1-\\2-\\3-\\4-\\5') end,
      s.account_id, p.kind, '{"ref":"refs/heads/' || md5(p.position::text) || '"}', p.at
    from planned p join subscriptions s on s.lane = p.lane order by p.position`.execute(connection);
  await sql`select setval('event_positions', (select max(position) from planned))`.execute(connection);
  await sql`
    insert into event_ids (id, content, created_at)
    select 'order-' || position, sha256(position::text::bytea), at from planned where position % 10 = 1`.execute(
    connection,
  );
  await sql`
    insert into deliveries (day, lane, sequence, event, created_at)
    select day, lane, sequence, position, at from planned order by position`.execute(connection);
  await sql`
    insert into attempts (day, lane, sequence, started_at, number, trigger, status, truncated, revision, duration_ms,
      first_byte_ms, error, headers, body)
    select day, lane, sequence, at + number * interval '1 minute', number, 's',
      case when fails then 500 else 200 end, false, 1, 20 + position % 200, 10 + position % 200,
      case when fails then 'unexpected_status' end, '{"content-type":"text/plain"}', 'ok'
    from (
      select p.*, number, fate in ('failed', 'held') or (fate = 'retried' and number = 1) as fails
      from planned p
      cross join lateral generate_series(1, case fate
        when 'fresh' then 0 when 'cancelled' then 0 when 'failed' then 3 when 'retried' then 2 else 1 end) as number
    ) as made order by position`.execute(connection);
  await sql`
    update lanes set next_sequence = ends.last + 1
    from (select lane, max(sequence) as last from planned group by lane) as ends
    where ends.lane = lanes.id`.execute(connection);
  await sql`
    update lane_progress p set owner = null, due_at = null, cursor = coalesce(ends.last, 0)
    from (select lane, max(sequence) filter (where fate <> 'fresh') as last from planned group by lane) as ends
    where ends.lane = p.lane`.execute(connection);
}

async function writeRetries(connection: Database): Promise<void> {
  await sql`
    insert into retries (lane, sequence, day, state, attempts, due_at)
    select lane, sequence, day, state, case state when 'failed' then 3 when 'cancelled' then 0 else 1 end,
      case when state = 'pending' then now() + interval '1 day' end
    from (
      select *, case when fate = 'held' and at > now() - interval '6 hours' then 'pending' else fate end as state
      from planned where fate in ('failed', 'held', 'cancelled')
    ) as kept order by position`.execute(connection);
}

/** Writes the counts for health, and the audit log: an entry for every tenth delivery, mostly about single tokens. */
async function writeCounts(connection: Database, busyLane: number): Promise<void> {
  await sql`
    insert into delivery_stats (lane, seconds, bucket, counts)
    select lane, seconds, to_timestamp(floor(extract(epoch from now() - step * seconds * interval '1 second') / seconds) * seconds),
      '{100,95,1,4,0,10,20,30,20,10,5,5,0,0,0,0,0,0,0,0,0,0,0,0,5,0}'
    from (values (300, 576), (3600, 744)) as kind (seconds, steps)
    cross join lateral generate_series(0, steps - 1) as step
    cross join (
      select 0::bigint as lane union all select ${busyLane}::bigint
      union all (select lane from subscriptions where lane <> ${busyLane} order by lane limit 100)
    ) as lanes
    -- The server may have written the newest one.
    on conflict do nothing`.execute(connection);
  await sql`
    insert into audit_entries (at, kind, account_id, client_id)
    select at, case when position % 200 = 0 then 'grant.created' else 'token.issued' end, s.account_id, s.client_id
    from planned p join subscriptions s on s.lane = p.lane where position % 10 = 0 order by position`.execute(
    connection,
  );
}
