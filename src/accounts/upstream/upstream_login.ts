/**
 * Sign-ins at an upstream provider, from the button to the account. Owns the table `upstream_logins`.
 *
 *   begun (sets a cookie, sends `state`) → returned (once, from the same provider, with the cookie) → identity verified
 *   → finished (once)
 *
 * A sign-in expires after ten minutes. The database stores only digests; `nonce` and the PKCE verifier are derived from the
 * secret in the cookie. Only the browser that began a sign-in can finish it, and a copy of the database is not enough.
 */

import { createHmac } from 'node:crypto';
import { sql } from 'kysely';
import { digest, newSecret } from '../../crypto/digest.ts';
import type { Database, Transaction } from '../../database/database.ts';
import type { VerifiedIdentity } from './identity.ts';

/** Lifetime of a sign-in. */
export const upstreamLoginSeconds = 600;
/** Maximum number of sign-ins that one authorization request can begin. */
const begunMax = 20;
/** Tolerated difference between the clocks of the provider and of this server. */
export const clockToleranceSeconds = 60;
const secretPattern = /^[A-Za-z0-9_-]{43}$/;
const markPattern = /^[A-Za-z0-9_-]{16}$/;

export interface NewUpstreamLogin {
  provider: string;
  /** The authorization request; null for the account page. */
  interactionUid: string | null;
  /** The signed-in account to connect the provider to; null for a sign-in. */
  accountId: string | null;
  /** Whether the app requests a new sign-in (`prompt=login`). */
  isFresh: boolean;
  maxAgeSeconds: number | null;
}

/** `state` goes to the provider, `browserSecret` into the browser's cookie. */
export interface StartedLogin {
  state: string;
  browserSecret: string;
}

/** @returns undefined if the authorization request has begun too many sign-ins */
export async function startUpstreamLogin(
  db: Database,
  login: NewUpstreamLogin,
): Promise<StartedLogin | undefined> {
  const state = newSecret();
  const browserSecret = newSecret();
  const { provider, interactionUid, accountId, isFresh, maxAgeSeconds } = login;
  const { rows } = await sql`
    insert into upstream_logins
      (browser_digest, state_digest, provider, interaction_uid, account_id, is_fresh, max_age_seconds, expires_at)
    select ${digest(browserSecret)}, ${digest(state)}, ${provider}, ${interactionUid}, ${accountId}, ${isFresh},
      ${maxAgeSeconds}, now() + make_interval(secs => ${upstreamLoginSeconds})
    where (select count(*) from upstream_logins where interaction_uid = ${interactionUid}) < ${begunMax}
    returning state_digest`.execute(db);
  return rows.length > 0 ? { state, browserSecret } : undefined;
}

/** The suffix of the cookie name, because a browser can have several sign-ins open. */
export function loginKeyOf(state: string): string {
  return digest(state).toString('base64url').slice(0, 16);
}

export function isLoginKey(value: unknown): value is string {
  return typeof value === 'string' && markPattern.test(value);
}

/** Binds the ID token to the browser (OpenID Connect Core section 15.5.2). */
export function nonceOf(browserSecret: string): string {
  return createHmac('sha256', browserSecret).update('nonce').digest('base64url');
}

/** RFC 7636 section 4.1. */
export function codeVerifierOf(browserSecret: string): string {
  return createHmac('sha256', browserSecret).update('code_verifier').digest('base64url');
}

export interface UpstreamLogin {
  provider: string;
  interactionUid: string | null;
  accountId: string | null;
  isFresh: boolean;
  maxAgeSeconds: number | null;
  createdAt: Date;
}

const loginColumns = sql.raw(
  `provider, interaction_uid as "interactionUid", account_id as "accountId", is_fresh as "isFresh",
    max_age_seconds as "maxAgeSeconds", created_at as "createdAt"`,
);

/**
 * Marks a sign-in as returned. Works once. A request of another browser or provider does not change the sign-in.
 * @param provider the provider in the callback path
 */
export async function returnFromProvider(
  db: Database,
  provider: string,
  state: string,
  browserSecret: string,
): Promise<UpstreamLogin | undefined> {
  if (!secretPattern.test(state) || !secretPattern.test(browserSecret)) return undefined;
  const { rows } = await sql<UpstreamLogin>`
    update upstream_logins set returned_at = now()
    where state_digest = ${digest(state)} and browser_digest = ${digest(browserSecret)} and provider = ${provider}
      and returned_at is null and expires_at > now()
    returning ${loginColumns}`.execute(db);
  return rows[0];
}

/** What the sign-in with this state continues, also if it has expired or is finished; undefined if there is none. */
export async function findPurpose(
  db: Database,
  state: string,
): Promise<Pick<UpstreamLogin, 'interactionUid'> | undefined> {
  if (!secretPattern.test(state)) return undefined;
  const { rows } = await sql<Pick<UpstreamLogin, 'interactionUid'>>`
    select interaction_uid as "interactionUid" from upstream_logins where state_digest = ${digest(state)}`.execute(
    db,
  );
  return rows[0];
}

/** Stores the verified identity until the browser finishes the sign-in. */
export async function storeIdentity(
  db: Database,
  browserSecret: string,
  identity: VerifiedIdentity,
): Promise<void> {
  await sql`
    update upstream_logins set identity = ${JSON.stringify(identity)}::jsonb
    where browser_digest = ${digest(browserSecret)} and returned_at is not null and identity is null`.execute(
    db,
  );
}

export interface VerifiedLogin extends UpstreamLogin {
  identity: VerifiedIdentity;
}

/** Finds a verified sign-in of this browser that is not finished. */
export async function findVerifiedLogin(
  db: Database | Transaction,
  browserSecret: string,
  interactionUid: string | null,
): Promise<VerifiedLogin | undefined> {
  if (!secretPattern.test(browserSecret)) return undefined;
  const { rows } = await sql<VerifiedLogin>`
    select ${loginColumns}, identity from upstream_logins
    where browser_digest = ${digest(browserSecret)} and interaction_uid is not distinct from ${interactionUid}
      and identity is not null and finished_at is null and expires_at > now()`.execute(db);
  return rows[0];
}

/** Finishes a sign-in. @returns false if it is finished or expired; of two concurrent calls one returns true */
export async function finishUpstreamLogin(tx: Transaction, browserSecret: string): Promise<boolean> {
  const { rows } = await sql`
    update upstream_logins set finished_at = now()
    where browser_digest = ${digest(browserSecret)} and identity is not null and finished_at is null
      and expires_at > now()
    returning state_digest`.execute(tx);
  return rows.length > 0;
}

/**
 * Whether the sign-in at the provider is as recent as the app requires. A sign-in without `auth_time` is never recent
 * enough.
 */
export function isRecentEnough({ identity, isFresh, maxAgeSeconds, createdAt }: VerifiedLogin): boolean {
  if (!isFresh && maxAgeSeconds === null) return true;
  const beganAt = Math.floor(createdAt.getTime() / 1_000);
  const now = Math.floor(Date.now() / 1_000);
  const earliest = Math.max(
    isFresh ? beganAt : 0,
    maxAgeSeconds === null ? 0 : Math.min(now - maxAgeSeconds, beganAt),
  );
  const { authTimeSeconds } = identity;
  const latest = now + clockToleranceSeconds;
  return (
    authTimeSeconds !== null &&
    authTimeSeconds >= earliest - clockToleranceSeconds &&
    authTimeSeconds <= latest
  );
}
