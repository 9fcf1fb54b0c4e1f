/**
 * Delivery holds. A transaction that ends the right to deliveries, such as the withdrawal of a grant, first puts those
 * deliveries on hold: every node stops starting them. The transaction deletes the hold in the same commit that ends the right,
 * so no node starts such a delivery after that commit. Attempts in flight finish and are recorded. Owns the tables
 * `delivery_holds` and `delivery_hold_acknowledgements`.
 *
 *   requested (row and notification) → acknowledged by every sending node → transaction, which deletes the row
 *   no acknowledgement → the node has not read the database for `maxStalenessMs`, so it starts nothing → transaction
 *   silent node → other nodes have recorded that it starts nothing (webhooks/lanes/node.ts) → not waited for
 *   requester died before its transaction → expired → deleted by any node
 *
 * Every node reads the table at least every `maxStalenessMs`, besides listening to notifications. A node that is paused or cut
 * off from the database therefore stops sending by itself, and reads all rights again before it continues. The first try gives up
 * after a moment if a node neither acknowledges nor had a heartbeat lately. So the other nodes keep sending until the silent node is
 * identified. The second try does not wait for it.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import type { Database, Transaction } from '../database/database.ts';
import { waitElsewhere } from '../http/overload/request_place.ts';

/** A node starts nothing more when its last read of the database is this many milliseconds ago. */
export const maxStalenessMs = 3_000;
/**
 * Milliseconds after which a node whose heartbeat counter has not changed is silent: it has not read the database, so it starts
 * nothing.
 */
export const silentNodeAfterMs = maxStalenessMs + 250;
/**
 * Milliseconds after which the first try releases a hold that a node has not acknowledged. Other nodes continue while
 * that node is identified, which takes a second. A node with a heartbeat in the last moments is only busy, and waited for.
 */
const firstTryMs = 250;
/** Nodes have a heartbeat every second. */
const recentHeartbeatMs = 1_250;
/** Seconds after its last heartbeat for which a node counts as running, for operators (`/admin/nodes`, `nuncio epoch begin`). */
export const aliveSeconds = 45;
/** Milliseconds between checks for acknowledgements: at first, and at most. */
const pollMs = { min: 2, max: 25 };
/** Milliseconds between checks while silent nodes are identified. */
const silentNodePollMs = 100;
/** Seconds within which the transaction must begin. */
const holdLifetimeSeconds = 10;
/** How often a hold is requested that expires before its transaction begins. */
const attemptsMax = 3;
/**
 * The notification channel that nodes listen on. The payload is the id of a hold that begins; a prefix marks the id of a hold
 * that is over. A notification only makes nodes read the table.
 */
export const deliveryHoldChannel = 'delivery_hold';
export const overPrefix = 'over:';

/**
 * Which deliveries are on hold: of a client for one account (null for all accounts), of all clients for one account, or of one
 * lane.
 */
export type HoldSubject =
  | { clientId: string; accountId: string | null; lane: null }
  | { clientId: null; accountId: string; lane: null }
  | { clientId: null; accountId: null; lane: number };

export type DeliveryHold = HoldSubject & { id: string };

/**
 * Runs a transaction that ends the right to deliveries, while no node starts any of them.
 * @param work if it throws, the transaction rolls back and the error is rethrown
 * @throws Error if each hold expired before its transaction began
 */
export async function withDeliveryHold<T>(
  db: Database,
  subject: HoldSubject,
  work: (tx: Transaction) => Promise<T>,
): Promise<T> {
  const silent = new Map<string, string>();
  for (let count = 0; count < attemptsMax; count += 1) {
    const id = newId();
    let isOver = false;
    try {
      await requestHold(db, id, subject);
      const unacknowledged = await waitForAcknowledgements(db, id, silent, count === 0);
      if (unacknowledged.length > 0) {
        await releaseHold(db, id);
        isOver = true;
        const found = await waitElsewhere(() => findSilentNodes(db, unacknowledged));
        for (const { id, heartbeats } of found) silent.set(id, heartbeats);
        continue;
      }
      const done = await db.transaction().execute(async (tx) => {
        // The delete locks the row until the commit. Nodes keep seeing it until then.
        if (!(await releaseHold(tx, id))) return undefined;
        return { result: await work(tx) };
      });
      isOver = true;
      if (done !== undefined) return done.result;
    } finally {
      // If the delete fails, the hold expires by itself.
      if (!isOver) await releaseHold(db, id).catch(() => {});
    }
  }
  throw new Error('deliveries could not be put on hold in time');
}

/** Runs a transaction that disables or deletes an account, while no node starts deliveries of its events. */
export function withAccountHold<T>(
  db: Database,
  accountId: string,
  work: (tx: Transaction) => Promise<T>,
): Promise<T> {
  return withDeliveryHold(db, { clientId: null, accountId, lane: null }, work);
}

async function requestHold(
  db: Database,
  id: string,
  { clientId, accountId, lane }: HoldSubject,
): Promise<void> {
  await sql`
    with asked as (
      insert into delivery_holds (id, client_id, account_id, lane, until)
      values (${id}, ${clientId}, ${accountId}, ${lane}, now() + ${holdLifetimeSeconds} * interval '1 second')
      returning id)
    select announce(${deliveryHoldChannel}, id::text) from asked`.execute(db);
}

/**
 * Whether another node has recorded a row of `nodes` as silent. This is read after the commit of the hold. So a heartbeat that
 * ends the silence is newer than the hold, and the node then reads the hold.
 */
const isRecordedSilent = sql<boolean>`
  coalesce(silent_heartbeats = heartbeats and silent_epoch = current_epoch(), false)`;

/** Whether its last heartbeat was a moment ago, by the database's clock. Not if that was set back since. */
const hasRecentHeartbeat = sql<boolean>`
  alive_until - make_interval(secs => ${aliveSeconds}) between now() - ${recentHeartbeatMs} * interval '1 millisecond' and now()`;

interface NodeHeartbeats {
  id: string;
  /** The node's heartbeat counter. */
  heartbeats: string;
}

/**
 * Waits until no node starts the deliveries on hold.
 * @param silent heartbeat counters of nodes known to be silent, by node id: they start nothing until they read the
 *   database again
 * @param isFirstTry whether to return early if a node does not acknowledge soon and had no heartbeat lately
 * @returns the nodes without an acknowledgement; empty if no node starts the deliveries
 */
async function waitForAcknowledgements(
  db: Database,
  id: string,
  silent: ReadonlyMap<string, string>,
  isFirstTry: boolean,
): Promise<NodeHeartbeats[]> {
  const askedAt = performance.now();
  for (let pauseMs = pollMs.min; ; pauseMs = Math.min(2 * pauseMs, pollMs.max)) {
    const { rows } = await sql<NodeHeartbeats & { is_recent: boolean }>`
      select id, heartbeats, ${hasRecentHeartbeat} as is_recent from nodes
      -- Other nodes delete a dead node's row within seconds.
      where not ${isRecordedSilent}
        and not exists (select from delivery_hold_acknowledgements a where a.hold = ${id} and a.node = nodes.id)`.execute(
      db,
    );
    const unacknowledged = rows.filter((node) => silent.get(node.id) !== node.heartbeats);
    const waitedMs = performance.now() - askedAt;
    if (unacknowledged.length === 0 || waitedMs >= silentNodeAfterMs) return [];
    const isSilent = unacknowledged.some(({ is_recent: isRecent }) => !isRecent);
    if (isFirstTry && waitedMs >= firstTryMs && isSilent) return unacknowledged;
    await sleep(pauseMs);
  }
}

/**
 * @returns those of the nodes that have been silent for so long that they start nothing until they read the database
 */
async function findSilentNodes(db: Database, nodes: readonly NodeHeartbeats[]): Promise<NodeHeartbeats[]> {
  const since = performance.now();
  let left = [...nodes];
  for (;;) {
    const { rows } = await sql<NodeHeartbeats & { is_silent: boolean }>`
      select id, heartbeats, ${isRecordedSilent} as is_silent
      from nodes where id = any(${left.map(({ id }) => id)}::bigint[])`.execute(db);
    const found = new Map(rows.map((row) => [row.id, row]));
    left = left.filter((node) => found.get(node.id)?.heartbeats === node.heartbeats);
    const areSilent = left.every(({ id }) => found.get(id)?.is_silent);
    if (areSilent || performance.now() - since >= silentNodeAfterMs) return left;
    await sleep(silentNodePollMs);
  }
}

/** @returns whether the hold still existed */
async function releaseHold(db: Database | Transaction, id: string): Promise<boolean> {
  const { rows } = await sql`
    with acknowledgements as (delete from delivery_hold_acknowledgements where hold = ${id}),
    ended as (delete from delivery_holds where id = ${id} returning id)
    select announce(${deliveryHoldChannel}, ${overPrefix} || id::text) from ended`.execute(db);
  return rows.length > 0;
}

/** Also a hold that ends too late: the clock was set back. */
const isExpired = sql<boolean>`until not between now() and now() + ${2 * holdLifetimeSeconds} * interval '1 second'`;

/** Reads all holds. Deletes those that have expired and whose transaction is not running. */
export async function readDeliveryHolds(db: Database): Promise<DeliveryHold[]> {
  const { rows } = await sql<{
    id: string;
    client_id: string | null;
    account_id: string | null;
    lane: string | null;
    is_expired: boolean;
  }>`
    select id, client_id, account_id, lane, ${isExpired} as is_expired from delivery_holds`.execute(db);
  const expired = rows.filter(({ is_expired }) => is_expired).map(({ id }) => id);
  const gone = new Set(expired.length === 0 ? [] : await deleteExpiredHolds(db, expired));
  return rows
    .filter(({ id }) => !gone.has(id))
    .map(({ id, client_id, account_id, lane }) => ({
      id,
      clientId: client_id,
      accountId: account_id,
      lane: lane === null ? null : Number(lane),
    })) as DeliveryHold[];
}

/** @returns the ids of the deleted holds */
async function deleteExpiredHolds(db: Database, ids: readonly string[]): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    with expired as (
      select id from delivery_holds where id = any(${ids}::uuid[]) and ${isExpired} for update skip locked),
    acknowledgements as (delete from delivery_hold_acknowledgements where hold in (select id from expired))
    delete from delivery_holds where id in (select id from expired) returning id`.execute(db);
  return rows.map(({ id }) => id);
}

/** Confirms that the node starts none of these deliveries until the holds are over. */
export async function acknowledgeHolds(db: Database, node: string, ids: readonly string[]): Promise<void> {
  await sql`
    insert into delivery_hold_acknowledgements (hold, node)
    select id, ${node}::bigint from delivery_holds where id = any(${ids}::uuid[])
    on conflict do nothing`.execute(db);
}

/** Deletes acknowledgements that arrived after their hold was over. */
export async function deleteOrphanedAcknowledgements(db: Database): Promise<void> {
  await sql`
    delete from delivery_hold_acknowledgements a
    where not exists (select from delivery_holds h where h.id = a.hold)`.execute(db);
}
