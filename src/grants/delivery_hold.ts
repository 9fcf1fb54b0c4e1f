/**
 * Standstills: whoever ends the right to deliveries first has every node stop starting them, and lets go of the nodes
 * by the same commit that ends the right. So no delivery starts after that commit, on any node. Owns the tables
 * `standstills` and `standstill_answers`.
 *
 *   asked for (row, notification) → answered by every node that sends → the transaction, which takes the row away
 *   a node that does not answer starts nothing either once it has had no news for `maxStalenessMs`: waited for that long
 *   a node is known not to have looked for that long: not waited for. The others go on while that is found out
 *   whoever asked is gone before the transaction: the row is taken away by any node once its time is over
 *
 * A node looks at the rows at least that often, besides being notified. One that stands still itself, or is cut off
 * from the database, is thus no exception. What is under way ends, and is recorded.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import type { Database, Transaction } from '../database/database.ts';

/** Milliseconds after its last look at the database when a node starts nothing more. */
export const maxStalenessMs = 3_000;
/** Milliseconds that answers are waited for: by then whoever has not looked starts nothing. */
const answersMsMax = maxStalenessMs + 250;
/**
 * Milliseconds after which a standstill that some node has not answered is called off, so that the others go on while that
 * node is found to be silent. It is asked for again then.
 */
const patienceMs = 250;
/** Milliseconds between looks for answers: at first, and at most. */
const pollMs = { first: 2, most: 25 };
/** The same while nodes are found to be silent. */
const silencePollMs = 100;
/** Seconds in which the transaction must have begun. */
const lifeSeconds = 10;
/** How often it is asked for anew where it was over before the transaction began. */
const triesMax = 3;
/** Where nodes listen. */
export const deliveryHoldChannel = 'standstill';

/**
 * Which deliveries: those that a client gets for an account (for all, where it is null), those that all clients get for
 * an account, or those of one lane.
 */
export type HoldSubject =
  | { clientId: string; accountId: string | null; lane: null }
  | { clientId: null; accountId: string; lane: null }
  | { clientId: null; accountId: null; lane: number };

export type DeliveryHold = HoldSubject & { id: string };

/**
 * Does something in a transaction that ends the right to deliveries, while no node starts any of them.
 * @param work what is thrown by it is thrown again, and changes nothing
 * @throws Error where the standstill was over each time before the transaction began
 */
export async function withDeliveryHold<T>(
  db: Database,
  subject: HoldSubject,
  work: (tx: Transaction) => Promise<T>,
): Promise<T> {
  const silent = new Map<string, string>();
  for (let count = 0; count < triesMax; count += 1) {
    const id = newId();
    let isOver = false;
    try {
      await ask(db, id, subject);
      const unanswered = await allStandStill(db, id, silent, count === 0);
      if (unanswered.length > 0) {
        await end(db, id);
        isOver = true;
        for (const { id, looks } of await findSilent(db, unanswered)) silent.set(id, looks);
        continue;
      }
      const done = await db.transaction().execute(async (tx) => {
        // Nobody else takes the row away from here on; the nodes see it until the commit.
        if (!(await end(tx, id))) return undefined;
        return { result: await work(tx) };
      });
      isOver = true;
      if (done !== undefined) return done.result;
    } finally {
      // What cannot be taken away now is over by its time.
      if (!isOver) await end(db, id).catch(() => {});
    }
  }
  throw new Error('deliveries could not be brought to a standstill in time');
}

async function ask(db: Database, id: string, { clientId, accountId, lane }: HoldSubject): Promise<void> {
  await sql`
    with asked as (
      insert into standstills (id, client_id, account_id, lane, until)
      values (${id}, ${clientId}, ${accountId}, ${lane}, now() + ${lifeSeconds} * interval '1 second')
      returning *)
    select pg_notify(current_schema() || '.' || ${deliveryHoldChannel}, json_build_object(
      'id', id, 'clientId', client_id, 'accountId', account_id, 'lane', lane)::text)
    from asked`.execute(db);
}

interface NodeLooks {
  id: string;
  /** How often it has looked at the database; 0 for nodes of earlier versions, which do not count. */
  looks: string;
}

/**
 * Waits until no node starts what is asked for.
 * @param silent nodes that start nothing until they look again, by id: how often each had looked
 * @param mayGiveUp whether nodes that do not answer soon may be found out about first
 * @returns those; empty where nothing is started any more
 */
async function allStandStill(
  db: Database,
  id: string,
  silent: ReadonlyMap<string, string>,
  mayGiveUp: boolean,
): Promise<NodeLooks[]> {
  const askedAt = performance.now();
  for (let pauseMs = pollMs.first; ; pauseMs = Math.min(2 * pauseMs, pollMs.most)) {
    const { rows } = await sql<NodeLooks>`
      select id, looks from nodes
      -- One that died is taken away by the others within seconds; those of earlier versions have a time.
      where (looks > 0 or alive_until > now())
        and not exists (select from standstill_answers a where a.standstill = ${id} and a.node = nodes.id)`.execute(
      db,
    );
    const unanswered = rows.filter((node) => silent.get(node.id) !== node.looks);
    const waitedMs = performance.now() - askedAt;
    if (unanswered.length === 0 || waitedMs >= answersMsMax) return [];
    const isCounting = unanswered.every(({ looks }) => looks !== '0');
    if (mayGiveUp && isCounting && waitedMs >= patienceMs) return unanswered;
    await sleep(pauseMs);
  }
}

/** @returns those of the nodes that have not looked since, for so long that they start nothing until they do */
async function findSilent(db: Database, nodes: readonly NodeLooks[]): Promise<NodeLooks[]> {
  const since = performance.now();
  let left = [...nodes];
  for (;;) {
    const { rows } = await sql<NodeLooks>`
      select id, looks from nodes where id = any(${left.map(({ id }) => id)}::bigint[])`.execute(db);
    const looks = new Map(rows.map((row) => [row.id, row.looks]));
    left = left.filter((node) => looks.get(node.id) === node.looks);
    if (left.length === 0 || performance.now() - since >= answersMsMax) return left;
    await sleep(silencePollMs);
  }
}

/** @returns whether it was still there */
async function end(db: Database | Transaction, id: string): Promise<boolean> {
  const { rows } = await sql`
    with answers as (delete from standstill_answers where standstill = ${id}),
    ended as (delete from standstills where id = ${id} returning id)
    select pg_notify(current_schema() || '.' || ${deliveryHoldChannel}, json_build_object('id', id, 'isOver', true)::text) from ended`.execute(
    db,
  );
  return rows.length > 0;
}

/** What a notification says: a standstill that began, or one that is over. */
export type HoldNotice = DeliveryHold | { id: string; isOver: true };

export function parseHoldNotice(payload: string): HoldNotice {
  return JSON.parse(payload) as HoldNotice;
}

/** All there are, but for those whose time is over and whose transaction does not run: these are taken away. */
export async function readDeliveryHolds(db: Database): Promise<DeliveryHold[]> {
  const { rows } = await sql<{
    id: string;
    client_id: string | null;
    account_id: string | null;
    lane: string | null;
    is_late: boolean;
  }>`
    select id, client_id, account_id, lane, until < now() as is_late from standstills`.execute(db);
  const late = rows.filter(({ is_late }) => is_late).map(({ id }) => id);
  const gone = new Set(late.length === 0 ? [] : await deleteExpiredHolds(db, late));
  return rows
    .filter(({ id }) => !gone.has(id))
    .map(({ id, client_id, account_id, lane }) => ({
      id,
      clientId: client_id,
      accountId: account_id,
      lane: lane === null ? null : Number(lane),
    })) as DeliveryHold[];
}

/** @returns those that are over */
async function deleteExpiredHolds(db: Database, ids: readonly string[]): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    with late as (
      select id from standstills where id = any(${ids}::uuid[]) and until < now() for update skip locked),
    answers as (delete from standstill_answers where standstill in (select id from late))
    delete from standstills where id in (select id from late) returning id`.execute(db);
  return rows.map(({ id }) => id);
}

/** Says that the node starts nothing of these until they are over. */
export async function acknowledgeHolds(db: Database, node: string, ids: readonly string[]): Promise<void> {
  await sql`
    insert into standstill_answers (standstill, node)
    select id, ${node}::bigint from standstills where id = any(${ids}::uuid[])
    on conflict do nothing`.execute(db);
}

/** Takes away answers that came when it was over. */
export async function deleteOrphanedAcknowledgements(db: Database): Promise<void> {
  await sql`
    delete from standstill_answers a
    where not exists (select from standstills s where s.id = a.standstill)`.execute(db);
}
