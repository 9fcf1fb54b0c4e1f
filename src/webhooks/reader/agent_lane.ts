/**
 * The lane that an agent polls or streams, and where in it an agent continues. A cursor of a lane that has ended, or of a webhook, leads
 * to the lane that is live now: what that lane does not have is replayed into it, from a time before which the agent has everything.
 * So nothing is missing, and some events may come twice.
 */

import { sql } from 'kysely';
import { asServer } from '../../database/connection_user.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { keptDays, keptFor } from '../../database/retention.ts';
import { startRecovery } from '../fan_out/recovery.ts';
import type { AgentPlace } from '../subscriptions/agent_cursor.ts';
import type { AppSubscriptions } from '../subscriptions/app_subscription_modes.ts';
import { isOpen } from './lane_state.ts';

/**
 * Minutes that are read again when an agent continues in another lane, because events commit in another order than they are created. An
 * event of a transaction that was open for longer may be missing then.
 */
const marginMinutes = 10;
/** Unread deliveries whose events are compared, to find the oldest. Later ones are newer, except for the margin. */
const comparedMax = 2_000;
/** Limit of lanes that one statement finds. */
const batchMax = 100;

export interface AgentLane {
  id: string;
  lane: number;
  /** The newest sequence. */
  head: number;
  /** Whether the subscription is active, and so are its account and client. */
  isOpen: boolean;
  /** Whether events from before the subscription are still being added. */
  isReplaying: boolean;
  version: string | null;
  expiresAt: Date;
  /** By the database's clock. */
  now: Date;
}

/** Finds the live lane of a key that is polled or streamed. */
export type AgentLaneFinder = (key: string) => Promise<AgentLane | undefined>;

interface Wanted {
  key: string;
  resolve: (lane: AgentLane | undefined) => void;
  reject: (error: unknown) => void;
}

/**
 * Makes a finder whose concurrent calls share one statement: a poll without news is little more than this statement. A single call waits
 * only for the end of the current turn of the event loop. Nothing is remembered, so each call sees the rights of its moment.
 */
export function createAgentLaneFinder(db: Database, appSubscriptions: AppSubscriptions): AgentLaneFinder {
  let waiting: Wanted[] = [];

  function flush(): void {
    const batch = waiting;
    waiting = [];
    if (batch.length === 0) return;
    findAgentLanes(db, new Set(batch.map(({ key }) => key)), appSubscriptions).then(
      (lanes) => {
        for (const { key, resolve } of batch) resolve(lanes.get(key));
      },
      (error: unknown) => {
        for (const { reject } of batch) reject(error);
      },
    );
  }

  return (key) =>
    new Promise((resolve, reject) => {
      if (waiting.length === 0) setImmediate(() => asServer(flush));
      waiting.push({ key, resolve, reject });
      if (waiting.length >= batchMax) asServer(flush);
    });
}

async function findAgentLanes(
  db: Database,
  keys: ReadonlySet<string>,
  appSubscriptions: AppSubscriptions,
): Promise<Map<string, AgentLane>> {
  const { rows } = await sql<{
    key: string;
    id: string;
    lane: string;
    head: string;
    version: string | null;
    is_open: boolean;
    is_replaying: boolean;
    expires_at: Date;
    now: Date;
  }>`
    select a.key, a.id, a.lane, newest_sequence(l) as head, s.version, ${isOpen(appSubscriptions)} as is_open,
      exists (select from recoveries r where r.lane = a.lane and r.state = 'running') as is_replaying,
      a.expires_at, clock_timestamp() as now
    from agent_subscriptions a join subscriptions s on s.id = a.id join lanes l on l.id = a.lane
    where a.key = any(${[...keys]}::text[]) and a.mode = 'poll' and a.ended_at is null
      and a.expires_at > clock_timestamp()`.execute(db);
  return new Map(
    rows.map((row) => [
      row.key,
      {
        id: row.id,
        lane: Number(row.lane),
        head: Number(row.head),
        isOpen: row.is_open,
        isReplaying: row.is_replaying,
        version: row.version,
        expiresAt: row.expires_at,
        now: row.now,
      },
    ]),
  );
}

/** Why the lane of a subscription can be read no more; `open` if it can be. */
export async function readAgentEnd(
  db: Database,
  id: string,
  appSubscriptions: AppSubscriptions,
): Promise<'open' | 'suspended' | 'revoked' | 'expired'> {
  const { rows } = await sql<{ reason: string | null; is_open: boolean }>`
    select a.end_reason as reason, ${isOpen(appSubscriptions)} as is_open
    from agent_subscriptions a join subscriptions s on s.id = a.id where a.id = ${id}`.execute(db);
  const [row] = rows;
  if (row?.reason != null) return row.reason === 'revoked' ? 'revoked' : 'expired';
  return row?.is_open ? 'open' : 'suspended';
}

export interface ResumedLane {
  /** The sequence after which to read. */
  after: number;
  /** Whether events between the cursor and this place are lost or were asked to be left out. */
  isTruncated: boolean;
  /** Whether a replay was started: wake the engine after the commit. */
  isStarted: boolean;
}

/** From when on a lane must have what an agent does not. */
export interface ResumePoint {
  since: Date;
  /** Whether events between the cursor and this time are lost or were asked to be left out. */
  isTruncated: boolean;
}

/**
 * Finds from when on an agent with a cursor of a lane needs events of another one. Reads much of the lane, so never call it with rows locked.
 * @param maxAgeMs events older than this are left out; null for no limit
 */
export async function findResumePoint(
  db: Database,
  place: AgentPlace,
  maxAgeMs: number | null,
): Promise<ResumePoint> {
  const { rows } = await sql<{ since: Date; is_truncated: boolean }>`
    with unread as materialized (
      select d.sequence, d.day, d.event from deliveries d
      where d.lane = ${place.lane} and d.sequence > ${place.sequence}::bigint
      order by d.sequence limit ${comparedMax}::int
    ),
    -- Deliveries of a webhook are not ordered: earlier ones may be on their way.
    unfinished as materialized (
      (select d.day, d.event from lane_progress p
      join deliveries d on d.lane = p.lane and d.sequence > p.cursor and d.sequence <= ${place.sequence}::bigint
      where p.lane = ${place.lane} and not p.is_pulled
      order by d.sequence limit ${comparedMax}::int)
      union all
      -- The index has the order of sequences for each state alone.
      (select d.day, d.event from (values ('pending'), ('held')) as unfinished (state)
      cross join lateral (
        select * from retries r
        where r.lane = ${place.lane} and r.sequence <= ${place.sequence}::bigint and r.state = unfinished.state
        order by r.sequence limit ${comparedMax}::int
      ) as r
      join deliveries d on d.lane = r.lane and d.sequence = r.sequence and d.day = r.day)
    ),
    earlier as materialized (
      select s.lane, least(
        (select min(e.created_at) from unread join events e on e.day = unread.day and e.position = unread.event),
        (select min(d.created_at) from deliveries d where d.lane = s.lane and d.replayed and d.sequence > ${place.sequence}::bigint),
        (select min(e.created_at) from unfinished join events e on e.day = unfinished.day and e.position = unfinished.event),
        (select min(r.since) from recoveries r where r.lane = s.lane and r.state <> 'done'),
        coalesce(s.ended_at, clock_timestamp())) as unread_since,
        coalesce((select min(sequence) from unread), newest_sequence(l) + 1) > ${place.sequence}::bigint + 1 as has_lost
      from subscriptions s join lanes l on l.id = s.lane where s.lane = ${place.lane}
    ),
    asked as materialized (
      -- The subscription itself is forgotten a day after its events.
      select coalesce((select unread_since from earlier), ${place.at}::timestamptz) as wanted,
        coalesce((select has_lost from earlier), true) as has_lost,
        greatest(
          clock_timestamp() - ${keptFor(keptDays.deliveries)},
          case when ${maxAgeMs}::float8 is not null then clock_timestamp() - make_interval(secs => ${maxAgeMs}::float8 / 1000) end
        ) as oldest
    )
    select greatest(wanted - make_interval(mins => ${marginMinutes}::int), oldest) as since,
      has_lost or wanted < oldest as is_truncated
    from asked`.execute(db);
  const { since, is_truncated: isTruncated } = rows[0] as (typeof rows)[number];
  return { since, isTruncated };
}

/**
 * Finds where an agent continues in this lane, and replays what the lane does not have. Repeating it with the same point adds nothing.
 * @returns undefined if too many replays of the lane are running
 */
export async function resumeInLane(
  db: Database | Transaction,
  lane: number,
  { since, isTruncated }: ResumePoint,
): Promise<ResumedLane | undefined> {
  const { rows } = await sql<{ until: Date; is_before: boolean; is_covered: boolean; after: string }>`
    select ${since}::timestamptz < s.created_at as is_before,
      -- By then, fan-out sees the subscription.
      s.created_at + interval '1 minute' as until,
      exists (
        select from recoveries r where r.lane = s.lane and r.since <= ${since}::timestamptz and r.state <> 'cancelled'
      ) as is_covered,
      coalesce((
        select d.sequence from deliveries d
        where d.lane = s.lane and d.created_at >= ${since}::timestamptz order by d.sequence limit 1
      ), newest_sequence(l) + 1) - 1 as after
    from subscriptions s join lanes l on l.id = s.lane where s.lane = ${lane}`.execute(db);
  const row = rows[0];
  if (row === undefined) return undefined;
  const resumed = { after: Number(row.after), isTruncated, isStarted: false };
  if (!row.is_before || row.is_covered) return resumed;
  const recovery = await startRecovery(db, lane, { since, until: row.until, states: ['missing'] });
  return recovery && { ...resumed, isStarted: true };
}
