/**
 * Lists the deliveries of a subscription in pages, newest first. A page scans a bounded number of deliveries by
 * index. Failing, failed and cancelled deliveries are found in `retries` without scanning the others.
 */

import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { parseDeliveryId } from '../subscriptions/delivery_id.ts';
import type { Subscription } from '../subscriptions/subscription.ts';
import {
  type Delivery,
  type DeliveryRow,
  type DeliveryStatus,
  epochTagOf,
  isIdOf,
  selectDetails,
  stateOf,
  toDelivery,
} from './delivery.ts';

export interface DeliveryFilter {
  status: DeliveryStatus | null;
  kind: string | null;
  /** Bounds on the creation time: from `since` (inclusive) to `until` (exclusive). */
  since?: Date | null;
  until?: Date | null;
  /** Selects one delivery. */
  id?: string | null;
}

/** Maximum deliveries that one page scans, however few match. */
export const scannedMax = 10_000;

/**
 * The same limit for failing, failed or cancelled deliveries of a kind. They lie far apart, and each needs look-ups in three
 * tables.
 */
export const scannedByKindMax = 2_000;

export interface DeliveryList {
  deliveries: Delivery[];
  /** The sequence before which the next page starts; null if nothing is left to scan. */
  more: number | null;
}

/** Newest first. @param before the sequence of the last delivery on the previous page */
export async function listDeliveries(
  db: Database,
  subscription: Subscription,
  filter: DeliveryFilter,
  limit: number,
  before: number | null,
): Promise<DeliveryList> {
  const { lane } = subscription;
  const { id = null } = filter;
  const wanted = id === null ? null : await sequenceOf(db, subscription, id);
  if (wanted === undefined) return { deliveries: [], more: null };
  const range =
    wanted === null
      ? await findRange(db, lane, filter, before)
      : { from: wanted + 1, lowest: wanted, more: null };
  const { rows } = await sql<DeliveryRow>`
    select * from (${selectDetails(lane, scanOf(lane, filter, range, limit))}) as d
    order by sequence desc`.execute(db);
  return { deliveries: rows.map((row) => toDelivery(row, subscription.id)), more: range.more };
}

/** The sequences that a page scans, downwards: below `from`, down to `lowest`. */
interface SequenceRange {
  from: number;
  lowest: number;
  /** Where the next page starts, if there is more below. */
  more: number | null;
}

async function findRange(
  db: Database,
  lane: number,
  filter: DeliveryFilter,
  before: number | null,
): Promise<SequenceRange> {
  const { rows: ends } = await sql<{ head: string; oldest: string | null; newest: string | null }>`
    select newest_sequence(l) + 1 as head,
      (select min(sequence) from deliveries d where d.lane = l.id and ${ofDays(filter)}) as oldest,
      (select max(sequence) from deliveries d where d.lane = l.id and ${ofDays(filter)}) as newest
    from lanes l where l.id = ${lane}`.execute(db);
  const { head = '1', oldest = null, newest = null } = ends[0] ?? {};
  const from = Math.min(before ?? Number.POSITIVE_INFINITY, Number(head), Number(newest ?? 0) + 1);
  const kept = keptStateOf(filter.status);
  const lowest =
    kept !== null
      ? await lowestOfState(db, lane, kept, filter, { from, lowest: Number(oldest ?? 0) })
      : // A sequence has no gap, so that this is how many there are.
        from - scannedMax;
  return { from, lowest, more: oldest !== null && lowest > Number(oldest) ? lowest : null };
}

function scannedMaxFor({ status, kind }: DeliveryFilter): number {
  return keptStateOf(status) !== null && kind !== null ? scannedByKindMax : scannedMax;
}

/** The state in `retries` that all deliveries of a status have; null if `retries` does not store all of them. */
function keptStateOf(status: DeliveryStatus | null): 'pending' | 'failed' | 'cancelled' | null {
  if (status === 'failing') return 'pending';
  return status === 'failed' || status === 'cancelled' ? status : null;
}

/** Counts those of other days, too: the index does not know days, and recovered deliveries have old ones among new sequences. */
async function lowestOfState(
  db: Database,
  lane: number,
  state: string,
  filter: DeliveryFilter,
  { from, lowest }: Pick<SequenceRange, 'from' | 'lowest'>,
): Promise<number> {
  const { rows } = await sql<{ sequence: string }>`
    select d.sequence from retries d
    where d.lane = ${lane} and d.state = ${state} and d.sequence < ${from}::bigint and d.sequence >= ${lowest}::bigint
    order by d.sequence desc offset ${scannedMaxFor(filter) - 1}::int limit 1`.execute(db);
  return Number(rows[0]?.sequence ?? 0);
}

/** Selects the matching rows of `deliveries`, newest first. Stops after the last row that is wanted. */
function scanOf(lane: number, filter: DeliveryFilter, { from, lowest }: SequenceRange, limit: number) {
  const { status, kind, since, until } = filter;
  const kept = keptStateOf(status);
  const within = sql`d.lane = ${lane} and d.sequence < ${from}::bigint and d.sequence >= ${lowest}::bigint`;
  const source =
    kept !== null
      ? sql`
      select r.lane, r.sequence, r.day, d.event, d.created_at, r.attempts from (
        select * from (
          select d.lane, d.sequence, d.day, d.attempts from retries d where ${within} and d.state = ${kept}
          order by d.sequence desc limit ${scannedMaxFor(filter)}
        ) as d where ${ofDays(filter)}
      ) as r
      cross join lateral (
        select event, created_at from deliveries
        where lane = r.lane and sequence = r.sequence and day = r.day offset 0
      ) as d`
      : sql`
      select d.* from deliveries d where ${within} and ${ofDays(filter)} order by d.sequence desc limit ${scannedMax}`;
  const conditions = [
    kind === null ? [] : sql`(select kind from events where day = d.day and position = d.event) = ${kind}`,
    status === 'failing' ? sql`d.attempts > 0 and s.state = 'active'` : [],
    status === null || kept !== null ? [] : sql`${stateOf(sql`r.state`, wasAttempted)} = ${status}`,
    since ? sql`d.created_at >= ${since}` : [],
    until ? sql`d.created_at < ${until}` : [],
  ].flat();
  return sql`
    select d.lane, d.sequence, d.day, d.event, d.created_at from (${source}) as d
    join subscriptions s on s.lane = ${lane}
    left join lateral (select state from retries where lane = d.lane and sequence = d.sequence offset 0) as r on true
    where ${sql.join([sql`true`, ...conditions], sql` and `)}
    order by d.sequence desc limit ${limit}`;
}

/** A scalar subquery, which the planner evaluates per row and never turns into a join. */
const wasAttempted = sql`(
  select true from attempts where lane = d.lane and sequence = d.sequence and day = d.day limit 1)`;

/** A condition on `d` that is present only if a bound is given, so that the planner can skip partitions. */
function ofDays({ since, until }: DeliveryFilter) {
  return sql.join(
    [
      sql`true`,
      // A delivery is stored under the day of its event, which it may follow by hours.
      ...(since ? [sql`d.day >= (${since}::timestamptz at time zone 'utc' - interval '1 day')::date`] : []),
      ...(until ? [sql`d.day <= (${until}::timestamptz at time zone 'utc')::date`] : []),
    ],
    sql` and `,
  );
}

/** The sequence of the subscription's delivery with this id; undefined for any other id. */
async function sequenceOf(
  db: Database,
  { id: subscriptionId, lane }: Subscription,
  id: string,
): Promise<number | undefined> {
  const place = parseDeliveryId(id);
  if (place?.lane !== lane) return undefined;
  const { rows } = await sql<{ epoch_tag: number }>`
    select ${epochTagOf(sql`${lane}::bigint`, sql`${place.sequence}::bigint`)} as epoch_tag`.execute(db);
  return isIdOf(id, subscriptionId, place, rows[0]?.epoch_tag) ? place.sequence : undefined;
}
