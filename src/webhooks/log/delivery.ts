/**
 * Deliveries as their owner sees them: the log, and what can be asked for. The state of a delivery is not stored; it
 * follows from what is:
 *
 *   pending     past the lane's cursor, or in `retries` with another attempt to come
 *   held        came, or was pending, when its subscription was disabled
 *   succeeded   attempted, and nothing left to do
 *   failed      in `retries`, the attempts used up
 *   cancelled   not started when its owner lost the right to it
 */

import { sql } from 'kysely';
import { type Database, inTransaction, type Transaction } from '../../database/database.ts';
import { pingName } from '../../events/built_in_names.ts';
import { recordEvent } from '../../events/event.ts';
import type { EventContent, HeaderNames } from '../sending/delivery_request.ts';
import { deliveryId, deliveryIdPrefix, parseDeliveryId } from '../subscriptions/delivery_id.ts';
import type { SignatureShape } from '../subscriptions/signature.ts';
import { type Format, type Owner, type Subscription, seenBy } from '../subscriptions/subscription.ts';
import { type RecordedRequest, recordRequest } from './recorded_request.ts';

export const deliveryStates = ['pending', 'held', 'succeeded', 'failed', 'cancelled'] as const;
export type DeliveryState = (typeof deliveryStates)[number];

export interface Delivery {
  id: string;
  eventId: string;
  kind: string;
  subscriptionId: string;
  sequence: number;
  state: DeliveryState;
  attemptCount: number;
  createdAt: Date;
  nextAttemptAt: Date | null;
}

export interface DeliveryFilter {
  state: DeliveryState | null;
  kind: string | null;
  /** By when the delivery was made: from `since` on, before `until`. */
  since?: Date | null;
  until?: Date | null;
  /** One delivery's id. */
  id?: string | null;
}

interface DeliveryRow {
  lane: string;
  sequence: string;
  epoch_tag: number;
  created_at: Date;
  event_id: string;
  kind: string;
  state: DeliveryState;
  attempt_count: string;
  next_attempt_at: Date | null;
}

/** The deliveries of a subscription; `condition` is on `d`, a row of `deliveries`. */
export function described(lane: number, condition: ReturnType<typeof sql>) {
  return describeRows(
    lane,
    sql`select d.lane, d.sequence, d.day, d.event, d.created_at
      from deliveries d where d.lane = ${lane} and ${condition}`,
  );
}

/**
 * What follows of deliveries from the rest of the log. Each row is looked up by its day, so that one partition of a table
 * is read for it; `offset 0` keeps the planner from joining whole tables instead.
 * @param rows of `deliveries`, all of one lane
 */
function describeRows(lane: number, rows: ReturnType<typeof sql>) {
  return sql`
    select d.lane, d.sequence, d.day, d.event, d.created_at, e.id as event_id, e.kind, attempt.count as attempt_count,
      ${epochTagOf(sql`d.lane`, sql`d.sequence`)} as epoch_tag,
      ${stateOf(sql`r.state`, sql`attempt.count > 0`)} as state,
      case
        when s.state <> 'active' then null
        when r.state is not null then r.due_at
        when attempt.count = 0 and d.sequence > p.cursor then greatest(p.paused_until, d.created_at)
      end as next_attempt_at
    from (${rows} offset 0) as d
    join subscriptions s on s.lane = ${lane}
    join lane_progress p on p.lane = ${lane}
    cross join lateral (
      select id, kind from events where day = d.day and position = d.event offset 0
    ) as e
    left join lateral (
      select state, due_at from retries where lane = d.lane and sequence = d.sequence offset 0
    ) as r on true
    cross join lateral (
      select count(*) as count from attempts a
      where a.lane = d.lane and a.sequence = d.sequence and a.day = d.day offset 0
    ) as attempt`;
}

/** The tag of the epoch in which a lane's delivery was made (see delivery_id.ts). */
function epochTagOf(lane: ReturnType<typeof sql>, sequence: ReturnType<typeof sql>) {
  return sql`coalesce((
    select tag from lane_epochs where lane = ${lane} and first <= ${sequence} order by first desc limit 1), 0)`;
}

/** The state of a delivery `d` of a subscription `s`. */
function stateOf(retry: ReturnType<typeof sql>, wasAttempted: ReturnType<typeof sql>) {
  return sql`
      case
        when ${retry} = 'pending' then case when s.state = 'active' then 'pending' else 'held' end
        when ${retry} is not null then ${retry}
        when ${wasAttempted} then 'succeeded'
        when s.state <> 'active' then 'held'
        when exists (
          select from held_stretches h where h.lane = d.lane and d.sequence between h.first and h.last
        ) then 'held'
        else 'pending'
      end`;
}

/** Deliveries that one page looks through at most, however few of them are wanted. */
export const lookedThroughMax = 10_000;

export interface DeliveryList {
  deliveries: Delivery[];
  /** Where there is more to look through: the sequence before which to go on. */
  more: number | null;
}

/** The newest first. @param before the sequence of the last one seen */
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
  const stretch =
    wanted === null
      ? await findStretch(db, lane, filter, before)
      : { from: wanted + 1, lowest: wanted, more: null };
  const { rows } = await sql<DeliveryRow>`
    select * from (${describeRows(lane, lookThrough(lane, filter, stretch, limit))}) as d
    order by sequence desc`.execute(db);
  return { deliveries: rows.map((row) => toDelivery(row, subscription.id)), more: stretch.more };
}

/** Sequences that a page looks through, downwards: before `from`, to `lowest`. */
interface Stretch {
  from: number;
  lowest: number;
  /** Where there is more below. */
  more: number | null;
}

async function findStretch(
  db: Database,
  lane: number,
  filter: DeliveryFilter,
  before: number | null,
): Promise<Stretch> {
  const { rows: ends } = await sql<{ head: string; oldest: string | null; newest: string | null }>`
    select next_sequence as head,
      (select min(sequence) from deliveries d where d.lane = l.id and ${ofDays(filter)}) as oldest,
      (select max(sequence) from deliveries d where d.lane = l.id and ${ofDays(filter)}) as newest
    from lanes l where l.id = ${lane}`.execute(db);
  const { head = '1', oldest = null, newest = null } = ends[0] ?? {};
  const from = Math.min(before ?? Number.POSITIVE_INFINITY, Number(head), Number(newest ?? 0) + 1);
  const lowest = isKeptByState(filter.state)
    ? await lowestOfState(db, lane, filter, from)
    : // A sequence has no gap, so that this is how many there are.
      from - lookedThroughMax;
  return { from, lowest, more: oldest !== null && lowest > Number(oldest) ? lowest : null };
}

type KeptState = 'failed' | 'cancelled';

/** Whether all deliveries of a state are in `retries` under that name: these are found without reading the others. */
function isKeptByState(state: DeliveryState | null): state is KeptState {
  return state === 'failed' || state === 'cancelled';
}

async function lowestOfState(
  db: Database,
  lane: number,
  filter: DeliveryFilter,
  from: number,
): Promise<number> {
  const { rows } = await sql<{ sequence: string }>`
    select d.sequence from retries d
    where d.lane = ${lane} and d.state = ${filter.state} and d.sequence < ${from}::bigint and ${ofDays(filter)}
    order by d.sequence desc offset ${lookedThroughMax - 1}::int limit 1`.execute(db);
  return Number(rows[0]?.sequence ?? 0);
}

/** Rows of `deliveries` that fit, the newest first. Nothing is looked up for those after the last that is wanted. */
function lookThrough(lane: number, filter: DeliveryFilter, { from, lowest }: Stretch, limit: number) {
  const { state, kind, since, until } = filter;
  const within = sql`d.lane = ${lane} and d.sequence < ${from}::bigint and d.sequence >= ${lowest}::bigint
    and ${ofDays(filter)}`;
  const source = isKeptByState(state)
    ? sql`
      select r.lane, r.sequence, r.day, d.event, d.created_at from (
        select d.lane, d.sequence, d.day from retries d where ${within} and d.state = ${state}
        order by d.sequence desc limit ${lookedThroughMax}
      ) as r
      cross join lateral (
        select event, created_at from deliveries
        where lane = r.lane and sequence = r.sequence and day = r.day offset 0
      ) as d`
    : sql`select d.* from deliveries d where ${within} order by d.sequence desc limit ${lookedThroughMax}`;
  const conditions = [
    kind === null ? [] : sql`(select kind from events where day = d.day and position = d.event) = ${kind}`,
    state === null || isKeptByState(state) ? [] : sql`${stateOf(sql`r.state`, wasAttempted)} = ${state}`,
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

/** A scalar is looked up where it is needed; it is never made a join with the table. */
const wasAttempted = sql`(
  select true from attempts where lane = d.lane and sequence = d.sequence and day = d.day limit 1)`;

/** On `d`: written out only where it is asked for, so that the days that are not are left out by the planner. */
function ofDays({ since, until }: DeliveryFilter) {
  return sql.join(
    [
      sql`true`,
      // A delivery is kept with the day of its event, which it may follow by hours.
      ...(since ? [sql`d.day >= (${since}::timestamptz at time zone 'utc' - interval '1 day')::date`] : []),
      ...(until ? [sql`d.day <= (${until}::timestamptz at time zone 'utc')::date`] : []),
    ],
    sql` and `,
  );
}

/** Of a delivery of the subscription; undefined for another's id. */
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

/** Half of an id is not enough: it must be the one that was given out. */
function isIdOf(
  id: string,
  subscriptionId: string,
  { lane, sequence }: { lane: number; sequence: number },
  epochTag: number | undefined,
): boolean {
  return deliveryId(deliveryIdPrefix(lane, subscriptionId, epochTag), sequence) === id;
}

export interface Place {
  subscription: { id: string; lane: number; state: string };
  sequence: number;
}

/** Which delivery of which subscription an id names, where the owner may see such a subscription. */
export async function locateDelivery(
  db: Database | Transaction,
  owner: Owner,
  id: string,
): Promise<Place | undefined> {
  const place = parseDeliveryId(id);
  if (place === undefined) return undefined;
  const { rows } = await sql<{ id: string; state: string; epoch_tag: number }>`
    select id, state, ${epochTagOf(sql`lane`, sql`${place.sequence}::bigint`)} as epoch_tag
    from subscriptions where lane = ${place.lane} and ${seenBy(owner)}`.execute(db);
  const row = rows[0];
  if (row === undefined || !isIdOf(id, row.id, place, row.epoch_tag)) return undefined;
  return { subscription: { id: row.id, state: row.state, lane: place.lane }, sequence: place.sequence };
}

export interface DeliveryDetails extends Delivery {
  /** As it was sent; null once it was erased. */
  body: string | null;
  attempts: Attempt[];
}

export interface Attempt {
  number: number;
  trigger: 's' | 'm' | 'r';
  startedAt: Date;
  durationMs: number;
  firstByteMs: number | null;
  status: number | null;
  error: string | null;
  revision: number;
  connection: Record<string, unknown> | null;
  /** By which revision of the subscription it was made; null where that is not known any more. */
  request: RecordedRequest | null;
  responseHeaders: Record<string, unknown> | null;
  responseBody: Buffer | null;
  isTruncated: boolean;
  /** Whether the response was left out, because the account's budget of the day was used up. */
  isResponseOmitted: boolean;
}

interface AttemptRow {
  number: number;
  trigger: 's' | 'm' | 'r';
  started_at: Date;
  duration_ms: number;
  first_byte_ms: number | null;
  status: number | null;
  error: string | null;
  revision: number;
  connection: string | null;
  headers: string | null;
  body: Buffer | null;
  truncated: boolean;
  response_omitted: boolean | null;
  url: string | null;
  signature: SignatureShape;
  format: Format;
  header_names: string[] | null;
}

/**
 * @param scopeOf the scope that one needs to get events of a kind; null for none. What was never sent is shown only to
 *   who would get it now: the right to it may have ended while it was held.
 */
export async function readDelivery(
  db: Database | Transaction,
  owner: Owner,
  id: string,
  names: HeaderNames,
  scopeOf: (kind: string) => string | null,
): Promise<DeliveryDetails | undefined> {
  const place = await locateDelivery(db, owner, id);
  if (place === undefined) return undefined;
  const { subscription, sequence } = place;
  const { rows } = await sql<
    DeliveryRow & { day: string; body: string | null; account_id: string | null; happened_at: Date }
  >`
    select d.*, d.day::text as day, e.body, e.account_id, e.happened_at from (${described(subscription.lane, sql`d.sequence = ${sequence}`)}) as d
    cross join lateral (
      select body, account_id, created_at as happened_at
      from events where day = d.day and position = d.event offset 0
    ) as e`.execute(db);
  const row = rows[0];
  if (row === undefined) return undefined;
  const delivery = toDelivery(row, subscription.id);
  const wasSent = delivery.attemptCount > 0;
  const isShown = wasSent || (await mayGet(db, subscription.lane, row.account_id, scopeOf(row.kind)));
  if (!isShown) row.body = null;
  const event: EventContent | null =
    row.body === null
      ? null
      : {
          id: row.event_id,
          kind: row.kind,
          accountId: row.account_id,
          body: Buffer.from(row.body),
          createdAt: row.happened_at.getTime(),
          traceparent: null,
        };
  const { rows: attempts } = await sql<AttemptRow>`
    select a.*, s.url, s.signature, s.format, s.header_names
    from attempts a left join subscription_revisions s on s.lane = a.lane and s.revision = a.revision
    where a.lane = ${subscription.lane} and a.sequence = ${sequence} and a.day = ${row.day}::date
    order by a.started_at, a.number limit 1000`.execute(db);
  return {
    ...delivery,
    body: row.body,
    attempts: attempts.map((attempt) => ({
      number: attempt.number,
      trigger: attempt.trigger,
      startedAt: attempt.started_at,
      durationMs: attempt.duration_ms,
      firstByteMs: attempt.first_byte_ms,
      status: attempt.status,
      error: attempt.error,
      revision: attempt.revision,
      connection: attempt.connection === null ? null : JSON.parse(attempt.connection),
      request:
        attempt.url === null
          ? null
          : recordRequest(
              {
                url: attempt.url,
                signature: attempt.signature,
                format: attempt.format,
                headerNames: attempt.header_names ?? [],
              },
              delivery,
              { number: attempt.number, startedAt: attempt.started_at },
              event,
              names,
            ),
      responseHeaders: attempt.headers === null ? null : JSON.parse(attempt.headers),
      responseBody: attempt.body,
      isTruncated: attempt.truncated,
      isResponseOmitted: attempt.response_omitted ?? false,
    })),
  };
}

/** Whether the owner of a lane may get an account's events of a scope at this moment. */
async function mayGet(
  db: Database | Transaction,
  lane: number,
  accountId: string | null,
  scope: string | null,
): Promise<boolean> {
  if (accountId === null) return true;
  const { rows } = await sql`
    select from subscriptions s
    where s.lane = ${lane} and (s.owner = 'user' or exists (
      select from grants g
      where (g.id = s.grant_id
          or (s.owner = 'client' and g.account_id = ${accountId} and g.client_id = s.client_id))
        and g.withdrawn_at is null and (${scope}::text is null or g.scopes @> array[${scope}::text])))`.execute(
    db,
  );
  return rows.length > 0;
}

function toDelivery(row: DeliveryRow, subscriptionId: string): Delivery {
  const sequence = Number(row.sequence);
  return {
    id: deliveryId(deliveryIdPrefix(Number(row.lane), subscriptionId, row.epoch_tag), sequence),
    eventId: row.event_id,
    kind: row.kind,
    subscriptionId,
    sequence,
    state: row.state,
    attemptCount: Number(row.attempt_count),
    createdAt: row.created_at,
    nextAttemptAt: row.next_attempt_at,
  };
}

export type ResendResult = 'due' | 'not-found' | 'disabled' | 'cancelled';

/**
 * Has a delivery sent once more, whatever became of it. One that still waits for its first attempt is sent anyway,
 * and one that waits for a repetition is sent now instead.
 */
export async function resendDelivery(
  db: Database | Transaction,
  owner: Owner,
  id: string,
): Promise<ResendResult> {
  return inTransaction(db, async (tx) => {
    const place = await locateDelivery(tx, owner, id);
    if (place === undefined) return 'not-found';
    const { subscription, sequence } = place;
    const { rows } = await sql<{ day: string; state: DeliveryState; attempt_count: string }>`
      select day::text, state, attempt_count
      from (${described(subscription.lane, sql`d.sequence = ${sequence}`)}) as d`.execute(tx);
    const row = rows[0];
    if (row === undefined) return 'not-found';
    if (subscription.state !== 'active') return 'disabled';
    if (row.state === 'cancelled') return 'cancelled';
    if (row.state === 'pending' && row.attempt_count === '0') return 'due';
    const base = row.state === 'held' ? 'pending' : row.state;
    await sql`
      insert into retries (lane, sequence, day, state, attempts, due_at, resends)
      values (${subscription.lane}, ${sequence}, ${row.day}::date, ${base}, least(${row.attempt_count}::bigint, 32767), now(), 1)
      on conflict (lane, sequence) do update set
        resends = least(retries.resends + 1, 32767), due_at = now(),
        state = case when retries.state = 'held' then 'pending' else retries.state end`.execute(tx);
    // One that ended meanwhile was not among those counted; from here on, none is written without this row.
    await sql`
      update retries set attempts = greatest(attempts, (
        select least(count(*), 32767) from attempts a
        where a.lane = retries.lane and a.sequence = retries.sequence and a.day = retries.day))
      where lane = ${subscription.lane} and sequence = ${sequence}`.execute(tx);
    await wakeLane(tx, subscription.lane);
    return 'due';
  });
}

/**
 * Sends something to one subscription alone: a `ping`, or the example of a kind, which is then nobody's event.
 * @returns the delivery's id
 */
export async function sendTest(
  db: Database | Transaction,
  subscription: Subscription,
  example: { kind: string; body: unknown } | null,
): Promise<string> {
  return inTransaction(db, async (tx) => {
    const ping = { kind: pingName, body: { subscription: subscription.id, at: new Date().toISOString() } };
    const event = await recordEvent(tx, { accountId: null, ...(example ?? ping) });
    const { rows } = await sql<{ sequence: string; epoch_tag: number }>`
      with head as (
        update lanes set next_sequence = next_sequence + 1 where id = ${subscription.lane}
        returning id, next_sequence - 1 as sequence
      )
      insert into deliveries (day, lane, sequence, event)
      select ${event.day}::date, id, sequence, ${event.position}::bigint from head
      returning sequence, ${epochTagOf(sql`lane`, sql`sequence`)} as epoch_tag`.execute(tx);
    await wakeLane(tx, subscription.lane);
    const { sequence, epoch_tag } = rows[0] as { sequence: string; epoch_tag: number };
    return deliveryId(deliveryIdPrefix(subscription.lane, subscription.id, epoch_tag), Number(sequence));
  });
}

/** Somebody is to look at the lane: its holder, or whoever takes it. */
export async function wakeLane(tx: Transaction, lane: number): Promise<void> {
  await sql`
    -- Also where it is held: it may be let go of at this moment.
    update lane_progress set due_at = greatest(now(), coalesce(paused_until, now()))
    where lane = ${lane}`.execute(tx);
  await sql`select notify_lane_changed(${lane})`.execute(tx);
}
