/**
 * Lanes in the database: loading and releasing them. Owns `lane_progress` together with outcome_store.ts.
 */

import { sql } from 'kysely';
import type { Sealer } from '../../crypto/sealing.ts';
import { bigintArray, booleanArray } from '../../database/arrays.ts';
import type { Database, Transaction } from '../../database/database.ts';
import type { AgentTerms, WebhookId } from '../sending/agent_message.ts';
import { closedTemplate, createTemplate, type RequestTemplate } from '../sending/delivery_request.ts';
import { sentSecrets } from '../sending/echoed_secrets.ts';
import type { AgentCursors } from '../subscriptions/agent_cursor.ts';
import type { AppSubscriptions } from '../subscriptions/app_subscription_modes.ts';
import { mayOwnSubscriptions } from '../subscriptions/app_subscriptions.ts';
import type { LaneEpoch } from '../subscriptions/delivery_id.ts';
import { headerLines, openHeaders } from '../subscriptions/static_headers.ts';
import { openAuth } from '../subscriptions/subscriber_auth.ts';
import {
  columnsOf,
  type Subscription,
  type SubscriptionRow,
  toSubscription,
} from '../subscriptions/subscription.ts';
import { openSecrets, type SecretRow, type Secrets } from '../subscriptions/subscription_secrets.ts';

/** The state of a lane when a node claims or reloads it. */
export interface LaneState {
  subscription: Subscription;
  /** Who created the app, if the subscription is its own. */
  creatorId: string | null;
  secrets: Secrets;
  template: RequestTemplate;
  /** Milliseconds from now until the subscription expires; infinite if it never does. */
  closesInMs: number;
  revision: number;
  /** Whether anything may be sent: the subscription is active, and so are its account and client. */
  isOpen: boolean;
  /** Sequence of the newest delivery. */
  head: number;
  cursor: number;
  /**
   * Sequences past the cursor that already had an attempt. A node was cut off before it wrote the cursor.
   */
  attempted: number[];
  failures: number;
  /** Milliseconds from now; 0 for no pause. */
  pauseMs: number;
  /** Whether the last outcome that was written left a pause. It may have ended since. */
  wasPaused: boolean;
  /** Milliseconds from now until the first retry; null if there is none. */
  retryMs: number | null;
  /** Pending retries, which an ordered lane waits for; infinity if there are more than `countedRetriesMax`. */
  retriesPending: number;
}

/**
 * Pending retries that are counted: lanes of one tenant with very many would keep others from being loaded. A lane with more is loaded
 * again before they are fewer.
 */
export const countedRetriesMax = 1_000;

export interface LoadRules {
  sealer: Sealer;
  appSubscriptions: AppSubscriptions;
  /** Of agents. */
  cursors: AgentCursors;
  webhookId: WebhookId;
}

type LaneRow = SubscriptionRow &
  SecretRow & {
    headers: Buffer | null;
    auth_secret: Buffer | null;
    agent_key: string | null;
    agent_name: string | null;
    agent_arguments: string | null;
    closes_ms: number | null;
    creator_id: string | null;
    revision: number;
    is_open: boolean;
    epochs: string | null;
    head: string;
    cursor: string;
    attempted: string;
    failures: number;
    pause_ms: number | null;
    was_paused: boolean;
    retry_ms: number | null;
    retries_pending: string;
  };

/** Whether the lane of subscription `s` may send anything. */
function isOpen(appSubscriptions: AppSubscriptions) {
  return sql`(s.state = 'active'
    and not (s.format = 'agent' and not exists (
      select from agent_subscriptions g where g.id = s.id and g.held_at is null and g.expires_at > now()))
    and not exists (select from accounts a where a.id = s.account_id and a.disabled_at is not null)
    and not exists (
      select from clients c where c.id = s.client_id
        and (c.is_stopped or (s.owner = 'client' and not ${mayOwnSubscriptions(appSubscriptions)}))))`;
}

/** Loads the state of lanes that the node leases. Other lanes are left out. */
export async function loadLanes(
  db: Database,
  node: string,
  lanes: readonly number[],
  { sealer, appSubscriptions, cursors, webhookId }: LoadRules,
  onError: (error: Error) => void,
): Promise<LaneState[]> {
  const { rows } = await sql<LaneRow>`
    select ${columnsOf('s')}, null as filter,
      s.secret, s.previous_secret, s.previous_secret_until, s.headers, s.auth_secret, s.revision,
      newest.sequence as head, least(p.cursor, newest.sequence) as cursor, p.failures,
      (select string_agg(e.first || ' ' || e.tag, ',') from lane_epochs e where e.lane = p.lane) as epochs,
      g.key as agent_key, g.name as agent_name, g.arguments as agent_arguments,
      (extract(epoch from g.expires_at - now()) * 1000)::float8 as closes_ms,
      (select account_id from app_creators where client_id = s.client_id and s.owner = 'client') as creator_id,
      ${isOpen(appSubscriptions)} as is_open,
      case when newest.sequence > p.cursor then array_to_string(array(
        select a.sequence from attempts a where a.lane = p.lane and a.sequence > p.cursor
        union select r.sequence from retries r where r.lane = p.lane and r.sequence > p.cursor
      ), ',') else '' end as attempted,
      (extract(epoch from p.paused_until - now()) * 1000)::float8 as pause_ms, p.paused_until is not null as was_paused,
      (select (extract(epoch from min(due_at) - now()) * 1000)::float8
        from retries r where r.lane = p.lane and r.due_at is not null having min(due_at) is not null) as retry_ms,
      case when s.ordered then (
        select count(*) from (
          select from retries r where r.lane = p.lane and r.due_at is not null and r.state = 'pending' limit ${countedRetriesMax + 1}::int
        ) as counted
      ) else 0 end as retries_pending
    from unnest(${bigintArray(lanes)}::bigint[]) as given (lane)
    join lane_progress p on p.lane = given.lane
    cross join lateral (select newest_sequence(lanes) as sequence from lanes where id = p.lane offset 0) as newest
    join subscriptions s on s.lane = p.lane
    left join agent_subscriptions g on s.format = 'agent' and g.id = s.id
    where p.owner = ${node}::bigint`.execute(db);
  const openRow = (row: LaneRow) => {
    // The subscription has ended.
    if (row.secret.length === 0) return null;
    try {
      const lines = headerLines(openHeaders(row, sealer));
      const [auth, agent] = [openAuth(row, sealer), agentTerms(row, cursors, webhookId)];
      const fields = { headerLines: lines, auth, agent, epochs: readEpochs(row.epochs) };
      const template = createTemplate(toSubscription(row), fields);
      // Throws if a member is missing.
      sentSecrets(template, null);
      return { secrets: openSecrets(row, sealer), template };
    } catch (cause) {
      // Others are not affected.
      onError(new Error(`nothing is sent to subscription ${row.id}: its row is damaged`, { cause }));
      return null;
    }
  };
  return rows
    .map((row) => ({ row, opened: openRow(row) }))
    .map(({ row, opened }) => ({
      subscription: toSubscription(row),
      secrets: opened?.secrets ?? { secret: '', previous: null },
      template: opened?.template ?? closedTemplate(toSubscription(row)),
      closesInMs: row.closes_ms ?? Number.POSITIVE_INFINITY,
      creatorId: row.creator_id,
      revision: row.revision,
      isOpen: row.is_open && opened !== null,
      head: Number(row.head),
      cursor: Number(row.cursor),
      attempted: row.attempted === '' ? [] : row.attempted.split(',').map(Number),
      failures: row.failures,
      pauseMs: Math.max(row.pause_ms ?? 0, 0),
      wasPaused: row.was_paused,
      retryMs: row.retry_ms,
      retriesPending:
        Number(row.retries_pending) > countedRetriesMax
          ? Number.POSITIVE_INFINITY
          : Number(row.retries_pending),
    }));
}

function agentTerms(row: LaneRow, cursors: AgentCursors, webhookId: WebhookId): AgentTerms | null {
  const { agent_key: key, agent_name: name, agent_arguments: canonical, grant_id: grantId } = row;
  if (key === null || name === null || canonical === null || grantId === null) return null;
  const lane = Number(row.lane);
  const binding = { grantId, name, arguments: canonical };
  const cursorAt: AgentTerms['cursorAt'] = (sequence, { createdAt }) =>
    cursors.write(binding, { lane, sequence, at: new Date(createdAt) });
  return { key, name, webhookId, cursorAt };
}

/** Finds the lanes whose subscriptions have ended. They never open again. */
export async function findEndedLanes(db: Database, lanes: readonly number[]): Promise<number[]> {
  const { rows } = await sql<{ lane: string }>`
    select lane from unnest(${bigintArray(lanes)}::bigint[]) as given (lane)
    where (select state from subscriptions where lane = given.lane offset 0) = 'ended'`.execute(db);
  return rows.map(({ lane }) => Number(lane));
}

function readEpochs(text: string | null): LaneEpoch[] {
  if (text === null) return [];
  return text.split(',').map((pair) => {
    const [first, tag] = pair.split(' ').map(Number) as [number, number];
    return { first, tag };
  });
}

/** A lane to release, with the state its node has in memory. */
export interface Release {
  lane: number;
  /** The newest delivery that the node knows. If there is a newer one, the lane is not released. */
  head: number;
  /** All deliveries up to here were attempted, and their outcomes are written. */
  cursor: number;
  /** Milliseconds until the lane is due again; null if it is due only when there is a new delivery. */
  dueMs: number | null;
}

/**
 * Releases lanes that have nothing to do. It misses no delivery that fan-out is adding. It locks the lane's row in `lanes` before it
 * looks for the newest delivery, and fan-out looks for lanes without a lease after unlocking that row.
 * @returns the released lanes
 */
export async function releaseLanes(
  db: Database,
  node: string,
  releases: readonly Release[],
): Promise<number[]> {
  const { rows } = await sql<{ lane: string }>`
    with locked as materialized (
      select lanes.id as lane, given.head, given.cursor, given.due_ms
      from unnest(
        ${bigintArray(releases.map(({ lane }) => lane))}::bigint[],
        ${bigintArray(releases.map(({ head }) => head))}::bigint[],
        ${bigintArray(releases.map(({ cursor }) => cursor))}::bigint[],
        ${bigintArray(releases.map(({ dueMs }) => (dueMs === null ? null : Math.ceil(dueMs))))}::bigint[]
      ) as given (lane, head, cursor, due_ms)
      join lanes on lanes.id = given.lane
      join lane_progress on lane_progress.lane = given.lane
      -- A lane that fan-out is adding to is not released anyway. Skipping it prevents deadlocks. And while this statement waited for
      -- another session, fan-out could add to none of these lanes.
      order by lanes.id for update of lanes, lane_progress skip locked
    ),
    head as materialized (
      select lane, cursor, due_ms from locked where newest_sequence_now(lane) = head
    )
    update lane_progress set owner = null, cursor = greatest(lane_progress.cursor, head.cursor),
      -- A due time that is already set was requested while the lane was leased (see wakeLane).
      due_at = least(lane_progress.due_at,
        case when head.due_ms is not null then now() + head.due_ms * interval '1 millisecond' end)
    from head where lane_progress.lane = head.lane and lane_progress.owner = ${node}::bigint
    returning lane_progress.lane`.execute(db);
  return rows.map(({ lane }) => Number(lane));
}

/**
 * Seconds until a lane is due again that a node had no room for. A random time of up to the same length is added.
 */
const postponeSeconds = 3;

/** Returns lanes that the node has no room for. Lanes that became due later now come first. */
export async function postponeLanes(db: Database, node: string, lanes: readonly number[]): Promise<void> {
  if (lanes.length === 0) return;
  await sql`
    update lane_progress set owner = null, due_at = greatest(
      now() + make_interval(secs => ${postponeSeconds}::float8 * (1 + random())), paused_until)
    where lane in (
      select lane from lane_progress
      where lane = any(${bigintArray(lanes)}::bigint[]) and owner = ${node}::bigint for no key update skip locked
    )`.execute(db);
}

/** Writes cursors that were left behind. Called when the node stops. A lane that another session has locked keeps its own: nothing waits. */
export async function storeCursors(
  db: Database,
  node: string,
  lanes: readonly { id: number; cursor: number }[],
): Promise<void> {
  await sql`
    update lane_progress set cursor = greatest(lane_progress.cursor, free.cursor)
    from (
      select given.lane, given.cursor
      from unnest(
        ${bigintArray(lanes.map(({ id }) => id))}::bigint[], ${bigintArray(lanes.map(({ cursor }) => cursor))}::bigint[]
      ) as given (lane, cursor)
      cross join lateral (
        select from lane_progress
        where lane = given.lane and owner = ${node}::bigint for no key update skip locked
      ) as progress
    ) as free
    where lane_progress.lane = free.lane`.execute(db);
}

/**
 * Releases all lanes of the given nodes. Other nodes claim them at once. A sweep releases those that another session has locked: the
 * heartbeat waits for this statement, and without it a node sends nothing.
 */
export async function abandonLanes(db: Database | Transaction, nodes: readonly string[]): Promise<void> {
  await sql`
    update lane_progress set owner = null, due_at = greatest(now(), coalesce(paused_until, now()))
    where lane in (
      select lane from lane_progress where owner = any(${nodes}::bigint[]) for no key update skip locked
    )`.execute(db);
}

/**
 * Finds lanes that name the node, including lanes it does not know of because the database's response was lost.
 */
export async function findHeldLanes(db: Database, node: string): Promise<number[]> {
  const { rows } = await sql<{ lane: string }>`
    select lane from lane_progress where owner = ${node}::bigint`.execute(db);
  return rows.map(({ lane }) => Number(lane));
}

/** Finds lanes with newer deliveries than the node knows. @returns their heads */
export async function findGrownLanes(
  db: Database,
  lanes: readonly { id: number; head: number }[],
): Promise<Map<number, number>> {
  const { rows } = await sql<{ lane: string; head: string }>`
    select given.lane, l.head
    from unnest(
      ${bigintArray(lanes.map(({ id }) => id))}::bigint[], ${bigintArray(lanes.map(({ head }) => head))}::bigint[]
    ) as given (lane, head)
    cross join lateral (
      select newest_sequence(lanes) as head from lanes where id = given.lane offset 0
    ) as l
    where l.head > given.head`.execute(db);
  return new Map(rows.map(({ lane, head }) => [Number(lane), Number(head)]));
}

/**
 * Finds those of a node's lanes that must be loaded again: their subscription, or whether they may send, differs from what the node
 * has in memory, or a retry is due.
 */
export async function findOutdatedLanes(
  db: Database,
  lanes: readonly { id: number; revision: number; isOpen: boolean }[],
  appSubscriptions: AppSubscriptions,
): Promise<number[]> {
  const { rows } = await sql<{ lane: string }>`
    select s.lane
    from unnest(
      ${bigintArray(lanes.map(({ id }) => id))}::bigint[], ${bigintArray(lanes.map(({ revision }) => revision))}::bigint[],
      ${booleanArray(lanes.map((lane) => lane.isOpen))}::boolean[]
    ) as given (lane, revision, is_open)
    cross join lateral (select * from subscriptions where lane = given.lane offset 0) as s
    where s.revision <> given.revision or ${isOpen(appSubscriptions)} <> given.is_open
      or exists (select from retries r where r.lane = s.lane and r.due_at <= now() offset 0)`.execute(db);
  return rows.map(({ lane }) => Number(lane));
}

/** Finds lanes whose subscription ended or changed, in case a notification was lost. */
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

/** Finds which of these accounts are disabled, in case a notification was lost. */
export async function findDisabledAccounts(
  db: Database,
  accounts: ReadonlySet<string>,
): Promise<ReadonlySet<string>> {
  if (accounts.size === 0) return accounts;
  const { rows } = await sql<{ id: string }>`
    select id from accounts where disabled_at is not null and id = any(${[...accounts]}::uuid[])`.execute(db);
  return new Set(rows.map(({ id }) => id));
}
