/**
 * Login requests: sign-ins handed over to the application's own login page. Owns the table `login_requests`.
 *
 *   created (a cookie for the browser, an id for the application) → answered by the application (a verifier in the URL to
 *   which it redirects the browser) → finished by the browser, once, within ten minutes
 *
 * Finishing requires both the cookie and the verifier, so the browser that started the sign-in is the one that is signed
 * in to the application. An attacker who makes a victim's browser accept the attacker's request does not get the
 * verifier. An attacker who sends the victim his own verifier reaches a browser without the cookie.
 */

import { sql } from 'kysely';
import { digest, digestEquals, newSecret } from '../crypto/digest.ts';
import type { Database, Transaction } from '../database/database.ts';

/** Lifetime in seconds. */
export const loginRequestSeconds = 600;
/** Maximum pending requests per authorization request. Reloading the page creates another one. */
const pendingMax = 20;
/** Stands for an unknown time of sign-in: older than any `max_age` allows. */
export const unknownAuthTime = 0;
const secretFormat = /^[A-Za-z0-9_-]{43}$/;

/** The parameters of the authorization request, for the application. */
export interface LoginParameters {
  scopes: string[];
  loginHint: string | null;
  /** OpenID Connect Core section 3.1.2.1. */
  prompt: string | null;
  acrValues: string[];
  /** Seconds. */
  maxAge: number | null;
}

export interface NewLoginRequest {
  /** The authorization request; null if the user opened the account page. */
  interactionUid: string | null;
  clientId: string | null;
  parameters: LoginParameters;
}

/** @returns undefined if too many requests are pending for the same authorization request */
export async function createLoginRequest(
  db: Database,
  { interactionUid, clientId, parameters }: NewLoginRequest,
): Promise<{ id: string; browserSecret: string } | undefined> {
  const id = newSecret();
  const browserSecret = newSecret();
  const { rows } = await sql`
    insert into login_requests (digest, interaction_uid, client_id, parameters, browser_digest, expires_at)
    select ${digest(id)}, ${interactionUid}, ${clientId}, ${JSON.stringify(parameters)}::jsonb, ${digest(browserSecret)},
      now() + make_interval(secs => ${loginRequestSeconds})
    where (
      select count(*) from login_requests
      where interaction_uid = ${interactionUid} and answered_at is null and expires_at > now()) < ${pendingMax}
    returning digest`.execute(db);
  return rows.length > 0 ? { id, browserSecret } : undefined;
}

export interface LoginRequest {
  clientId: string | null;
  interactionUid: string | null;
  parameters: LoginParameters;
  createdAt: Date;
  expiresAt: Date;
  isAnswered: boolean;
}

/** Finds a pending or answered request that has not expired. */
export async function findLoginRequest(
  db: Database | Transaction,
  id: string,
): Promise<LoginRequest | undefined> {
  if (!secretFormat.test(id)) return undefined;
  const { rows } = await sql<LoginRequest>`
    select client_id as "clientId", interaction_uid as "interactionUid", parameters, created_at as "createdAt",
      expires_at as "expiresAt", answered_at is not null as "isAnswered"
    from login_requests where digest = ${digest(id)} and expires_at > now()`.execute(db);
  return rows[0];
}

/** The application's result: how the user signed in, or the error. */
export type LoginResult =
  | {
      accountId: string;
      /** Seconds since the epoch, or `unknownAuthTime`. */
      authTime: number;
      amr: string[] | null;
      acr: string | null;
    }
  | { accountId: null; error: string; description: string | null };

/**
 * Accepts or rejects a request. Of two concurrent calls, one succeeds.
 * @returns the verifier for the browser; undefined if the request is already answered or expired
 */
export async function recordLoginResult(
  tx: Transaction,
  id: string,
  answeredBy: string,
  result: LoginResult,
): Promise<string | undefined> {
  const verifier = newSecret();
  const { accountId, ...rest } = result;
  const { rows } = await sql`
    update login_requests set answered_at = now(), answered_by = ${answeredBy}, verifier_digest = ${digest(verifier)},
      account_id = ${accountId}, result = ${JSON.stringify(rest)}::jsonb
    where digest = ${digest(id)} and answered_at is null and expires_at > now()
    returning digest`.execute(tx);
  return rows.length > 0 ? verifier : undefined;
}

/** Suffix of the browser's cookie name. One browser may have several sign-ins in progress. */
function loginCookieSuffix(requestDigest: Buffer): string {
  return requestDigest.toString('base64url').slice(0, 16);
}

export function loginRequestSuffix(id: string): string {
  return loginCookieSuffix(digest(id));
}

/** A result, with the account's epoch when the browser came back. */
export type FinishedLoginRequest =
  | (Extract<LoginResult, { accountId: string }> & { signInEpoch: number })
  | Extract<LoginResult, { accountId: null }>;

/**
 * Finishes a sign-in, once.
 * @param interactionUid the authorization request to continue; null for the account page
 * @param mayBeAdministrator whether the application may sign in administrators
 * @param readSecret returns the secret in the browser's cookie with the given suffix
 * @returns undefined if the request is used or expired, belongs to another browser or another authorization request, or if
 *   the account has been disabled or has become an administrator
 */
export async function finishLoginRequest(
  db: Database,
  verifier: string,
  interactionUid: string | null,
  mayBeAdministrator: boolean,
  readSecret: (suffix: string) => string | undefined,
): Promise<FinishedLoginRequest | undefined> {
  if (!secretFormat.test(verifier)) return undefined;
  const { rows: found } = await sql<{ digest: Buffer; browser_digest: Buffer }>`
    select digest, browser_digest from login_requests where verifier_digest = ${digest(verifier)}`.execute(
    db,
  );
  const row = found[0];
  const secret = row && readSecret(loginCookieSuffix(row.digest));
  if (row === undefined || secret === undefined) return undefined;
  // Checked before the request is used up, so that another browser cannot consume it.
  if (!digestEquals(digest(secret), row.browser_digest)) return undefined;
  const { rows } = await sql<{
    account_id: string | null;
    sign_in_epoch: number | null;
    result: Omit<LoginResult, 'accountId'>;
  }>`
    update login_requests set used_at = now()
    where digest = ${row.digest} and used_at is null and expires_at > now()
      and interaction_uid is not distinct from ${interactionUid}
      and (account_id is null or exists (
        select from accounts a
        where a.id = account_id and a.disabled_at is null and (not a.is_admin or ${mayBeAdministrator})))
    returning account_id, result, (select sign_in_epoch from accounts a where a.id = account_id)`.execute(db);
  const done = rows[0];
  if (done === undefined) return undefined;
  const { result, account_id: accountId, sign_in_epoch: signInEpoch } = done;
  return { ...result, accountId, signInEpoch } as FinishedLoginRequest;
}
