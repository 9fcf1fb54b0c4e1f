/**
 * Identities: users of OpenID providers, each connected to one account. Owns the tables `upstream_identities` and
 * `disconnected_issuers`.
 *
 *   connected (by a first sign-in, a trusted address or the user) → (used) → disconnected (from then on only the user connects
 *   the issuer), or deleted with the account
 *
 * Only issuer and subject together identify a user (OpenID Connect Core section 5.7). Email addresses and names do not.
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';
import { isStorable } from '../../http/json.ts';
import { normalizeEmail } from '../account.ts';

/** Maximum lengths of a subject identifier (OpenID Connect Core section 2), a label and a name. */
const subjectCharactersMax = 255;
const labelCharactersMax = 254;
const nameCharactersMax = 200;
/** Maximum number of identities of one account. */
export const identitiesMax = 20;

/** The claims of a verified ID token that this server uses. */
export interface VerifiedIdentity {
  provider: string;
  issuer: string;
  subject: string;
  /** The email address in lower case, if the provider verified it and has `trustEmail`; otherwise null. */
  trustedEmail: string | null;
  /** Empty if the provider reports no name. */
  name: string;
  label: string;
  /** When the user signed in at the provider, in seconds since the epoch; null if the provider does not report it. */
  authTimeSeconds: number | null;
}

/**
 * @param claims from an ID token whose signature, issuer, audience, times and nonce are verified
 * @returns undefined if the issuer or the subject is invalid
 */
export function readIdentity(
  claims: Readonly<Record<string, unknown>>,
  { id: provider, trustEmail }: { id: string; trustEmail: boolean },
): VerifiedIdentity | undefined {
  const { iss: issuer, sub: subject, auth_time: authTime } = claims;
  if (typeof issuer !== 'string' || typeof subject !== 'string' || !isSubject(subject)) return undefined;
  const email =
    typeof claims.email === 'string' && isStorable(claims.email) ? normalizeEmail(claims.email) : undefined;
  const name = readName(claims.name) ?? readName(claims.preferred_username) ?? '';
  const isTrusted = trustEmail && claims.email_verified === true && hasAsciiCaseOnly(claims.email);
  return {
    provider,
    issuer,
    subject,
    trustedEmail: isTrusted ? (email ?? null) : null,
    name,
    label: readLabel(email ?? (name || subject)),
    authTimeSeconds: Number.isSafeInteger(authTime) && (authTime as number) > 0 ? (authTime as number) : null,
  };
}

function isSubject(subject: string): boolean {
  return subject !== '' && isStorable(subject) && [...subject].length <= subjectCharactersMax;
}

/**
 * Whether converting to lower case changes only ASCII letters. Other conversions can produce a different address: the
 * Kelvin sign becomes a `k`.
 */
function hasAsciiCaseOnly(email: unknown): boolean {
  if (typeof email !== 'string') return false;
  return email.replaceAll(/[A-Z]/g, (letter) => letter.toLowerCase()) === email.toLowerCase();
}

function readLabel(text: string): string {
  return [...text.replaceAll(/\p{C}/gu, '')].slice(0, labelCharactersMax).join('');
}

/** Removes control characters and characters that change the text direction. */
function readName(value: unknown): string | undefined {
  if (typeof value !== 'string') return undefined;
  const name = value.replaceAll(/\p{C}/gu, '').trim();
  return name === '' ? undefined : [...name].slice(0, nameCharactersMax).join('').trim();
}

export interface ConnectedIdentity {
  provider: string;
  issuer: string;
  subject: string;
  label: string;
  createdAt: Date;
  lastUsedAt: Date;
}

/** Lists the identities of an account, oldest connection first. */
export async function listIdentities(
  db: Database | Transaction,
  accountId: string,
): Promise<ConnectedIdentity[]> {
  const { rows } = await sql<ConnectedIdentity>`
    select provider, issuer, subject, label, created_at as "createdAt", last_used_at as "lastUsedAt"
    from upstream_identities where account_id = ${accountId}
    order by created_at, issuer, subject`.execute(db);
  return rows;
}

/** Serializes sign-ins and connections of an identity across all nodes, until the transaction ends. */
export async function lockIdentity(
  tx: Transaction,
  { issuer, subject }: Pick<VerifiedIdentity, 'issuer' | 'subject'>,
): Promise<void> {
  await sql`select take_lock(${`identity ${issuer}\n${subject}`})`.execute(tx);
}

/** Finds the account of an identity and records its use. @returns undefined if no account is connected */
export async function useIdentity(
  tx: Transaction,
  { issuer, subject, provider, label }: VerifiedIdentity,
): Promise<{ accountId: string; isDisabled: boolean; signInEpoch: number } | undefined> {
  const { rows } = await sql<{ account_id: string; is_disabled: boolean; sign_in_epoch: number }>`
    update upstream_identities i set last_used_at = now(), provider = ${provider}, label = ${label}
    from accounts a
    where i.issuer = ${issuer} and i.subject = ${subject} and a.id = i.account_id
    returning i.account_id, a.disabled_at is not null as is_disabled, a.sign_in_epoch`.execute(tx);
  const row = rows[0];
  return row && { accountId: row.account_id, isDisabled: row.is_disabled, signInEpoch: row.sign_in_epoch };
}

/** Whether an issuer has no identity of the account, and none that was disconnected. */
export async function isIssuerNew(
  db: Database | Transaction,
  accountId: string,
  issuer: string,
): Promise<boolean> {
  const { rows } = await sql`
    select from upstream_identities where account_id = ${accountId} and issuer = ${issuer}
    union all
    select from disconnected_issuers where account_id = ${accountId} and issuer = ${issuer}`.execute(db);
  return rows.length === 0;
}

export type Connection = 'connected' | 'disabled' | 'too-many' | 'of-another-account';

/**
 * Connects an identity to an account. The caller must have locked the identity and proved that one person controls both.
 * Locks the account, so that no other transaction disables or deletes it before the commit.
 */
export async function connectIdentity(
  tx: Transaction,
  accountId: string,
  identity: VerifiedIdentity,
): Promise<Connection> {
  const { rows: active } = await sql`
    select from accounts where id = ${accountId} and disabled_at is null for no key update`.execute(tx);
  if (active.length === 0) return 'disabled';
  const owner = await useIdentity(tx, identity);
  if (owner !== undefined) return owner.accountId === accountId ? 'connected' : 'of-another-account';
  const { issuer, subject, provider, label } = identity;
  const { rows } = await sql`
    insert into upstream_identities (issuer, subject, account_id, provider, label)
    select ${issuer}, ${subject}, ${accountId}, ${provider}, ${label}
    where (select count(*) from upstream_identities where account_id = ${accountId}) < ${identitiesMax}
    returning issuer`.execute(tx);
  if (rows.length === 0) return 'too-many';
  await sql`
    delete from disconnected_issuers where account_id = ${accountId} and issuer = ${issuer}`.execute(tx);
  return 'connected';
}

/**
 * Disconnects an identity if the account has another way to sign in: a password, or an identity of a configured provider.
 * @param issuers issuers of the configured providers
 */
export async function disconnectIdentity(
  tx: Transaction,
  accountId: string,
  { issuer, subject }: Pick<VerifiedIdentity, 'issuer' | 'subject'>,
  issuers: readonly string[],
): Promise<'disconnected' | 'last-way' | 'unknown'> {
  // Serializes concurrent requests, so that they cannot disconnect the last two identities.
  const { rows: accounts } = await sql<{ has_password: boolean }>`
    select password_hash is not null and email is not null and external_id is null as has_password
    from accounts where id = ${accountId} for no key update`.execute(tx);
  const identities = await listIdentities(tx, accountId);
  const isTarget = (each: ConnectedIdentity) => each.issuer === issuer && each.subject === subject;
  if (!identities.some(isTarget)) return 'unknown';
  const isAlternative = (each: ConnectedIdentity) => !isTarget(each) && includesIssuer(each.issuer, issuers);
  if (accounts[0]?.has_password !== true && !identities.some(isAlternative)) return 'last-way';
  await disconnect(tx, accountId, sql`issuer = ${issuer} and subject = ${subject}`);
  return 'disconnected';
}

/** Disconnects all identities of an account whose password the operator has just set. */
export async function disconnectIdentities(tx: Transaction, accountId: string): Promise<void> {
  await disconnect(tx, accountId, sql`true`);
}

/** Also prevents that the next sign-in with the provider connects it again by the email address. */
async function disconnect(tx: Transaction, accountId: string, which: RawBuilder<unknown>): Promise<void> {
  await sql`
    with gone as (
      delete from upstream_identities where account_id = ${accountId} and ${which} returning issuer)
    insert into disconnected_issuers (account_id, issuer)
    select distinct ${accountId}::uuid, issuer from gone
    on conflict (account_id, issuer) do update set disconnected_at = now()`.execute(tx);
}

/** Compares issuers as URLs: a configured URL without a path can lack the trailing slash. */
export function includesIssuer(issuer: string, issuers: readonly string[]): boolean {
  const href = URL.parse(issuer)?.href;
  return issuers.some((each) => URL.parse(each)?.href === href);
}
