/**
 * Reads waiting deliveries of lanes and their events from the database. Checks again whether the owner may have each delivery,
 * because the owner may have lost the right while it waited, and whether the subscription still has the event's kind. Events that
 * are addressed to the lane, such as tests, and deliveries that are resent by hand need no kind of the subscription.
 */

import { sql } from 'kysely';
import { bigintArray, textArray } from '../../database/arrays.ts';
import { type Database, isDatabaseUnavailable } from '../../database/database.ts';
import { builtInNames } from '../../events/built_in_names.ts';
import type { EventCache } from '../fan_out/event_cache.ts';
import type { KindArrays } from '../fan_out/fan_out.ts';
import type { EventContent } from '../sending/delivery_request.ts';
import type { DeliveryMemory } from './delivery_memory.ts';

/** Deliveries of a lane after `after`, up to `upTo`. */
export interface SequenceRange {
  lane: number;
  after: number;
  upTo: number;
}

export interface DueDelivery {
  lane: number;
  sequence: number;
  day: string;
  /** Position of the event. */
  event: number;
  /** Size of the event's body. */
  bytes: number;
  /** Whether the owner may have it, and the subscription asks for it. */
  isAllowed: boolean;
  /**
   * Whether it stays as it is for now, neither sent nor cancelled, because its subscription, user or app is disabled.
   */
  isSuspended: boolean;
  /** Set if it was attempted or resent before. */
  retry: { state: 'pending' | 'failed' | 'succeeded'; attempts: number; isManual: boolean } | null;
}

/** A waiting delivery in memory, with its event. */
export interface LoadedDelivery {
  sequence: number;
  day: string;
  /** Position of the event. */
  position: number;
  event: EventContent;
  retry: DueDelivery['retry'];
}

interface WaitingRow {
  lane: string;
  sequence: string;
  day: string;
  event: string;
  bytes: number | null;
  is_allowed: boolean;
  is_suspended: boolean;
  state: 'pending' | 'failed' | 'succeeded' | null;
  attempts: number | null;
  resends: number | null;
}

/** Reads deliveries that were never attempted, in order of the sequence. */
export async function readNewDeliveries(
  db: Database,
  kinds: KindArrays,
  ranges: readonly SequenceRange[],
): Promise<DueDelivery[]> {
  const recent = await readNewDeliveriesOf(db, kinds, ranges, recentDays);
  const counts = new Map<number, number>();
  for (const { lane } of recent) counts.set(lane, (counts.get(lane) ?? 0) + 1);
  const incomplete = ranges.filter(({ lane, after, upTo }) => (counts.get(lane) ?? 0) < upTo - after);
  if (incomplete.length === 0) return recent;
  const isIncomplete = new Set(incomplete.map(({ lane }) => lane));
  const whole = await readNewDeliveriesOf(db, kinds, incomplete, sql`true`);
  return [...recent.filter(({ lane }) => !isIncomplete.has(lane)), ...whole];
}

/**
 * Most deliveries are sent within minutes. So the read searches the partitions of a month only if these days lack some.
 */
const recentDays = sql`
  day between (now() at time zone 'utc')::date - 1 and (now() at time zone 'utc')::date`;

async function readNewDeliveriesOf(
  db: Database,
  kinds: KindArrays,
  ranges: readonly SequenceRange[],
  days: ReturnType<typeof sql>,
): Promise<DueDelivery[]> {
  const waiting = sql`
    select d.lane, d.sequence, d.day, d.event, null::text as state, null::smallint as attempts,
      null::smallint as resends
    from unnest(
      ${bigintArray(ranges.map(({ lane }) => lane))}::bigint[],
      ${bigintArray(ranges.map(({ after }) => after))}::bigint[],
      ${bigintArray(ranges.map(({ upTo }) => upTo))}::bigint[]
    ) as given (lane, after, up_to)
    cross join lateral (
      select lane, sequence, day, event from deliveries
      where lane = given.lane and sequence > given.after and sequence <= given.up_to and ${days} offset 0
    ) as d`;
  return checkRights(db, kinds, waiting);
}

/** Reads deliveries whose retry is due, longest due first. @param lanes with the maximum for each */
export async function readDueRetries(
  db: Database,
  kinds: KindArrays,
  lanes: readonly { id: number; limit: number }[],
): Promise<DueDelivery[]> {
  const waiting = sql`
    select r.lane, r.sequence, r.day, d.event, r.state, r.attempts, r.resends
    from unnest(
      ${bigintArray(lanes.map(({ id }) => id))}::bigint[], ${bigintArray(lanes.map(({ limit }) => limit))}::bigint[]
    ) as given (lane, most)
    cross join lateral (
      select * from retries where lane = given.lane and due_at <= now() order by due_at, sequence limit given.most
    ) as r
    cross join lateral (
      select event from deliveries where lane = r.lane and sequence = r.sequence and day = r.day offset 0
    ) as d`;
  return checkRights(db, kinds, waiting);
}

/**
 * Finds when the first retry of each lane is due. Reads one row of each lane: the reads of due retries are those of all lanes, and a lane may have millions.
 * @returns milliseconds from now; lanes without a retry are left out
 */
export async function readNextRetries(db: Database, lanes: readonly number[]): Promise<Map<number, number>> {
  const { rows } = await sql<{ lane: string; ms: number }>`
    select given.lane, (extract(epoch from first.due_at - now()) * 1000)::float8 as ms
    from unnest(${bigintArray(lanes)}::bigint[]) as given (lane)
    cross join lateral (
      select due_at from retries where lane = given.lane and due_at is not null order by due_at limit 1
    ) as first`.execute(db);
  return new Map(rows.map(({ lane, ms }) => [Number(lane), ms]));
}

async function checkRights(
  db: Database,
  kinds: KindArrays,
  waiting: ReturnType<typeof sql>,
): Promise<DueDelivery[]> {
  const { rows } = await sql<WaitingRow>`
    with waiting as materialized (${waiting}),
    detailed as materialized (
      select waiting.*, e.kind, e.account_id, e.bytes,
        '00000000-0000-0000-0000-000000000000'::uuid as nobody
      from waiting
      cross join lateral (
        select kind, account_id, octet_length(body) as bytes from events
        where day = waiting.day and position = waiting.event offset 0
      ) as e
    ),
    catalogue as materialized (
      select name, case when object is not null then array['read:' || object] end as scopes,
        string_to_array(patterns, ' ') as patterns
      from unnest(${kinds.names}::text[], ${kinds.objects}::text[], ${kinds.patterns}::text[])
        as given (name, object, patterns)
    ),
    pair as materialized (
      select lane, kind, account_id, nobody from detailed group by lane, kind, account_id, nobody
    ),
    allowed as materialized (
      select pair.lane, pair.kind, pair.account_id, pair.nobody,
        s.kinds && catalogue.patterns or pair.account_id is null or pair.kind = any(${textArray(builtInNames)}::text[])
          as is_wanted
      from pair
      join catalogue on catalogue.name = pair.kind
      join subscriptions s on s.lane = pair.lane and s.state <> 'ended'
      where pair.account_id is null
        or (not exists (select from accounts a where a.id = pair.account_id and a.disabled_at is not null)
          and (s.owner = 'user' or exists (
            select from grants g
            where (g.id = s.grant_id
                or (s.owner = 'client' and g.account_id = pair.account_id and g.client_id = s.client_id))
              and g.withdrawn_at is null and (catalogue.scopes is null or g.scopes @> catalogue.scopes))))
    )
    select d.lane, d.sequence, d.day::text, d.event, d.bytes, d.state, d.attempts, d.resends,
      -- Hashed in this form; a join would compare every row with every other.
      case when (d.lane, d.kind, coalesce(d.account_id, d.nobody)) in (
        select lane, kind, coalesce(account_id, nobody) from allowed where is_wanted
      ) or (d.resends > 0 and (d.lane, d.kind, coalesce(d.account_id, d.nobody)) in (
        select lane, kind, coalesce(account_id, nobody) from allowed
      )) then true else false end as is_allowed,
      case when d.lane in (
        select s.lane from subscriptions s
        where s.lane = any(array(select distinct lane from pair)) and (s.state = 'disabled' or (s.owner = 'user'
          and exists (select from accounts a where a.id = s.account_id and a.disabled_at is not null))
          or exists (select from clients c where c.id = s.client_id and c.is_stopped))
      ) then true else false end as is_suspended
    from detailed d
    order by d.lane, d.sequence`.execute(db);
  return rows.map((row) => ({
    lane: Number(row.lane),
    sequence: Number(row.sequence),
    day: row.day,
    event: Number(row.event),
    bytes: row.bytes ?? 0,
    // Nothing is left to send if the body was erased.
    isAllowed: row.is_allowed && row.bytes !== null,
    isSuspended: row.is_suspended,
    retry:
      row.state === null
        ? null
        : { state: row.state, attempts: row.attempts ?? 0, isManual: (row.resends ?? 0) > 0 },
  }));
}

/** Maximum bytes of bodies in one read. A single larger one is read anyway. */
const readBytesMax = 16_777_216;

/** Where events are looked up before they are read from the database. */
export interface EventMemory {
  cache: EventCache;
  /** Events of deliveries that wait or are in flight. */
  waiting: DeliveryMemory;
}

/**
 * Loads the events of deliveries, from memory or from the database. The lanes take turns at the bytes of a read, so that none waits for
 * the large bodies of others.
 * @param lanes in the order of their turns
 * @param admits called in order; whether a delivery may be taken into memory. After a refusal, the rest of its lane
 *   is skipped.
 * @param onUnreadable called for each delivery whose event the database cannot return
 * @returns events by delivery, without those that were refused or left out because of the size limit
 */
export async function loadEvents(
  db: Database,
  memory: EventMemory,
  lanes: readonly number[],
  found: readonly DueDelivery[],
  admits: (delivery: DueDelivery) => boolean,
  onUnreadable: (lane: number, error: unknown) => void,
): Promise<Map<DueDelivery, EventContent>> {
  const admitted = admittedOf(found, admits);
  const known = new Map<number, EventContent>();
  const missing = new Map<number, { day: string; event: number }>();
  const cut = new Set<number>();
  let bytes = 0;
  for (const { lane, event, day, bytes: size } of byTurns(lanes, admitted)) {
    if (cut.has(lane) || known.has(event) || missing.has(event)) continue;
    const kept = memory.waiting.get(event) ?? memory.cache.get(event);
    if (kept !== undefined) known.set(event, kept);
    else if (bytes + size > readBytesMax && missing.size > 0) cut.add(lane);
    else {
      bytes += size;
      missing.set(event, { day, event });
    }
  }
  const unreadable = new Map<number, unknown>();
  if (missing.size > 0) {
    for (const [position, event] of await readReadable(db, [...missing.values()], unreadable)) {
      known.set(position, event);
      memory.cache.put(position, event);
    }
  }
  const events = new Map<DueDelivery, EventContent>();
  for (const delivery of admitted) {
    const event = known.get(delivery.event);
    if (event !== undefined) events.set(delivery, event);
    else if (unreadable.has(delivery.event)) onUnreadable(delivery.lane, unreadable.get(delivery.event));
  }
  return events;
}

/** SQLSTATEs of values that cannot be read: invalid (22), above a limit (54), on a damaged page (XX). */
const rowCodes = /^(22|54|XX)/;

/** Whether one row may be the cause. A slow, locked or missing table is not: halves of the read would each wait for it. */
function isOfRow(error: unknown): boolean {
  const { code } = error as { code?: unknown };
  return typeof code === 'string' ? rowCodes.test(code) : !isDatabaseUnavailable(error);
}

/**
 * Reads events, in halves where the database cannot return them together: one whose row is damaged keeps no other from being read.
 * @param unreadable receives the errors of such events by position
 */
async function readReadable(
  db: Database,
  events: readonly Pick<DueDelivery, 'day' | 'event'>[],
  unreadable: Map<number, unknown>,
): Promise<Map<number, EventContent>> {
  try {
    return await readEvents(db, events);
  } catch (error) {
    if (!isOfRow(error)) throw error;
    const half = events.length >> 1;
    if (half > 0) {
      const first = await readReadable(db, events.slice(0, half), unreadable);
      return new Map([...first, ...(await readReadable(db, events.slice(half), unreadable))]);
    }
    for (const { event } of events) unreadable.set(event, error);
    return new Map();
  }
}

/** The first delivery of each lane, then the second ones, and so on. */
function* byTurns(lanes: readonly number[], deliveries: readonly DueDelivery[]): Iterable<DueDelivery> {
  const ofLane = Map.groupBy(deliveries, ({ lane }) => lane);
  let left = lanes.flatMap((lane) => ofLane.get(lane)?.values() ?? []);
  while (left.length > 0) {
    const still: typeof left = [];
    for (const those of left) {
      const { value, done } = those.next();
      if (done) continue;
      yield value;
      still.push(those);
    }
    left = still;
  }
}

function admittedOf(
  found: readonly DueDelivery[],
  admits: (delivery: DueDelivery) => boolean,
): DueDelivery[] {
  const cut = new Set<number>();
  return found.filter((delivery) => {
    if (!delivery.isAllowed || delivery.isSuspended || cut.has(delivery.lane)) return false;
    if (admits(delivery)) return true;
    cut.add(delivery.lane);
    return false;
  });
}

/** Reads events by position. Erased ones are left out. */
export async function readEvents(
  db: Database,
  events: readonly Pick<DueDelivery, 'day' | 'event'>[],
): Promise<Map<number, EventContent>> {
  const { rows } = await sql<{
    position: string;
    id: string;
    kind: string;
    version: string | null;
    account_id: string | null;
    account_external_id: string | null;
    body: string;
    created_at: Date;
    traceparent: string | null;
  }>`
    select e.*, (select external_id from accounts where id = e.account_id offset 0) as account_external_id
    from unnest(${events.map(({ day }) => day)}::date[], ${bigintArray(events.map(({ event }) => event))}::bigint[])
      as given (day, position)
    cross join lateral (
      select position, id, kind, version, account_id, body, created_at, traceparent from events
      where day = given.day and position = given.position and body is not null offset 0
    ) as e`.execute(db);
  return new Map(
    rows.map((row) => [
      Number(row.position),
      {
        id: row.id,
        kind: row.kind,
        version: row.version,
        accountId: row.account_id,
        accountExternalId: row.account_external_id,
        body: Buffer.from(row.body),
        createdAt: row.created_at.getTime(),
        traceparent: row.traceparent,
      },
    ]),
  );
}

/** What decides how events are converted, in the order of the deliveries. Erased ones are left out. */
export async function readEventFacts(
  db: Database,
  events: readonly Pick<DueDelivery, 'day' | 'event'>[],
): Promise<Pick<EventContent, 'kind' | 'version' | 'accountId'>[]> {
  const { rows } = await sql<{ kind: string; version: string | null; account_id: string | null }>`
    select e.kind, e.version, e.account_id
    from unnest(${events.map(({ day }) => day)}::date[], ${bigintArray(events.map(({ event }) => event))}::bigint[])
      with ordinality as given (day, position, number)
    cross join lateral (
      select kind, version, account_id from events
      where day = given.day and position = given.position and body is not null offset 0
    ) as e
    order by given.number`.execute(db);
  return rows.map(({ kind, version, account_id: accountId }) => ({ kind, version, accountId }));
}
