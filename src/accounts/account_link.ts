/**
 * Account links: single-use URLs with which an application sends one of its users to their account page here. Owns the
 * table `account_links`.
 *
 *   made for an account → (within 60 s) used: becomes a session of the browser that used it → ended, or an hour later
 *
 * The session opens the account page and nothing else. It is no login session: no authorization request and no console
 * goes on with it, so a link that somebody slips to another person lets that person allow nothing and see nothing but the
 * page, which says whose it is.
 */

import { sql } from 'kysely';
import { digest, newSecret } from '../crypto/digest.ts';
import type { Database, Transaction } from '../database/database.ts';
import { type Account, type AccountRow, accountColumns, toAccount } from './account.ts';

/** Seconds in which a link must be used. */
export const linkSeconds = 60;
/** Seconds that the session of a used link lasts. */
export const linkSessionSeconds = 3_600;
/** Characters of the secrets of links and sessions. */
const secretForm = /^[A-Za-z0-9_-]{43}$/;

export interface NewLink {
  accountId: string;
  /** The machine client that asked for it. */
  clientId: string;
  returnTo: string | null;
}

/** @returns the secret in the link, and until when it can be used */
export async function makeLink(
  db: Database | Transaction,
  { accountId, clientId, returnTo }: NewLink,
): Promise<{ secret: string; expiresAt: Date }> {
  const secret = newSecret();
  const { rows } = await sql<{ expires_at: Date }>`
    insert into account_links (digest, account_id, client_id, return_to, expires_at)
    values (${digest(secret)}, ${accountId}, ${clientId}, ${returnTo}, now() + make_interval(secs => ${linkSeconds}))
    returning expires_at`.execute(db);
  return { secret, expiresAt: (rows[0] as { expires_at: Date }).expires_at };
}

/**
 * Uses a link up: of two that try, one gets the session.
 * @returns the session's secret, for the browser; undefined for a link that is used, late or unknown, or whose account is disabled
 */
export async function useLink(db: Database, secret: string): Promise<string | undefined> {
  if (!secretForm.test(secret)) return undefined;
  const session = newSecret();
  const { rows } = await sql`
    update account_links set used_at = now(), session_digest = ${digest(session)},
      expires_at = now() + make_interval(secs => ${linkSessionSeconds})
    where digest = ${digest(secret)} and used_at is null and expires_at > now()
      and exists (select from accounts where id = account_id and disabled_at is null)
    returning digest`.execute(db);
  return rows.length > 0 ? session : undefined;
}

export interface LinkSession {
  account: Account;
  returnTo: string | null;
}

export async function findLinkSession(db: Database, secret: string): Promise<LinkSession | undefined> {
  if (!secretForm.test(secret)) return undefined;
  const { rows } = await sql<AccountRow & { return_to: string | null }>`
    select ${accountColumns}, l.return_to
    from account_links l join accounts on accounts.id = l.account_id and accounts.disabled_at is null
    where l.session_digest = ${digest(secret)} and l.expires_at > now()`.execute(db);
  return rows[0] && { account: toAccount(rows[0]), returnTo: rows[0].return_to };
}

export async function endLinkSession(db: Database, secret: string): Promise<void> {
  await sql`delete from account_links where session_digest = ${digest(secret)}`.execute(db);
}
