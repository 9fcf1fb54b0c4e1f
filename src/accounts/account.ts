/**
 * Accounts: the users, each the owner of its resources. Owns the table `accounts`.
 *
 *   created → (disabled: cannot sign in, and every grant it gave is withdrawn by the database) → (enabled) → (deleted)
 *
 * An account may belong to another application, which knows it by an id of its own (external_account.ts).
 */

import { type RawBuilder, sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import { hashPassword, passwordBytesMax } from '../crypto/passwords.ts';
import type { Database, Transaction } from '../database/database.ts';

export interface Account {
  id: string;
  /** Lower case. Null where the application that the account belongs to has told none. */
  email: string | null;
  /** Whether that application vouches for the address; null for accounts that were made here. */
  isEmailVerified: boolean | null;
  /** Empty where nobody has told one. */
  name: string;
  /** The user id in the application that the account belongs to; null for accounts that were made here. */
  externalId: string | null;
  isAdmin: boolean;
  createdAt: Date;
}

/** An account that was made here: its user signs in by the address. */
export type LocalAccount = Account & { email: string };

export interface NewAccount {
  email: string;
  /** Null for an account that signs in elsewhere. */
  password: string | null;
  /** By default the part of the address before the `@`. */
  name?: string;
  isAdmin?: boolean;
}

/** Characters of an address (RFC 5321 section 4.5.3.1.3) and of a name, at most. */
const emailLengthMax = 254;
const nameLengthMax = 200;
/** NIST SP 800-63B section 3.1.1.2 asks for 8 at least. */
export const passwordLengthMin = 8;

/** What a person typed is not an account; the message says what is wrong. */
export class AccountError extends Error {
  override readonly name = 'AccountError';
}

/**
 * @throws AccountError when a field is not valid or the address is taken
 */
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
    insert into accounts (id, email, name, password_hash, is_admin)
    values (${newId()}, ${email}, ${name}, ${passwordHash}, ${account.isAdmin ?? false})
    on conflict (email) where external_id is null do nothing
    returning ${accountColumns}`.execute(db);
  if (rows[0] === undefined) throw new AccountError(`there is already an account for ${email}`);
  return { ...toAccount(rows[0]), email };
}

/**
 * Whether the address of an account says who it is: that of an external account does only where its application vouches
 * for it.
 * @param accounts the name of the table in the query
 */
export function ownsAddress(accounts: string): RawBuilder<boolean> {
  return sql<boolean>`(${sql.ref(`${accounts}.external_id`)} is null or ${sql.ref(`${accounts}.email_verified`)} is true)`;
}

/** An account that may act: disabled ones are not found. */
export async function findAccount(db: Database | Transaction, id: string): Promise<Account | undefined> {
  const { rows } = await sql<AccountRow>`
    select ${accountColumns}
    from accounts
    where id = ${id} and disabled_at is null`.execute(db);
  return rows[0] && toAccount(rows[0]);
}

/** Whether an account that may act is marked as an administrator's. */
export async function isAdmin(db: Database | Transaction, id: string): Promise<boolean> {
  const { rows } = await sql`
    select from accounts where id = ${id} and is_admin and disabled_at is null`.execute(db);
  return rows.length > 0;
}

/** For the operator alone. */
export async function makeAdmin(tx: Transaction, id: string): Promise<void> {
  await sql`update accounts set is_admin = true where id = ${id}`.execute(tx);
}

/**
 * What signing in needs: the account and the hash that a password is compared with. Accounts of another application are
 * not found by an address: their users sign in there.
 */
export async function findAccountByEmail(
  db: Database | Transaction,
  email: string,
): Promise<{ account: Account; passwordHash: string | null } | undefined> {
  const { rows } = await sql<AccountRow & { password_hash: string | null }>`
    select ${accountColumns}, password_hash
    from accounts
    where email = ${email} and external_id is null and disabled_at is null`.execute(db);
  return rows[0] && { account: toAccount(rows[0]), passwordHash: rows[0].password_hash };
}

/**
 * For the operator alone: an account that the application disabled is the operator's to enable from then on.
 * @returns whether there was such an account, not yet disabled by the operator
 */
export async function disableAccount(db: Database | Transaction, id: string): Promise<boolean> {
  const { rows } = await sql`
    update accounts set disabled_at = coalesce(disabled_at, now()), disabled_by = null
    where id = ${id} and (disabled_at is null or disabled_by is not null)
    returning id`.execute(db);
  return rows.length > 0;
}

/** For the operator alone. What was withdrawn stays so. @returns whether there was such an account, and it was disabled */
export async function enableAccount(db: Database | Transaction, id: string): Promise<boolean> {
  const { rows } = await sql`
    update accounts set disabled_at = null, disabled_by = null
    where id = ${id} and disabled_at is not null
    returning id`.execute(db);
  return rows.length > 0;
}

/** @throws AccountError when the password is too short or too long */
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
 * What an operator names: an id or an address; disabled accounts are found, too.
 * @throws AccountError where several accounts have the address
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
    throw new AccountError(`several accounts have the address ${idOrEmail}: name one by its id (${ids})`);
  }
  return rows[0] && toAccount(rows[0]);
}

/** Trimmed and in lower case, or undefined where the text is no address. */
export function normalizeEmail(text: string): string | undefined {
  const email = text.trim().toLowerCase();
  return email.length <= emailLengthMax && /^[^\s@\p{Cc}]+@[^\s@\p{Cc}]+$/u.test(email) ? email : undefined;
}

function checkPassword(password: string): void {
  if ([...password].length < passwordLengthMin || Buffer.byteLength(password) > passwordBytesMax) {
    throw new AccountError(
      `the password must have ${passwordLengthMin} characters to ${passwordBytesMax} bytes`,
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

/** Columns of `AccountRow`, of the table `accounts` by its own name. */
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
