/**
 * Logout notices: what an app still has to be told of a user who signed out (OpenID Connect Back-Channel Logout
 * 1.0). Owns the table `logout_notices`.
 *
 *   due → (claimed) under way → delivered | due again, later each time → given up
 */

import { sql } from 'kysely';
import { newId } from '../../crypto/ids.ts';
import type { Database } from '../../database/database.ts';

/** Seconds from each failed attempt to the next; after the last one the notice is given up. */
export const pausesSeconds = [5, 30, 120, 600, 3_600, 21_600] as const;
/** Seconds that an attempt may take, after which another node takes the notice over. */
const attemptSecondsMax = 20;

export interface LogoutNotice {
  id: string;
  clientId: string;
  accountId: string;
  sessionId: string | null;
  /** Counting the one under way. */
  attempts: number;
}

export async function addLogoutNotice(
  db: Database,
  notice: Pick<LogoutNotice, 'clientId' | 'accountId' | 'sessionId'>,
): Promise<void> {
  await sql`
    insert into logout_notices (id, client_id, account_id, session_id)
    values (${newId()}, ${notice.clientId}, ${notice.accountId}, ${notice.sessionId})`.execute(db);
}

/** Notices of one app taken at once, and those due that are looked at for it. */
const ofClientMax = 4;
const lookedAtMax = 500;

/**
 * Takes notices that are due; no other node gets them while their attempt lasts.
 * @param busy ids of clients that are being told already: one that does not answer must not hold up the others
 */
export async function claimLogoutNotices(
  db: Database,
  max: number,
  busy: readonly string[] = [],
): Promise<LogoutNotice[]> {
  const { rows } = await sql<{
    id: string;
    client_id: string;
    account_id: string;
    session_id: string | null;
    attempts: number;
  }>`
    update logout_notices set attempts = attempts + 1, due_at = now() + ${attemptSecondsMax} * interval '1 second'
    where id in (
      select n.id
      from (
        select id, row_number() over (partition by client_id order by due_at, id) as place
        from (
          select id, client_id, due_at from logout_notices
          where delivered_at is null and given_up_at is null and due_at <= now()
            and client_id <> all(${busy}::text[])
          order by due_at
          limit ${lookedAtMax}) due) placed
      join logout_notices n on n.id = placed.id
      where placed.place <= ${ofClientMax}
        and n.delivered_at is null and n.given_up_at is null and n.due_at <= now()
      order by n.due_at
      limit ${max}
      for update of n skip locked)
    returning id, client_id, account_id, session_id, attempts`.execute(db);
  return rows.map((row) => ({
    id: row.id,
    clientId: row.client_id,
    accountId: row.account_id,
    sessionId: row.session_id,
    attempts: row.attempts,
  }));
}

/**
 * Writes what became of an attempt, unless another node took the notice over meanwhile.
 * @param error null where the app said that it was told
 * @returns whether it was given up by this
 */
export async function recordLogoutAttempt(
  db: Database,
  { id, attempts }: LogoutNotice,
  error: string | null,
): Promise<boolean> {
  const pause = pausesSeconds[attempts - 1] ?? null;
  const { rows } = await sql<{ is_given_up: boolean }>`
    update logout_notices set
      last_error = ${error},
      delivered_at = case when ${error}::text is null then now() end,
      given_up_at = case when ${error}::text is not null and ${pause}::int is null then now() end,
      due_at = now() + coalesce(${pause}::int, 0) * interval '1 second'
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

/** The newest notices, for the operator. */
export async function listLogoutNotices(db: Database, max: number): Promise<ListedLogoutNotice[]> {
  const { rows } = await sql<{
    id: string;
    client_id: string;
    account_id: string;
    session_id: string | null;
    attempts: number;
    state: ListedLogoutNotice['state'];
    created_at: Date;
    due_at: Date;
    last_error: string | null;
  }>`
    select id, client_id, account_id, session_id, attempts, created_at, due_at, last_error,
      case when delivered_at is not null then 'delivered' when given_up_at is not null then 'given up'
        else 'waiting' end as state
    from logout_notices
    order by created_at desc, id desc
    limit ${max}`.execute(db);
  return rows.map((row) => ({
    id: row.id,
    clientId: row.client_id,
    accountId: row.account_id,
    sessionId: row.session_id,
    attempts: row.attempts,
    state: row.state,
    createdAt: row.created_at,
    dueAt: row.due_at,
    lastError: row.last_error,
  }));
}
