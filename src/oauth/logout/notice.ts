/**
 * Logout notices: pending back-channel logout requests to apps (OpenID Connect Back-Channel Logout 1.0). Owns the table
 * `logout_notices`.
 *
 *   due → in flight → delivered | due again after a growing delay → given up
 */

import { type RawBuilder, sql } from 'kysely';
import { newId } from '../../crypto/ids.ts';
import { expectLocks } from '../../database/connection_user.ts';
import type { Database, Transaction } from '../../database/database.ts';

/** Delay in seconds after each failed attempt. The notice is given up after the last one. */
export const retryDelaysSeconds = [5, 30, 120, 600, 3_600, 21_600] as const;
/** Duration of a claim in seconds, after which another node may claim the notice. */
const attemptSecondsMax = 60;

export interface LogoutNotice {
  id: string;
  clientId: string;
  accountId: string;
  sessionId: string | null;
  /** Number of attempts, including the current one. */
  attempts: number;
}

const parties = sql.raw('client_id as "clientId", account_id as "accountId", session_id as "sessionId"');

/** A user can sign out of very many apps at once: only for one that is being deleted, a transaction bounds how long this waits. */
export async function addLogoutNotice(
  db: Database,
  { clientId, accountId, sessionId }: Pick<LogoutNotice, 'clientId' | 'accountId' | 'sessionId'>,
): Promise<void> {
  const add = (given: Database | Transaction, lock: RawBuilder<unknown>) =>
    sql`
      insert into logout_notices (id, client_id, account_id, session_id)
      select ${newId()}::uuid, id, ${accountId}::uuid, ${sessionId} from clients where id = ${clientId}
      for key share ${lock}`.execute(given);
  expectLocks();
  const { numAffectedRows } = await add(db, sql`skip locked`);
  if (numAffectedRows === 0n) await db.transaction().execute((tx) => add(tx, sql``));
}

/** Maximum notices of one app in one claim, and maximum due notices that one claim examines. */
const perClientMax = 4;
const examinedMax = 500;

/**
 * Claims due notices, one of each account. No other node gets them for the duration of the claim.
 * @param skipped clients with attempts in flight, because slow clients must not delay the others, and accounts whose turn it is not
 */
export async function claimLogoutNotices(
  db: Database,
  max: number,
  skipped: { clients: readonly string[]; accounts: readonly string[] } = { clients: [], accounts: [] },
): Promise<LogoutNotice[]> {
  const { rows } = await sql<LogoutNotice>`
    update logout_notices set attempts = attempts + 1, due_at = now() + ${attemptSecondsMax} * interval '1 second'
    where id in (
      select n.id
      from (
        select id, place_of_account, row_number() over (partition by client_id order by of_user, due_at, id) as place
        from (
          select *, row_number() over (partition by account_id order by due_at, id) as place_of_account,
            row_number() over (partition by client_id, account_id order by due_at, id) as of_user
          from (
            select id, client_id, account_id, due_at from logout_notices
            where delivered_at is null and given_up_at is null and due_at <= now()
              and client_id <> all(${skipped.clients}::text[]) and account_id <> all(${skipped.accounts}::uuid[])
            order by due_at
            limit ${examinedMax}) due) counted) placed
      join logout_notices n on n.id = placed.id
      where placed.place <= ${perClientMax} and placed.place_of_account = 1
        and n.delivered_at is null and n.given_up_at is null and n.due_at <= now()
      order by n.due_at
      limit ${max}
      for update of n skip locked)
    returning id, ${parties}, attempts`.execute(db);
  return rows;
}

/**
 * Records the outcome of an attempt, unless another node has claimed the notice since.
 * @param error null if the app accepted the notice
 * @returns whether the notice was given up
 */
export async function recordLogoutAttempt(
  db: Database,
  { id, attempts }: LogoutNotice,
  error: string | null,
): Promise<boolean> {
  const delay = retryDelaysSeconds[attempts - 1] ?? null;
  const { rows } = await sql<{ is_given_up: boolean }>`
    update logout_notices set
      last_error = ${error},
      delivered_at = case when ${error}::text is null then now() end,
      given_up_at = case when ${error}::text is not null and ${delay}::int is null then now() end,
      due_at = now() + coalesce(${delay}::int, 0) * interval '1 second'
    where id = ${id} and attempts = ${attempts} and delivered_at is null and given_up_at is null
    returning given_up_at is not null as is_given_up`.execute(db);
  return rows[0]?.is_given_up === true;
}

export interface ListedLogoutNotice extends LogoutNotice {
  state: 'waiting' | 'delivered' | 'given up';
  createdAt: Date;
  dueAt: Date;
  lastError: string | null;
}

/** The newest notices, for `nuncio logout list`. */
export async function listLogoutNotices(db: Database, max: number): Promise<ListedLogoutNotice[]> {
  const { rows } = await sql<ListedLogoutNotice>`
    select id, ${parties}, attempts, created_at as "createdAt", due_at as "dueAt", last_error as "lastError",
      case when delivered_at is not null then 'delivered' when given_up_at is not null then 'given up'
        else 'waiting' end as state
    from logout_notices
    order by created_at desc, id desc
    limit ${max}`.execute(db);
  return rows;
}

/** Gives up all notices that are not delivered. @returns their number */
export async function giveUpLogoutNotices(tx: Transaction, reason: string): Promise<number> {
  const { rows } = await sql`
    update logout_notices set given_up_at = now(), last_error = ${reason}
    where delivered_at is null and given_up_at is null
    returning id`.execute(tx);
  return rows.length;
}
