/**
 * Accounts: the users, who own resources. Owns the table `accounts`.
 *
 *   created → (disabled: cannot sign in; the database withdraws its grants) → (enabled) → (deleted)
 *
 * An external account belongs to another application, which knows it by its own user id (external_account.ts).
 */

import { type RawBuilder, sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import { hashPassword, passwordBytesMax } from '../crypto/passwords.ts';
import type { Database, Transaction } from '../database/database.ts';

export interface Account {
  id: string;
  /** Lower case. Null if the application of an external account has not provided one. */
  email: string | null;
  /** Whether the application vouches for the address; null for local accounts. */
  isEmailVerified: boolean | null;
  /** Empty if unknown. */
  name: string;
  /** The user id in the application that the account belongs to; null for local accounts. */
  externalId: string | null;
  isAdmin: boolean;
  createdAt: Date;
}

/** An account that was created here. Its user signs in with the e-mail address. */
export type LocalAccount = Account & { email: string };

export interface NewAccount {
  email: string;
  /** Null for an account that signs in elsewhere. */
  password: string | null;
  /** Default: the part of the address before the `@`. */
  name?: string;
  isAdmin?: boolean;
  /** The operator vouches that the address is the user's: a trusted provider may then sign in to the account. */
  isEmailVerified?: boolean;
}

/** Maximum length of an address (RFC 5321 section 4.5.3.1.3) and of a name, in characters. */
const emailLengthMax = 254;
const nameLengthMax = 200;
/** NIST SP 800-63B section 3.1.1.2 requires at least 8 characters. */
const passwordLengthMin = 8;

/** Invalid input for an account. The message is for the person who entered it. */
export class AccountError extends Error {
  override readonly name = 'AccountError';
}

/** @throws AccountError if a field is invalid or the address is taken */
export async function createAccount(db: Database | Transaction, account: NewAccount): Promise<LocalAccount> {
  const email = normalizeEmail(account.email);
  if (email === undefined)
    throw new AccountError(`${JSON.stringify(account.email)} is not an e-mail address`);
  const name = (account.name ?? email.slice(0, email.indexOf('@'))).trim();
  if (name === '' || name.length > nameLengthMax) {
    throw new AccountError(`the name must have 1 to ${nameLengthMax} characters`);
  }
  if (account.password !== null) checkPassword(account.password);
  const passwordHash = account.password === null ? null : await hashPassword(account.password);
  const { rows } = await sql<AccountRow>`
    insert into accounts (id, email, email_verified, name, password_hash, is_admin)
    values (${newId()}, ${email}, ${account.isEmailVerified === true ? true : null}, ${name}, ${passwordHash},
      ${account.isAdmin ?? false})
    on conflict (email) where external_id is null do nothing
    returning ${accountColumns}`.execute(db);
  if (rows[0] === undefined) throw new AccountError(`there is already an account for ${email}`);
  return { ...toAccount(rows[0]), email };
}

/**
 * SQL condition: whether the e-mail address proves the identity of the account. For an external account, the application
 * must vouch for it.
 * @param accounts the name or alias of the table in the query
 */
export function ownsAddress(accounts: string): RawBuilder<boolean> {
  return sql<boolean>`(${sql.ref(`${accounts}.external_id`)} is null or ${sql.ref(`${accounts}.email_verified`)} is true)`;
}

/** Finds an account that is not disabled. */
export async function findAccount(db: Database | Transaction, id: string): Promise<Account | undefined> {
  const { rows } = await sql<AccountRow>`
    select ${accountColumns}
    from accounts
    where id = ${id} and disabled_at is null`.execute(db);
  return rows[0] && toAccount(rows[0]);
}

/** Whether an account is an administrator and not disabled. */
export async function isAdmin(db: Database | Transaction, id: string): Promise<boolean> {
  const { rows } = await sql`
    select from accounts where id = ${id} and is_admin and disabled_at is null`.execute(db);
  return rows.length > 0;
}

/** Makes an account an administrator. For operator commands only. @returns false if it already is one */
export async function makeAdmin(tx: Transaction, id: string): Promise<boolean> {
  const { rows } = await sql`
    update accounts set is_admin = true where id = ${id} and not is_admin returning id`.execute(tx);
  return rows.length > 0;
}

/**
 * Finds an account and its password hash for signing in. External accounts are not found: their users sign in at the
 * application.
 */
export async function findAccountByEmail(
  db: Database | Transaction,
  email: string,
): Promise<{ account: Account; passwordHash: string | null; signInEpoch: number } | undefined> {
  const { rows } = await sql<AccountRow & { password_hash: string | null; sign_in_epoch: number }>`
    select ${accountColumns}, password_hash, sign_in_epoch
    from accounts
    where email = ${email} and external_id is null and disabled_at is null`.execute(db);
  const row = rows[0];
  return row && { account: toAccount(row), passwordHash: row.password_hash, signInEpoch: row.sign_in_epoch };
}

/**
 * Disables an account on behalf of the operator. Afterwards only the operator can enable it, even if the application had
 * disabled it before.
 * @returns false if the account does not exist or the operator has already disabled it
 */
export async function disableAccount(db: Database | Transaction, id: string): Promise<boolean> {
  const { rows } = await sql`
    update accounts set disabled_at = coalesce(disabled_at, now()), disabled_by = null
    where id = ${id} and (disabled_at is null or disabled_by is not null)
    returning id`.execute(db);
  return rows.length > 0;
}

/**
 * Enables an account on behalf of the operator. Withdrawn grants stay withdrawn.
 * @returns false if the account does not exist or is not disabled
 */
export async function enableAccount(db: Database | Transaction, id: string): Promise<boolean> {
  const { rows } = await sql`
    update accounts set disabled_at = null, disabled_by = null
    where id = ${id} and disabled_at is not null
    returning id`.execute(db);
  return rows.length > 0;
}

/** @throws AccountError if the password is too short or too long */
export async function changePassword(
  db: Database | Transaction,
  id: string,
  password: string,
): Promise<void> {
  checkPassword(password);
  const passwordHash = await hashPassword(password);
  await sql`update accounts set password_hash = ${passwordHash} where id = ${id}`.execute(db);
}

/**
 * Invalidates sign-ins to the accounts that have begun, also those whose password is verified already: their sessions
 * could be stored after all others have ended.
 */
export async function endSignIns(tx: Transaction, ids: readonly string[]): Promise<void> {
  await sql`
    update accounts set sign_in_epoch = sign_in_epoch + 1 where id = any(${ids}::uuid[])`.execute(tx);
}

/**
 * Whether a sign-in is still valid. If so, the account's sessions cannot be ended until the transaction ends.
 * @param signInEpoch the account's epoch when the sign-in was verified
 */
export async function holdSignIn(tx: Transaction, id: string, signInEpoch: number): Promise<boolean> {
  const { rows } = await sql`
    select from accounts where id = ${id} and sign_in_epoch = ${signInEpoch} for share`.execute(tx);
  return rows.length > 0;
}

/** @returns undefined if the account does not exist */
export async function signInEpochOf(db: Database | Transaction, id: string): Promise<number | undefined> {
  const { rows } = await sql<{ sign_in_epoch: number }>`
    select sign_in_epoch from accounts where id = ${id}`.execute(db);
  return rows[0]?.sign_in_epoch;
}

export async function hasPassword(db: Database | Transaction, id: string): Promise<boolean> {
  const { rows } = await sql`select from accounts where id = ${id} and password_hash is not null`.execute(db);
  return rows.length > 0;
}

/**
 * Finds an account by id or address, for operators. Disabled accounts are found too.
 * @throws AccountError if several accounts have the address
 */
export async function findAnyAccount(
  db: Database | Transaction,
  idOrEmail: string,
): Promise<Account | undefined> {
  const { rows } = await sql<AccountRow>`
    select ${accountColumns}
    from accounts
    where id::text = ${idOrEmail} or email = ${normalizeEmail(idOrEmail) ?? ''}
    order by id limit 10`.execute(db);
  if (rows.length > 1) {
    const ids = rows.map(({ id }) => id).join(', ');
    throw new AccountError(
      `several accounts have the address ${idOrEmail}: use an account id instead (${ids})`,
    );
  }
  return rows[0] && toAccount(rows[0]);
}

/** Trims and lower-cases an address. @returns undefined if the text is not an e-mail address */
export function normalizeEmail(text: string): string | undefined {
  const email = text.trim().toLowerCase();
  return email.length <= emailLengthMax && /^[^\s@\p{Cc}]+@[^\s@\p{Cc}]+$/u.test(email) ? email : undefined;
}

function checkPassword(password: string): void {
  if ([...password].length < passwordLengthMin || Buffer.byteLength(password) > passwordBytesMax) {
    throw new AccountError(
      `the password must have at least ${passwordLengthMin} characters and at most ${passwordBytesMax} bytes`,
    );
  }
}

export interface AccountRow {
  id: string;
  external_id: string | null;
  email: string | null;
  email_verified: boolean | null;
  name: string;
  is_admin: boolean;
  created_at: Date;
}

/** The columns of `AccountRow`, qualified with the table name `accounts`. */
export const accountColumns = sql.raw(
  ['id', 'external_id', 'email', 'email_verified', 'name', 'is_admin', 'created_at']
    .map((name) => `accounts.${name}`)
    .join(', '),
);

export function toAccount(row: AccountRow): Account {
  return {
    id: row.id,
    externalId: row.external_id,
    email: row.email,
    isEmailVerified: row.email_verified,
    name: row.name,
    isAdmin: row.is_admin,
    createdAt: row.created_at,
  };
}
