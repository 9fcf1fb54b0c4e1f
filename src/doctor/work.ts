/** The work of the servers: whether nodes run, what waits and for whom, and what was set aside. */

import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { readDeliveriesDays } from '../database/retention.ts';
import { findKeptDays } from '../webhooks/log/kept_days.ts';
import { countExpiringParked } from '../webhooks/log/retention.ts';
import { type Check, check, countText, durationText, type Probe, type State } from './report.ts';

/** Seconds that the oldest waiting event or lane may wait. */
const waiting = { warning: 30, error: 600 };
/** The accounts with the largest backlog that are named. */
const accountsMax = 5;
/** Retries that are counted at most. */
const countedMax = 100_000;

export function workProbes(db: Database): readonly Probe[] {
  return [
    { name: 'nodes', run: () => checkNodes(db) },
    { name: 'leader', run: () => checkLeases(db) },
    { name: 'backlog.events', run: () => checkOutbox(db) },
    { name: 'backlog.lanes', run: () => checkLanes(db) },
    { name: 'backlog.accounts', run: () => checkAccounts(db) },
    { name: 'backlog.days', run: () => checkKeptDays(db) },
    { name: 'backlog.inbox', run: () => checkInbox(db) },
    { name: 'events.parked', run: () => checkParked(db) },
    { name: 'events.rejected', run: () => checkRejected(db) },
    { name: 'subscriptions', run: () => checkSubscriptions(db) },
  ];
}

function stateOf(seconds: number): State {
  return seconds < waiting.warning ? 'ok' : seconds < waiting.error ? 'warning' : 'error';
}

async function checkNodes(db: Database): Promise<Check> {
  const { rows } = await sql<{ alive: number; silent: number; host: string | null }>`
    select count(*) filter (where alive_until > now())::int as alive,
      count(*) filter (where silent_heartbeats = heartbeats and silent_epoch = current_epoch())::int as silent,
      min(split_part(host, ' ', 1)) filter (where silent_heartbeats = heartbeats and silent_epoch = current_epoch()) as host
    from nodes`.execute(db);
  const { alive, silent, host } = rows[0] as (typeof rows)[number];
  const values = { alive, silent };
  if (alive === 0) {
    return check(
      'nodes',
      'warning',
      'no server runs on this database',
      'Start one with nuncio start. Nothing is sent until then.',
      values,
    );
  }
  if (silent > 0) {
    return check(
      'nodes',
      'warning',
      `${countText(silent, 'node')} has no heartbeat (${host})`,
      'Its process is paused, or has lost the database. Others take over its work; restart it if it does not recover.',
      values,
    );
  }
  return check('nodes', 'ok', `${countText(alive, 'node')}`, null, values);
}

async function checkLeases(db: Database): Promise<Check> {
  const { rows } = await sql<{ name: string; seconds: number | null; is_held: boolean; has_nodes: boolean }>`
    select name, extract(epoch from now() - nullif(expires_at, '-infinity'))::float8 as seconds,
      holder is not null and expires_at > now() as is_held,
      exists (select from nodes where alive_until > now()) as has_nodes
    from leases where name = 'fan-out'`.execute(db);
  const row = rows[0];
  if (row === undefined || row.is_held || !row.has_nodes)
    return check('leader', 'ok', row?.is_held ? 'a node fans out' : 'no node runs, so none fans out');
  // Between two holders, the lease is free for a moment.
  if ((row.seconds ?? 0) < waiting.warning) return check('leader', 'ok', 'the leader is changing');
  return check(
    'leader',
    'error',
    `nodes run, but none has fanned out events for ${durationText(row.seconds ?? 0)}`,
    'Read the logs of the nodes at level 50. Events are stored, but get no deliveries.',
  );
}

async function checkOutbox(db: Database): Promise<Check> {
  const { rows } = await sql<{ events: number; seconds: number | null }>`
    select (select coalesce(sum(size), 0)::float8 from (select size from outbox limit ${countedMax}) as counted) as events,
      (select extract(epoch from now() - e.created_at)::float8
        from (select day, positions[1] as position from outbox order by added_by limit 1) as oldest
        join events e using (day, position)) as seconds`.execute(db);
  const { events, seconds } = rows[0] as (typeof rows)[number];
  const values = { events, oldest_seconds: seconds === null ? null : Math.round(seconds) };
  if (seconds === null) return check('backlog.events', 'ok', 'every event has its deliveries', null, values);
  const state = stateOf(seconds);
  return check(
    'backlog.events',
    state,
    `${countText(events, 'event')} without deliveries; the oldest waits for ${durationText(seconds)}`,
    state === 'ok' ? null : 'Check that a node runs (nodes, leader), dead_rows and the load of the database.',
    values,
  );
}

async function checkLanes(db: Database): Promise<Check> {
  const { rows } = await sql<{ lanes: number; seconds: number | null }>`
    select count(*)::int as lanes, extract(epoch from now() - min(due_at))::float8 as seconds
    from lane_progress where owner is null and due_at <= now() and not is_pulled`.execute(db);
  const { lanes, seconds } = rows[0] as (typeof rows)[number];
  const values = { lanes, oldest_seconds: seconds === null ? null : Math.round(seconds) };
  if (seconds === null) return check('backlog.lanes', 'ok', 'no subscription waits for a node', null, values);
  const state = stateOf(seconds);
  return check(
    'backlog.lanes',
    state,
    `${countText(lanes, 'subscription')} with due deliveries; the first waits for a node for ${durationText(seconds)}`,
    state === 'ok' ? null : 'Nodes do not keep up: add one, or check why those that run are slow.',
    values,
  );
}

/** Who has the most waiting. One account's backlog does not delay others, but tells whose subscriber is down. */
async function checkAccounts(db: Database): Promise<Check> {
  const { rows } = await sql<{ account: string; retries: number }>`
    select coalesce(s.account_id::text, s.client_id) as account, count(*)::int as retries
    from (select lane from retries where due_at is not null order by due_at limit ${countedMax}) as r
    join subscriptions s on s.lane = r.lane
    group by 1 order by 2 desc limit ${accountsMax}`.execute(db);
  if (rows.length === 0) return check('backlog.accounts', 'ok', 'no delivery waits for a retry');
  const most = rows.map(({ account, retries }) => `${account}: ${retries}`).join(', ');
  return check('backlog.accounts', 'ok', `retries waiting, by account or app: ${most}`, null, {
    ...Object.fromEntries(rows.map(({ account, retries }) => [account, retries])),
  });
}

/** A day is dropped as a whole, so a single slow subscription can keep the events and deliveries of all accounts. */
async function checkKeptDays(db: Database): Promise<Check> {
  const { count, oldest, subscriptions } = await findKeptDays(db);
  if (oldest === null) return check('backlog.days', 'ok', 'no day is kept for longer than configured');
  const values = { days: count, oldest, subscriptions: subscriptions.join(' ') };
  const reason =
    subscriptions.length > 0
      ? `deliveries of subscription ${subscriptions.join(', ')} wait`
      : 'their events or partitions wait';
  return check(
    'backlog.days',
    'warning',
    `${countText(count, 'day')} since ${oldest} should have been deleted: ${reason}`,
    subscriptions.length > 0
      ? 'If these are too slow for their events, have their owners raise rate_limit, or disable them: their waiting deliveries are then deleted.'
      : 'Look at backlog.events and partitions, and for "retention" in the logs of the nodes.',
    values,
  );
}

async function checkInbox(db: Database): Promise<Check> {
  const { rows } = await sql<{ seconds: number | null; is_blocked: boolean; is_full: boolean }>`
    select extract(epoch from now() - (select min(published_at) from (
        select published_at from inbox limit ${countedMax}) as counted))::float8 as seconds,
      is_blocked, is_full from intake`.execute(db);
  const { seconds, is_blocked: isBlocked, is_full: isFull } = rows[0] as (typeof rows)[number];
  const oldest = seconds === null ? null : Math.round(seconds);
  const values = { oldest_seconds: oldest, is_blocked: isBlocked, is_full: isFull };
  if (isBlocked || isFull) {
    return check(
      'backlog.inbox',
      'error',
      isFull
        ? 'publishing by SQL fails, because too many events were rejected'
        : 'publishing by SQL fails for accounts with rejected events, because there are too many',
      'Retry or discard them: nuncio rejected list.',
      values,
    );
  }
  if (seconds === null) return check('backlog.inbox', 'ok', 'no event published by SQL waits', null, values);
  const state = stateOf(seconds);
  return check(
    'backlog.inbox',
    state,
    `an event published by SQL waits for ${durationText(seconds)}`,
    state === 'ok' ? null : 'No node takes events in: check that one runs, and its log.',
    values,
  );
}

async function checkParked(db: Database): Promise<Check> {
  const { rows } = await sql<{ count: number; reason: string | null }>`
    select count(*)::int as count, max(reason) as reason from (
      select reason from parked_events limit ${countedMax}) as counted`.execute(db);
  const { count, reason } = rows[0] as (typeof rows)[number];
  if (count === 0) return check('events.parked', 'ok', 'no event is parked', null, { count });
  const expiring = await countExpiringParked(db);
  return check(
    'events.parked',
    expiring > 0 ? 'error' : 'warning',
    `${countText(count, 'event')} could not be fanned out (${reason})`,
    expiring > 0
      ? `Retry them now (nuncio parked retry): ${expiring} will be deleted within three days.`
      : `Read the reasons (nuncio parked list), then retry: nuncio parked retry. They are deleted after ${await readDeliveriesDays(db)} days.`,
    { count, expiring },
  );
}

async function checkRejected(db: Database): Promise<Check> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from (select from rejected_events limit ${countedMax}) as counted`.execute(
    db,
  );
  const count = rows[0]?.count ?? 0;
  if (count === 0) return check('events.rejected', 'ok', 'no event is rejected', null, { count });
  return check(
    'events.rejected',
    'warning',
    `${countText(count, 'event')} published by SQL failed validation`,
    'Read the reasons (nuncio rejected list), then retry or discard them.',
    { count },
  );
}

async function checkSubscriptions(db: Database): Promise<Check> {
  const { rows } = await sql<{ active: number; failing: number }>`
    select count(*)::int as active, count(*) filter (where p.failing_since < now() - interval '1 hour')::int as failing
    from (select lane from subscriptions where state = 'active' limit ${countedMax}) as s
    join lane_progress p on p.lane = s.lane`.execute(db);
  const { active, failing } = rows[0] as (typeof rows)[number];
  const values = { active, failing };
  const name = 'subscriptions';
  if (active >= 4 && failing > active / 2) {
    return check(
      name,
      'warning',
      `${failing} of ${active} subscriptions have failed for an hour or longer`,
      'So many at once point at your own network, DNS or egress proxy. nuncio doctor on a node checks these.',
      values,
    );
  }
  return check(name, 'ok', `${countText(active, 'active subscription')}, ${failing} failing`, null, values);
}
