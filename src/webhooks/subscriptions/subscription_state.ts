/**
 * Disabling and enabling a subscription. While a subscription is disabled, its deliveries are created and numbered
 * but not sent: they are held. Enabling it does not send them; a recovery or a resend does.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { currentUser, inTurnOf } from '../../database/connection_user.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { disabledName } from '../../events/built_in_names.ts';
import { appendEvent } from '../../events/event.ts';
import { patternsOf } from '../../events/kind_pattern.ts';
import { overloaded } from '../../http/overload/refusal.ts';
import { waitElsewhere } from '../../http/overload/request_place.ts';
import { LimitedWork } from '../../shared/limited_work.ts';
import { undivided } from '../../shared/owner_turns.ts';
import type { Owner } from './subscription.ts';
import { actAsOwner, ownedBy } from './subscription.ts';

export type DisabledReason = 'owner' | 'gone' | 'failing' | 'operator' | 'password_reset';

/** Disables a subscription for its owner. Call it inside a delivery hold. */
export async function disableByOwner(tx: Transaction, owner: Owner, id: string): Promise<void> {
  await sql`
    update subscriptions set
      disabled_reason = case when state = 'active' then 'owner' else disabled_reason end,
      updated_at = case when state = 'active' then now() else updated_at end,
      state = 'disabled'
    where id = ${id} and ${ownedBy(owner)}`.execute(tx);
}

/**
 * Disables a subscription for an administrator. Call it inside a delivery hold. The owner may enable it again, unless
 * the app is suspended.
 */
export async function disableByOperator(tx: Transaction, id: string): Promise<void> {
  await sql`
    update subscriptions set state = 'disabled', disabled_reason = 'operator', updated_at = now()
    where id = ${id} and state = 'active'`.execute(tx);
}

/** A user's own subscription. */
export interface UserSubscription {
  id: string;
  url: string | null;
  kinds: string[];
  state: 'active' | 'disabled';
  createdAt: Date;
}

/**
 * Lists a user's own subscriptions, oldest first, and disables them after a reset of the password. Call it inside a delivery
 * hold, after the grants of the console are withdrawn.
 */
export async function disableOfUser(
  tx: Transaction,
  accountId: string,
  mustDisable: boolean,
): Promise<UserSubscription[]> {
  // Locks them in every state, so that a request that enables one has either finished or is refused.
  await sql`
    select from subscriptions where account_id = ${accountId} and owner = 'user' and state <> 'ended'
    order by id for update`.execute(tx);
  if (mustDisable) {
    await sql`
      update subscriptions set state = 'disabled', disabled_reason = 'password_reset', updated_at = now()
      where account_id = ${accountId} and owner = 'user' and state = 'active'`.execute(tx);
  }
  const { rows } = await sql<Omit<UserSubscription, 'createdAt'> & { created_at: Date }>`
    select id, url, kinds, state, created_at from subscriptions
    where account_id = ${accountId} and owner = 'user' and state <> 'ended' order by id`.execute(tx);
  return rows.map(({ created_at: createdAt, ...row }) => ({ ...row, createdAt }));
}

/**
 * Disables subscriptions because of their responses, and notifies their owners' other subscriptions: one after the other, because the
 * deliveries share the connections. Waits for no other session: later responses will be the same.
 * @returns the lanes of those that it disabled
 */
export async function disableByWorker(
  db: Database,
  lanes: readonly number[],
  reason: DisabledReason,
): Promise<number[]> {
  const disabled: number[] = [];
  for (const lane of lanes) if (await tryToDisable(db, lane, reason)) disabled.push(lane);
  return disabled;
}

async function tryToDisable(db: Database, lane: number, reason: DisabledReason): Promise<boolean> {
  return db.transaction().execute(async (tx) => {
    const { rows } = await sql`
      update subscriptions set state = 'disabled', disabled_reason = ${reason}, updated_at = now()
      where lane in (
        select lane from subscriptions where lane = ${lane} and state = 'active' for no key update skip locked
      )
      returning id`.execute(tx);
    if (rows.length === 0) return false;
    await notifyOwner(tx, lane, disabledName, { reason });
    return true;
  });
}

/**
 * Notifies the owner of a subscription by an event to the owner's other subscriptions.
 * @param more properties of the event's body besides the subscription
 * @returns the subscription's id; undefined if it does not exist
 */
export async function notifyOwner(
  tx: Transaction,
  lane: number,
  kind: string,
  more: Readonly<Record<string, unknown>>,
): Promise<string | undefined> {
  // A part for each index, so that subscriptions of other owners are not read.
  const { rows } = await sql<{ id: string; url: string | null; account_id: string | null; lanes: string[] }>`
    select id, url, account_id, array(
      select other.lane from (
        select lane, kinds, state from subscriptions where owner = 'grant' and grant_id = s.grant_id and state <> 'ended'
        union all
        select lane, kinds, state from subscriptions
        where owner = 'user' and s.owner = 'user' and account_id = s.account_id and state <> 'ended'
        union all
        select lane, kinds, state from subscriptions
        where owner = 'client' and s.owner = 'client' and client_id = s.client_id and state <> 'ended'
      ) as other
      where other.lane <> s.lane and other.state = 'active' and other.kinds && ${patternsOf(kind)}::text[]
    ) as lanes
    from subscriptions s where lane = ${lane} and state <> 'ended'`.execute(tx);
  const row = rows[0];
  if (row === undefined) return undefined;
  if (row.lanes.length > 0) {
    const body = { subscription: { id: row.id, url: row.url }, ...more };
    await appendEvent(tx, { accountId: row.account_id, kind, body }, row.lanes);
  }
  return row.id;
}

/** Milliseconds to wait for a node to release the lane of a disabled subscription, and between looks: at first, and at most. */
const releaseWaitMs = 20_000;
const releasePollMs = { min: 50, max: 500 };

/** Retries that one transaction holds. */
const heldAtOnce = 1_000;
/** Transactions that hold retries of subscriptions with more: one at a time, so that they leave others the connections for changes. */
const holds = new LimitedWork(1);
/** Requests of one caller that may wait for a turn. */
const waitingMax = 4;

/**
 * Enables a subscription for its owner. Waits for attempts that were in flight when it was disabled, without a place: they may hang.
 * @returns whether the subscription exists; undefined if a node still leases its lane, or more retries are left than could be held in time
 * @throws Problem 503 or NoTurnError if many others hold retries
 */
export async function enableByOwner(db: Database, owner: Owner, id: string): Promise<boolean | undefined> {
  const until = performance.now() + releaseWaitMs;
  const caller = currentUser() ?? undivided('');
  const attempt = () => db.transaction().execute((tx) => tryToEnable(tx, owner, id));
  let done = await attempt();
  while (typeof done !== 'boolean' && performance.now() < until) {
    if (done === 'leased') {
      await waitElsewhere(() => waitForRelease(db, id, until));
      done = await attempt();
    } else {
      if (holds.isFull(caller, waitingMax)) throw overloaded();
      done = await waitElsewhere(() =>
        holds.run(caller, () => inTurnOf('held retries', holds.waitingOwners, attempt)),
      );
    }
  }
  return typeof done === 'boolean' ? done : undefined;
}

/** @param until when to give up, on the monotonic clock */
async function waitForRelease(db: Database, id: string, until: number): Promise<void> {
  let pauseMs = releasePollMs.min;
  do {
    await sleep(pauseMs);
    pauseMs = Math.min(2 * pauseMs, releasePollMs.max);
    const { rows } = await sql`
      select from subscriptions s join lane_progress p on p.lane = s.lane
      where s.id = ${id} and p.owner is not null`.execute(db);
    if (rows.length === 0) return;
  } while (performance.now() < until);
}

/** @returns whether the subscription exists, or why it is not enabled yet */
async function tryToEnable(tx: Transaction, owner: Owner, id: string): Promise<boolean | Obstacle> {
  await actAsOwner(tx, owner);
  const { rows } = await sql<{ lane: string; state: string; url: string | null }>`
    select lane, state, url from subscriptions where id = ${id} and ${ownedBy(owner)} for update`.execute(tx);
  const row = rows[0];
  if (row === undefined) return false;
  if (row.state === 'active') return true;
  // What a subscriber pulls is not held.
  const obstacle = row.url === null ? null : await holdWaiting(tx, row.lane);
  if (obstacle !== null) return obstacle;
  await sql`
    update subscriptions set state = 'active', disabled_reason = null, updated_at = now()
    where id = ${id}`.execute(tx);
  return true;
}

/** A node leases the lane, or some of its retries are not held yet. */
type Obstacle = 'leased' | 'unfinished';

/**
 * Holds what was added while the subscription was disabled, or a part of it if it is much.
 * @returns null if all of it is held
 */
async function holdWaiting(tx: Transaction, lane: string): Promise<Obstacle | null> {
  await sql`
    select from lane_progress p join lanes l on l.id = p.lane where p.lane = ${lane} for update of l, p`.execute(
    tx,
  );
  const { rows: progress } = await sql<{ cursor: string; last: string; owner: string | null }>`
    select p.cursor, newest_sequence(l) as last, p.owner
    from lane_progress p join lanes l on l.id = p.lane where p.lane = ${lane}`.execute(tx);
  const { cursor, last, owner: node } = progress[0] as { cursor: string; last: string; owner: string | null };
  // The node that leases the lane has a newer cursor in memory.
  if (node !== null) return 'leased';
  const { rows: held } = await sql`
    update retries set state = 'held', due_at = null
    where lane = ${lane} and sequence in (
      select sequence from retries where lane = ${lane} and state = 'pending' order by sequence limit ${heldAtOnce}::int
    ) returning 1`.execute(tx);
  if (held.length === heldAtOnce) return 'unfinished';
  if (Number(last) > Number(cursor)) {
    await sql`
      insert into held_ranges (lane, first, last) values (${lane}, ${cursor}::bigint + 1, ${last})`.execute(
      tx,
    );
  }
  await sql`
    update lane_progress set cursor = ${last}, paused_until = null, failures = 0, failing_since = null, due_at = null
    where lane = ${lane}`.execute(tx);
  return null;
}
