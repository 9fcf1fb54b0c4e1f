/**
 * Login requests: sign-ins that are handed over to the application's own login page. Owns the table `login_requests`.
 *
 *   begun (a cookie for the browser, an id for the application) → answered by the application (a verifier in the address
 *   that it sends the browser to) → finished by the browser, once, within ten minutes
 *
 * Finishing takes both the cookie and the verifier: the browser that began the sign-in, and the one that is signed in to
 * the application, are the same. An attacker who lets a victim's browser answer his own request lacks the verifier; one
 * who sends the victim his own verifier has given it to a browser without the cookie.
 */

import { sql } from 'kysely';
import { digest, digestEquals, newSecret } from '../crypto/digest.ts';
import type { Database, Transaction } from '../database/database.ts';

/** Seconds from the beginning to the end. */
export const loginRequestSeconds = 600;
/** Requests that wait for one authorization request at most: a page may be loaded again. */
const waitingMax = 20;
/** Where the application does not say when the user signed in: longer ago than any `max_age` allows. */
export const unknownAuthTime = 0;
const secretForm = /^[A-Za-z0-9_-]{43}$/;

/** What the application is told, as the app asked for it. */
export interface LoginQuestion {
  scopes: string[];
  loginHint: string | null;
  /** OpenID Connect Core section 3.1.2.1. */
  prompt: string | null;
  acrValues: string[];
  /** Seconds. */
  maxAge: number | null;
}

export interface NewLoginRequest {
  /** The authorization request; null where the user wants their account page. */
  interactionUid: string | null;
  clientId: string | null;
  question: LoginQuestion;
}

/** @returns undefined where too many wait for the same authorization request */
export async function beginLogin(
  db: Database,
  { interactionUid, clientId, question }: NewLoginRequest,
): Promise<{ id: string; browserSecret: string } | undefined> {
  const id = newSecret();
  const browserSecret = newSecret();
  const { rows } = await sql`
    insert into login_requests (digest, interaction_uid, client_id, question, browser_digest, expires_at)
    select ${digest(id)}, ${interactionUid}, ${clientId}, ${JSON.stringify(question)}::jsonb, ${digest(browserSecret)},
      now() + make_interval(secs => ${loginRequestSeconds})
    where (
      select count(*) from login_requests
      where interaction_uid = ${interactionUid} and answered_at is null and expires_at > now()) < ${waitingMax}
    returning digest`.execute(db);
  return rows.length > 0 ? { id, browserSecret } : undefined;
}

export interface LoginRequest {
  clientId: string | null;
  interactionUid: string | null;
  question: LoginQuestion;
  createdAt: Date;
  expiresAt: Date;
  isAnswered: boolean;
}

/** One that waits, or was answered; one whose time is over is not found. */
export async function findLoginRequest(
  db: Database | Transaction,
  id: string,
): Promise<LoginRequest | undefined> {
  if (!secretForm.test(id)) return undefined;
  const { rows } = await sql<{
    client_id: string | null;
    interaction_uid: string | null;
    question: LoginQuestion;
    created_at: Date;
    expires_at: Date;
    is_answered: boolean;
  }>`
    select client_id, interaction_uid, question, created_at, expires_at, answered_at is not null as is_answered
    from login_requests where digest = ${digest(id)} and expires_at > now()`.execute(db);
  const row = rows[0];
  return (
    row && {
      clientId: row.client_id,
      interactionUid: row.interaction_uid,
      question: row.question,
      createdAt: row.created_at,
      expiresAt: row.expires_at,
      isAnswered: row.is_answered,
    }
  );
}

/** How the application says that the user signed in; or why not. */
export type LoginAnswer =
  | {
      accountId: string;
      /** Seconds since the epoch, or `unknownAuthTime`. */
      authTime: number;
      amr: string[] | null;
      acr: string | null;
    }
  | { accountId: null; error: string; description: string | null };

/**
 * Answers a request: of two that answer, one does.
 * @returns the verifier for the browser; undefined where it was answered before, or its time is over
 */
export async function answerLogin(
  tx: Transaction,
  id: string,
  answeredBy: string,
  answer: LoginAnswer,
): Promise<string | undefined> {
  const verifier = newSecret();
  const { accountId, ...rest } = answer;
  const { rows } = await sql`
    update login_requests set answered_at = now(), answered_by = ${answeredBy}, verifier_digest = ${digest(verifier)},
      account_id = ${accountId}, answer = ${JSON.stringify(rest)}::jsonb
    where digest = ${digest(id)} and answered_at is null and expires_at > now()
    returning digest`.execute(tx);
  return rows.length > 0 ? verifier : undefined;
}

/** What a browser's cookie for a request is named by: several sign-ins may be under way in one browser. */
export function loginCookieMark(requestDigest: Buffer): string {
  return requestDigest.toString('base64url').slice(0, 16);
}

export function loginRequestMark(id: string): string {
  return loginCookieMark(digest(id));
}

/**
 * Finishes a sign-in, once.
 * @param interactionUid the authorization request that goes on with it; null for the account page
 * @param readSecret the browser's secret by the mark of its cookie
 * @returns undefined for whatever is not to be finished here: used, late, of another browser or another request, or of an
 *   account that was disabled meanwhile
 */
export async function finishLogin(
  db: Database,
  verifier: string,
  interactionUid: string | null,
  readSecret: (mark: string) => string | undefined,
): Promise<LoginAnswer | undefined> {
  if (!secretForm.test(verifier)) return undefined;
  const { rows: found } = await sql<{ digest: Buffer; browser_digest: Buffer }>`
    select digest, browser_digest from login_requests where verifier_digest = ${digest(verifier)}`.execute(
    db,
  );
  const row = found[0];
  const secret = row && readSecret(loginCookieMark(row.digest));
  if (row === undefined || secret === undefined) return undefined;
  // Before anything is used up: another browser leaves the request as it is.
  if (!digestEquals(digest(secret), row.browser_digest)) return undefined;
  const { rows } = await sql<{ account_id: string | null; answer: Omit<LoginAnswer, 'accountId'> }>`
    update login_requests set used_at = now()
    where digest = ${row.digest} and used_at is null and expires_at > now()
      and interaction_uid is not distinct from ${interactionUid}
      and (account_id is null or exists (select from accounts a where a.id = account_id and a.disabled_at is null))
    returning account_id, answer`.execute(db);
  const done = rows[0];
  return done && ({ ...done.answer, accountId: done.account_id } as LoginAnswer);
}
