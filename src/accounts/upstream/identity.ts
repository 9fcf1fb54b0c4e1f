/**
 * Identities: who an OpenID provider says somebody is, each connected to one account. Owns the table
 * `upstream_identities`.
 *
 *   connected by a first sign-in, a trusted address or the user → (used) → disconnected, or deleted with the account
 *
 * Issuer and subject together name a person (OpenID Connect Core section 5.7). Addresses and names do not.
 */

import { sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';
import { isStorable } from '../../http/json.ts';
import { normalizeEmail } from '../account.ts';

/** Characters of a subject identifier (OpenID Connect Core section 2), a label and a name at most. */
const subjectCharactersMax = 255;
const labelCharactersMax = 254;
const nameCharactersMax = 200;
/** Identities of one account at most. */
export const identitiesMax = 20;

/** What a verified ID token says, as far as it is used. */
export interface VerifiedIdentity {
  provider: string;
  issuer: string;
  subject: string;
  /** An address that the provider verified and that is believed (`trustEmail`); in lower case. */
  trustedEmail: string | null;
  /** Empty where the provider tells none. */
  name: string;
  label: string;
  /** When the user signed in at the provider, in seconds since the epoch; null where it does not say. */
  authTimeSeconds: number | null;
}

/**
 * @param claims those of an ID token whose signature, issuer, audience, times and nonce are verified
 * @returns undefined where the subject is not one
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
  const isTrusted = trustEmail && claims.email_verified === true && isPlainCase(claims.email);
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
 * Whether lower case changes ASCII letters alone. Others may become the letters of another address: the Kelvin sign
 * becomes a `k`.
 */
function isPlainCase(email: unknown): boolean {
  if (typeof email !== 'string') return false;
  return email.replaceAll(/[A-Z]/g, (letter) => letter.toLowerCase()) === email.toLowerCase();
}

function readLabel(text: string): string {
  return [...text.replaceAll(/\p{C}/gu, '')].slice(0, labelCharactersMax).join('');
}

/** Control characters and those that change the direction of a text are left out. */
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

interface IdentityRow {
  provider: string;
  issuer: string;
  subject: string;
  label: string;
  created_at: Date;
  last_used_at: Date;
}

/** The identities of an account, the first connected one first. */
export async function listIdentities(
  db: Database | Transaction,
  accountId: string,
): Promise<ConnectedIdentity[]> {
  const { rows } = await sql<IdentityRow>`
    select provider, issuer, subject, label, created_at, last_used_at
    from upstream_identities where account_id = ${accountId}
    order by created_at, issuer, subject`.execute(db);
  return rows.map(({ created_at: createdAt, last_used_at: lastUsedAt, ...row }) => ({
    ...row,
    createdAt,
    lastUsedAt,
  }));
}

/** One sign-in or connection of an identity at a time, on all nodes, until the transaction ends. */
export async function lockIdentity(
  tx: Transaction,
  { issuer, subject }: Pick<VerifiedIdentity, 'issuer' | 'subject'>,
): Promise<void> {
  await sql`select pg_advisory_xact_lock(lock_key(${`identity ${issuer}\n${subject}`}))`.execute(tx);
}

/** Whose identity it is, and notes its use. @returns undefined where it is nobody's */
export async function useIdentity(
  tx: Transaction,
  { issuer, subject, provider, label }: VerifiedIdentity,
): Promise<{ accountId: string; isDisabled: boolean } | undefined> {
  const { rows } = await sql<{ account_id: string; is_disabled: boolean }>`
    update upstream_identities i set last_used_at = now(), provider = ${provider}, label = ${label}
    from accounts a
    where i.issuer = ${issuer} and i.subject = ${subject} and a.id = i.account_id
    returning i.account_id, a.disabled_at is not null as is_disabled`.execute(tx);
  return rows[0] && { accountId: rows[0].account_id, isDisabled: rows[0].is_disabled };
}

export type Connection = 'connected' | 'disabled' | 'too-many' | 'of-another-account';

/**
 * Connects an identity to an account. The caller has locked the identity and proved that the same person has both.
 * Locks the account, so that it is neither disabled nor deleted before the commit.
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
  return rows.length > 0 ? 'connected' : 'too-many';
}

/**
 * Disconnects an identity, unless the account has no other way to sign in: a password, or an identity of a provider that
 * is still configured.
 * @param issuers those of the configured providers
 */
export async function disconnectIdentity(
  tx: Transaction,
  accountId: string,
  { issuer, subject }: Pick<VerifiedIdentity, 'issuer' | 'subject'>,
  issuers: readonly string[],
): Promise<'disconnected' | 'last-way' | 'unknown'> {
  // Two that disconnect the last two identities wait for each other here.
  const { rows: accounts } = await sql<{ has_password: boolean }>`
    select password_hash is not null and email is not null and external_id is null as has_password
    from accounts where id = ${accountId} for no key update`.execute(tx);
  const identities = await listIdentities(tx, accountId);
  const isIt = (each: ConnectedIdentity) => each.issuer === issuer && each.subject === subject;
  if (!identities.some(isIt)) return 'unknown';
  const isOtherWay = (each: ConnectedIdentity) => !isIt(each) && isOneOf(each.issuer, issuers);
  if (accounts[0]?.has_password !== true && !identities.some(isOtherWay)) return 'last-way';
  await sql`
    delete from upstream_identities
    where issuer = ${issuer} and subject = ${subject} and account_id = ${accountId}`.execute(tx);
  return 'disconnected';
}

/** Issuers are compared as URLs: a configured one may lack the slash at the end. */
export function isOneOf(issuer: string, issuers: readonly string[]): boolean {
  const href = URL.parse(issuer)?.href;
  return issuers.some((each) => URL.parse(each)?.href === href);
}
