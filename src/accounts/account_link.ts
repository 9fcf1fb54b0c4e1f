/**
 * Account links: single-use URLs with which an application sends a signed-in user to the account page. Owns the table
 * `account_links`.
 *
 *   created for an account → used within 60 s: becomes a session of that browser → signed out | expired after an hour
 *
 * The session gives access to the account page only. It is not a login session: it cannot authorize apps or open the
 * console. A link that is sent to another person therefore grants nothing beyond the page, which names its account.
 * Administrators have no links: the application must not act as one of them.
 */

import { sql } from 'kysely';
import { digest, newSecret } from '../crypto/digest.ts';
import type { Database, Transaction } from '../database/database.ts';
import { type Account, type AccountRow, accountColumns, toAccount } from './account.ts';

/** Lifetime of an unused link, in seconds. */
const linkSeconds = 60;
/** Lifetime of a session, in seconds. */
export const linkSessionSeconds = 3_600;
/** Format of the secrets of links and sessions. */
const secretFormat = /^[A-Za-z0-9_-]{43}$/;

export interface NewLink {
  accountId: string;
  /** The machine client that created the link. */
  clientId: string;
  returnTo: string | null;
}

/** @returns the secret in the link, and when the link expires */
export async function createAccountLink(
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
 * Uses a link. Of two concurrent uses, one succeeds.
 * @returns the session secret for the browser; undefined if the link is used, expired or unknown, or if the account is disabled
 *   or an administrator's
 */
export async function useAccountLink(db: Database, secret: string): Promise<string | undefined> {
  if (!secretFormat.test(secret)) return undefined;
  const session = newSecret();
  const { rows } = await sql`
    update account_links set used_at = now(), session_digest = ${digest(session)},
      expires_at = now() + make_interval(secs => ${linkSessionSeconds})
    where digest = ${digest(secret)} and used_at is null and expires_at > now()
      and exists (select from accounts where id = account_id and disabled_at is null and not is_admin)
    returning digest`.execute(db);
  return rows.length > 0 ? session : undefined;
}

export interface LinkSession {
  account: Account;
  returnTo: string | null;
}

export async function findLinkSession(db: Database, secret: string): Promise<LinkSession | undefined> {
  if (!secretFormat.test(secret)) return undefined;
  const { rows } = await sql<AccountRow & { return_to: string | null }>`
    select ${accountColumns}, l.return_to
    from account_links l join accounts on accounts.id = l.account_id and accounts.disabled_at is null
      and not accounts.is_admin
    where l.session_digest = ${digest(secret)} and l.expires_at > now()`.execute(db);
  return rows[0] && { account: toAccount(rows[0]), returnTo: rows[0].return_to };
}

export async function endLinkSession(db: Database, secret: string): Promise<void> {
  await sql`delete from account_links where session_digest = ${digest(secret)}`.execute(db);
}
