/**
 * Lanes in the database: taking them, knowing what they hold, letting go of them. Owns `lane_progress` together with
 * outcome.ts; see the migration for the states.
 */

import { sql } from 'kysely';
import type { Sealer } from '../../crypto/sealing.ts';
import { bigintArray } from '../../database/arrays.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { type AppSubscriptions, mayHaveOwn } from '../subscriptions/app_subscriptions.ts';
import type { LaneEpoch } from '../subscriptions/delivery_id.ts';
import { headerLines, openHeaders } from '../subscriptions/static_headers.ts';
import {
  openSecrets,
  type SecretRow,
  type Secrets,
  type Subscription,
  type SubscriptionRow,
  toSubscription,
} from '../subscriptions/subscription.ts';
import { pauseSecondsMax } from './clock_steps.ts';

/** A lane as it is when a node takes it or looks at it again. */
export interface LaneState {
  subscription: Subscription;
  secrets: Secrets;
  /** Lines of its static headers. */
  headerLines: string;
  revision: number;
  /** Whether anything is to be sent: the subscription is active, and so are its account and client. */
  isOpen: boolean;
  /** Of the database, after the first: from which sequences on the ids of its deliveries are of a later one. */
  epochs: LaneEpoch[];
  /** Sequence of the last delivery that there is. */
  head: number;
  cursor: number;
  /** Sequences past the cursor that were attempted before: left by a node that was cut off. */
  attempted: number[];
  failures: number;
  /** Milliseconds from now; 0 for not at all. */
  pauseMs: number;
  /** Milliseconds from now until the first retry; null for none. */
  retryMs: number | null;
  /** Retries to come: what an ordered lane waits for. */
  retriesPending: number;
}

export interface LoadRules {
  sealer: Sealer;
  appSubscriptions: AppSubscriptions;
}

/** Takes lanes that are due and that nobody holds. @returns their numbers */
export async function claimLanes(db: Database, node: string, limit: number): Promise<number[]> {
  const { rows } = await sql<{ lane: string }>`
    update lane_progress set owner = ${node}::bigint, due_at = null
    from (
      select lane from lane_progress
      where owner is null and due_at <= now()
      order by due_at limit ${limit}
      for update skip locked
    ) as due
    where lane_progress.lane = due.lane
    returning lane_progress.lane`.execute(db);
  return rows.map(({ lane }) => Number(lane));
}

type LaneRow = SubscriptionRow &
  SecretRow & {
    headers: Buffer | null;
    revision: number;
    is_open: boolean;
    epochs: string | null;
    head: string;
    cursor: string;
    attempted: string;
    failures: number;
    pause_ms: number | null;
    retry_ms: number | null;
    retries_pending: string;
  };

/** What a node has to know of lanes that it holds. Lanes that it does not hold are left out. */
export async function loadLanes(
  db: Database,
  node: string,
  lanes: readonly number[],
  { sealer, appSubscriptions }: LoadRules,
  onError: (error: Error) => void,
): Promise<LaneState[]> {
  const { rows } = await sql<LaneRow>`
    select s.*, l.next_sequence - 1 as head, least(p.cursor, l.next_sequence - 1) as cursor, p.failures,
      (select string_agg(e.first || ' ' || e.tag, ',') from lane_epochs e where e.lane = p.lane) as epochs,
      s.state = 'active'
        and not exists (select from accounts a where a.id = s.account_id and a.disabled_at is not null)
        and not exists (
          select from clients c where c.id = s.client_id
            and (c.is_stopped or (s.owner = 'client' and not ${mayHaveOwn(appSubscriptions)}))) as is_open,
      case when l.next_sequence - 1 > p.cursor then array_to_string(array(
        select a.sequence from attempts a where a.lane = p.lane and a.sequence > p.cursor
        union select r.sequence from retries r where r.lane = p.lane and r.sequence > p.cursor
      ), ',') else '' end as attempted,
      -- A longer pause was written while the clock was ahead.
      (extract(epoch from case when p.paused_until < now() + make_interval(secs => ${pauseSecondsMax})
        then p.paused_until - now() end) * 1000)::float8 as pause_ms,
      (select (extract(epoch from min(due_at) - now()) * 1000)::float8
        from retries r where r.lane = p.lane and r.due_at is not null) as retry_ms,
      case when s.ordered then (
        select count(*) from retries r where r.lane = p.lane and r.due_at is not null and r.state = 'pending'
      ) else 0 end as retries_pending
    from unnest(${bigintArray(lanes)}::bigint[]) as given (lane)
    join lane_progress p on p.lane = given.lane
    join lanes l on l.id = p.lane
    join subscriptions s on s.lane = p.lane
    where p.owner = ${node}::bigint`.execute(db);
  const secretsOf = (row: LaneRow): { secrets: Secrets; lines: string } | null => {
    try {
      return { secrets: openSecrets(row, sealer), lines: headerLines(openHeaders(row, sealer)) };
    } catch (cause) {
      // One that cannot be signed for is not sent; the others must not suffer for it.
      onError(new Error(`the secret of subscription ${row.id} cannot be opened`, { cause }));
      return null;
    }
  };
  return rows
    .map((row) => ({ row, opened: secretsOf(row) }))
    .map(({ row, opened }) => ({
      subscription: toSubscription(row),
      secrets: opened?.secrets ?? { secret: '', previous: null },
      headerLines: opened?.lines ?? '',
      revision: row.revision,
      isOpen: row.is_open && opened !== null,
      epochs: readEpochs(row.epochs),
      head: Number(row.head),
      cursor: Number(row.cursor),
      attempted: row.attempted === '' ? [] : row.attempted.split(',').map(Number),
      failures: row.failures,
      pauseMs: Math.max(row.pause_ms ?? 0, 0),
      retryMs: row.retry_ms,
      retriesPending: Number(row.retries_pending),
    }));
}

function readEpochs(text: string | null): LaneEpoch[] {
  if (text === null) return [];
  return text.split(',').map((pair) => {
    const [first, tag] = pair.split(' ').map(Number) as [number, number];
    return { first, tag };
  });
}

/** A lane to let go of, with what its node believes of it. */
export interface Release {
  lane: number;
  /** The last delivery that it knows of; where there is another one by now, the lane is not let go of. */
  head: number;
  /** Everything up to here was attempted, and that is written. */
  cursor: number;
  /** Milliseconds from now until it wants to be taken again; null for when there is something new. */
  dueMs: number | null;
}

/**
 * Lets go of lanes that have nothing to do for now. A delivery that is being added at this moment is not missed: the
 * head's row is locked against the fan-out, which looks for lanes without a holder after it has changed the head.
 * @returns those that were let go of
 */
export async function releaseLanes(
  db: Database,
  node: string,
  releases: readonly Release[],
): Promise<number[]> {
  const { rows } = await sql<{ lane: string }>`
    with head as materialized (
      select lanes.id as lane, given.cursor, given.due_ms
      from unnest(
        ${bigintArray(releases.map(({ lane }) => lane))}::bigint[],
        ${bigintArray(releases.map(({ head }) => head))}::bigint[],
        ${bigintArray(releases.map(({ cursor }) => cursor))}::bigint[],
        ${bigintArray(releases.map(({ dueMs }) => (dueMs === null ? null : Math.ceil(dueMs))))}::bigint[]
      ) as given (lane, head, cursor, due_ms)
      join lanes on lanes.id = given.lane
      where lanes.next_sequence = given.head + 1
      -- One that the fan-out is adding to is not let go of anyway; nobody waits for the other in a circle.
      order by lanes.id for update of lanes skip locked
    )
    update lane_progress set owner = null, cursor = greatest(lane_progress.cursor, head.cursor),
      -- What is there already was asked for while the lane was held (see wakeLane).
      due_at = least(lane_progress.due_at,
        case when head.due_ms is not null then now() + head.due_ms * interval '1 millisecond' end)
    from head where lane_progress.lane = head.lane and lane_progress.owner = ${node}::bigint
    returning lane_progress.lane`.execute(db);
  return rows.map(({ lane }) => Number(lane));
}

/** Seconds after which a lane that a node had no room for wants to be taken again: the least, and as much again at random. */
const postponeSeconds = 3;

/** Gives lanes back that the node has no room for. Lanes behind them in the queue of due lanes come first. */
export async function postponeLanes(db: Database, node: string, lanes: readonly number[]): Promise<void> {
  if (lanes.length === 0) return;
  await sql`
    update lane_progress set owner = null, due_at = greatest(
      now() + make_interval(secs => ${postponeSeconds}::float8 * (1 + random())), paused_until)
    where lane = any(${bigintArray(lanes)}::bigint[]) and owner = ${node}::bigint`.execute(db);
}

/** Writes how far lanes have come, where that was put off: at the end of the node that holds them. */
export async function storeCursors(
  db: Database,
  node: string,
  lanes: readonly { id: number; cursor: number }[],
): Promise<void> {
  await sql`
    update lane_progress set cursor = greatest(lane_progress.cursor, given.cursor)
    from unnest(
      ${bigintArray(lanes.map(({ id }) => id))}::bigint[], ${bigintArray(lanes.map(({ cursor }) => cursor))}::bigint[]
    ) as given (lane, cursor)
    where lane_progress.lane = given.lane and lane_progress.owner = ${node}::bigint`.execute(db);
}

/** Lets go of everything that a node holds: its end. Others take the lanes at once. */
export async function abandonLanes(db: Database | Transaction, nodes: readonly string[]): Promise<void> {
  await sql`
    update lane_progress set owner = null, due_at = greatest(now(), coalesce(paused_until, now()))
    where owner = any(${nodes}::bigint[])`.execute(db);
}

/** Lanes that name the node, whether it knows of them or not: an answer of the database may have been lost. */
export async function findHeldLanes(db: Database, node: string): Promise<number[]> {
  const { rows } = await sql<{ lane: string }>`
    select lane from lane_progress where owner = ${node}::bigint`.execute(db);
  return rows.map(({ lane }) => Number(lane));
}

/** What was found amiss in a slice of all lanes. */
export interface Sweep {
  /** The last lane of the slice; null where there is none after it. */
  last: number | null;
  /** Lanes that name this node. */
  held: number[];
  /** Lanes that were freed or made due. */
  repaired: number;
}

/**
 * Looks through the lanes past `after`, in the order of their numbers. Frees those of nodes that are no more and that
 * nobody buried: they took them after they were taken for dead. Makes those due of which nobody was told: with deliveries
 * to come, while nobody holds them or waits for them.
 * @param limit lanes at most
 */
export async function sweepLanes(db: Database, node: string, after: number, limit: number): Promise<Sweep> {
  const { rows } = await sql<{ last: string | null; count: number; held: string; repaired: number }>`
    with slice as materialized (
      select lane, owner, due_at, cursor from lane_progress where lane > ${after}::bigint order by lane limit ${limit}::int
    ),
    orphan as (
      update lane_progress set owner = null, due_at = greatest(now(), coalesce(lane_progress.paused_until, now()))
      from slice
      where lane_progress.lane = slice.lane and lane_progress.owner = slice.owner
        and not exists (select from nodes n where n.id = slice.owner offset 0)
      returning 1 as repaired
    ),
    forgotten as materialized (
      select slice.lane from slice
      cross join lateral (select next_sequence from lanes where id = slice.lane offset 0) as head
      cross join lateral (select state from subscriptions where lane = slice.lane offset 0) as s
      where slice.owner is null and slice.due_at is null and s.state = 'active'
        and (head.next_sequence - 1 > slice.cursor
          or exists (select from retries r where r.lane = slice.lane and r.due_at is not null offset 0))
    ),
    woken as (
      update lane_progress set due_at = now() from forgotten
      where lane_progress.lane = forgotten.lane and lane_progress.owner is null and lane_progress.due_at is null
      returning 1 as repaired
    )
    select (select max(lane) from slice) as last, (select count(*)::int from slice) as count,
      (select coalesce(string_agg(lane::text, ','), '') from slice where owner = ${node}::bigint) as held,
      (select count(*)::int from orphan) + (select count(*)::int from woken) as repaired`.execute(db);
  const { last, count, held, repaired } = rows[0] as (typeof rows)[number];
  return {
    last: count < limit ? null : Number(last),
    held: held === '' ? [] : held.split(',').map(Number),
    repaired,
  };
}

/** Heads of lanes that a node holds and that grew without its knowing (another node fanned out). */
export async function readHeads(db: Database, lanes: readonly number[]): Promise<Map<number, number>> {
  const { rows } = await sql<{ lane: string; head: string }>`
    select given.lane, l.head from unnest(${bigintArray(lanes)}::bigint[]) as given (lane)
    cross join lateral (
      select next_sequence - 1 as head from lanes where id = given.lane offset 0
    ) as l`.execute(db);
  return new Map(rows.map(({ lane, head }) => [Number(lane), Number(head)]));
}

/** Which of the lanes have a subscription that ended or changed since: what notifications may have failed to tell. */
export async function findChangedLanes(
  db: Database,
  lanes: readonly { id: number; revision: number }[],
): Promise<number[]> {
  const { rows } = await sql<{ lane: string }>`
    select given.lane
    from unnest(
      ${bigintArray(lanes.map(({ id }) => id))}::bigint[], ${bigintArray(lanes.map(({ revision }) => revision))}::bigint[]
    ) as given (lane, revision)
    cross join lateral (
      select state, revision from subscriptions s where s.lane = given.lane offset 0
    ) as s
    where s.state <> 'active' or s.revision <> given.revision`.execute(db);
  return rows.map(({ lane }) => Number(lane));
}
