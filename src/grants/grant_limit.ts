/**
 * The limit of the live grants of a user and a client. Each authorization writes a grant, and an app can ask for one as often as it
 * likes. The transaction that writes one more withdraws those that are used least.
 *
 *   far from the limit → written → near it → counted under a lock, written → at it → some withdrawn, written
 */

import { sql } from 'kysely';
import { expectLocks } from '../database/connection_user.ts';
import { type Database, inTransaction, type Transaction } from '../database/database.ts';
import { changeGrantsOfClient } from './grant.ts';

/** Maximum live grants of a user and a client: one for each device and installation on which the user has signed in. */
export const grantsMax = 100;
/**
 * Live grants from which on they are counted under a lock. Only more than fifty transactions that write grants of this user and
 * app at the same time could exceed the maximum, until the next one.
 */
const countedFrom = 50;
/** How many are left when some are withdrawn: so this is rare, although it may need a delivery hold. */
const leftGrants = 90;
/** The newest grants stay, because their codes may not be exchanged yet. */
const newestKept = 10;

interface Pair {
  accountId: string;
  clientId: string;
}

/** The live grants of the user and the client. */
const livingOf = ({ accountId, clientId }: Pair) =>
  sql`grants where account_id = ${accountId} and client_id = ${clientId} and withdrawn_at is null`;

/** Counts no further than the maximum. */
export async function countLiveGrants(db: Database | Transaction, pair: Pair): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from (select from ${livingOf(pair)} limit ${grantsMax}) g`.execute(db);
  return rows[0]?.count ?? 0;
}

/**
 * Writes a grant, and withdraws others if there are too many.
 * @param hold takes the locks of the transaction that come before those of grants. Throws if there is nothing to write
 * @param write writes the grant
 */
export async function writeGrant<T>(
  db: Database,
  pair: Pair,
  hold: (tx: Transaction) => Promise<void>,
  write: (db: Database | Transaction) => Promise<T>,
): Promise<T> {
  if ((await countLiveGrants(db, pair)) < countedFrom) return write(db);
  expectLocks();
  const written = await inTransaction(db, async (tx) => {
    await hold(tx);
    if ((await lockLiveGrants(tx, pair)) >= grantsMax) return undefined;
    return { result: await write(tx) };
  });
  if (written !== undefined) return written.result;
  return changeGrantsOfClient(db, pair.accountId, pair.clientId, async (tx) => {
    await hold(tx);
    await makeRoomForGrant(tx, pair);
    return write(tx);
  });
}

/**
 * Locks all live grants, in the order of their ids, so that concurrent transactions do not deadlock. Those that write a grant
 * wait for each other.
 * @returns how many there are now, at most the maximum
 */
async function lockLiveGrants(tx: Transaction, pair: Pair): Promise<number> {
  await sql`select count(*) from (select id from ${livingOf(pair)} order by id for update) g`.execute(tx);
  // Another statement, because the first one does not see what was written while it waited.
  return countLiveGrants(tx, pair);
}

/**
 * Withdraws grants if there are too many for one more. Those stay that have subscriptions, then those with a refresh token, then the
 * others; among these, those that were used last. Call it within `changeGrantsOfClient`.
 *
 * An app can refresh as often as it likes, so the refresh tokens of a grant are not counted or searched, except for a grant that was
 * last used with a version that did not write `last_used_at`.
 */
export async function makeRoomForGrant(tx: Transaction, pair: Pair): Promise<void> {
  if ((await lockLiveGrants(tx, pair)) < grantsMax) return;
  await sql`
    update grants set withdrawn_at = now(), withdrawn_reason = 'grant_limit', updated_at = now()
    where withdrawn_at is null and id = any(array(
      select g.id
      from (select *, row_number() over (order by created_at desc, id desc) as age from ${livingOf(pair)}) g
      order by
        exists (select from subscriptions s where s.grant_id = g.id and s.state <> 'ended') desc,
        exists (select from refresh_tokens t where t.grant_id = g.id and t.expires_at > now())
          or g.age <= ${newestKept} desc,
        coalesce(
          g.last_used_at,
          (select max(t.created_at) from refresh_tokens t where t.grant_id = g.id and t.expires_at > now()),
          g.created_at) desc,
        g.id desc
      offset ${leftGrants}))`.execute(tx);
}
