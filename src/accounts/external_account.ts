/**
 * External accounts: accounts of another application, which manages the users and their sign-in and knows each by a user
 * id of its own, the external id. An account is created when the application first mentions it, also by publishing an
 * event for it.
 *
 * External ids are compared byte by byte. They may look like account ids, so APIs that accept both have a separate field
 * for each.
 */

import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import { textArray, uuidArray } from '../database/arrays.ts';
import type { Database, Transaction } from '../database/database.ts';

/** Maximum length of an external id in characters (code points). */
export const externalIdCharactersMax = 255;

export function isExternalId(value: unknown): value is string {
  return (
    typeof value === 'string' &&
    value !== '' &&
    // A code point has at most two UTF-16 code units.
    value.length <= 2 * externalIdCharactersMax &&
    value.isWellFormed() &&
    !/\p{Cc}/u.test(value) &&
    [...value].length <= externalIdCharactersMax
  );
}

/** Error message for a JSON value that cannot be an external id. */
export const mustBeExternalId = `must be a string of 1 to ${externalIdCharactersMax} characters without control characters, or an integer up to ${Number.MAX_SAFE_INTEGER} (send other numbers as strings)`;

/** Reads an external id from JSON. An integer is kept as its decimal text. @returns undefined if it is invalid */
export function toExternalId(value: unknown): string | undefined {
  // Beyond the safe integers, two ids could be parsed as the same number.
  if (Number.isSafeInteger(value)) return String(value);
  return isExternalId(value) ? value : undefined;
}

/** Properties that an application may set. Missing ones stay unchanged. */
export interface AccountMembers {
  /** Lower case. */
  email?: string | null;
  isEmailVerified?: boolean | null;
  /** Empty for no name. */
  name?: string;
  isDisabled?: boolean;
}

export interface ExternalAccount extends AccountMembers {
  externalId: string;
}

/** @returns account ids by external id. Unknown external ids are missing; disabled accounts are included. */
export async function findExternalAccounts(
  db: Database | Transaction,
  externalIds: readonly string[],
): Promise<Map<string, string>> {
  if (externalIds.length === 0) return new Map();
  const { rows } = await sql<{ external_id: string; id: string }>`
    select external_id, id from accounts
    where external_id = any(${textArray([...new Set(externalIds)])}::text[])`.execute(db);
  return new Map(rows.map((row) => [row.external_id, row.id]));
}

/**
 * Creates unknown accounts, all in one statement. Of two concurrent transactions that create the same account, one waits
 * for the other and uses its row.
 * @returns account ids by external id, and the external ids that are new
 */
export async function ensureExternalAccounts(
  tx: Transaction,
  externalIds: readonly string[],
): Promise<{ ids: Map<string, string>; created: ReadonlySet<string> }> {
  const wanted = [...new Set(externalIds)];
  const ids = await findExternalAccounts(tx, wanted);
  const created = new Set<string>();
  for (;;) {
    // Sorted, so that concurrent transactions insert in the same order and do not deadlock.
    const missing = wanted.filter((externalId) => !ids.has(externalId)).sort();
    if (missing.length === 0) return { ids, created };
    const { rows } = await sql<{ external_id: string; id: string }>`
      insert into accounts (id, external_id, name)
      select id, external_id, ''
      from unnest(${uuidArray(missing.map(() => newId()))}::uuid[], ${textArray(missing)}::text[])
        with ordinality as given (id, external_id, place)
      order by place
      on conflict (external_id) do nothing
      returning external_id, id`.execute(tx);
    for (const row of rows) {
      ids.set(row.external_id, row.id);
      created.add(row.external_id);
    }
    // Created concurrently by another transaction; visible only to a new statement.
    const others = missing.filter((externalId) => !ids.has(externalId));
    for (const [externalId, id] of await findExternalAccounts(tx, others)) ids.set(externalId, id);
  }
}

/** Why an application may not change an account. */
export type Rejection = 'administrator' | 'local-account' | 'disabled-by-operator';

interface Changes {
  /** Ids of accounts that this call disabled. */
  disabled: string[];
  /** The first account that the application may not change. Then nothing is changed, and the caller must roll back. */
  rejected: { id: string; reason: Rejection } | null;
}

export interface ChangedAccounts extends Changes {
  /** In the order of the input. */
  accounts: { id: string; externalId: string; isNew: boolean }[];
}

/**
 * Creates or changes accounts, with one statement for all.
 * @param given must not contain an external id twice
 * @returns undefined if an account was deleted concurrently
 */
export async function putExternalAccounts(
  tx: Transaction,
  given: readonly ExternalAccount[],
): Promise<ChangedAccounts | undefined> {
  const { ids, created } = await ensureExternalAccounts(
    tx,
    given.map(({ externalId }) => externalId),
  );
  const changes = given.map(({ externalId, ...members }) => ({
    id: ids.get(externalId) as string,
    ...members,
  }));
  const changed = await changeAccounts(tx, changes);
  if (changed === undefined) return undefined;
  const accounts = given.map(({ externalId }) => ({
    id: ids.get(externalId) as string,
    externalId,
    isNew: created.has(externalId),
  }));
  return { accounts, ...changed };
}

/**
 * Changes existing accounts on behalf of the application.
 * @returns undefined if an account does not exist; the caller must roll back
 */
export async function changeAccounts(
  tx: Transaction,
  given: readonly (AccountMembers & { id: string })[],
): Promise<Changes | undefined> {
  const ids = uuidArray(given.map(({ id }) => id));
  // Locked in the order of ids, so that concurrent calls do not deadlock.
  const { rows: locked } = await sql<LockedRow>`
    select id, disabled_at is not null as is_disabled, disabled_by, is_admin, external_id, email, email_verified
    from accounts where id = any(${ids}::uuid[])
    order by id for no key update`.execute(tx);
  if (locked.length < given.length) return undefined;
  const before = new Map(locked.map((row) => [row.id, row]));
  for (const { id, ...members } of given) {
    const reason = rejectionOf(before.get(id) as LockedRow, members);
    if (reason !== null) return { disabled: [], rejected: { id, reason } };
  }
  const changes = JSON.stringify(given.map(toChange));
  await sql`
    update accounts set
      email = case when given.change ? 'email' then given.change ->> 'email' else email end,
      email_verified = case when given.change ? 'email_verified'
        then (given.change ->> 'email_verified')::boolean
        -- The previous address was verified, not the new one.
        when given.change ? 'email' and email is distinct from given.change ->> 'email' then null
        else email_verified end,
      name = case when given.change ? 'name' then given.change ->> 'name' else name end,
      disabled_at = case when not given.change ? 'disabled' then disabled_at
        when (given.change -> 'disabled')::boolean then coalesce(disabled_at, now()) end,
      disabled_by = case when not given.change ? 'disabled' then disabled_by
        when not (given.change -> 'disabled')::boolean then null
        when disabled_at is null then 'application'
        else disabled_by end,
      updated_at = now()
    from (select (change ->> 'id')::uuid as id, change from jsonb_array_elements(${changes}::jsonb) as change) as given
    where accounts.id = given.id and given.change <> jsonb_build_object('id', given.id)`.execute(tx);
  return {
    disabled: given.flatMap(({ id, isDisabled }) =>
      isDisabled === true && !before.get(id)?.is_disabled ? [id] : [],
    ),
    rejected: null,
  };
}

interface LockedRow {
  id: string;
  is_disabled: boolean;
  disabled_by: 'application' | null;
  is_admin: boolean;
  external_id: string | null;
  email: string | null;
  email_verified: boolean | null;
}

/**
 * Applications control their own users: not administrators, who would lend them their rights, and not local accounts, whose
 * users sign in here.
 */
export function controlRejection(row: { is_admin: boolean; external_id: string | null }): Rejection | null {
  if (row.is_admin) return 'administrator';
  return row.external_id === null ? 'local-account' : null;
}

/** Applications change the state and the address only of accounts that they control, and enable what they disabled. */
function rejectionOf(
  row: LockedRow,
  { email, isEmailVerified, isDisabled }: AccountMembers,
): Rejection | null {
  const changesStatus = isDisabled !== undefined && isDisabled !== row.is_disabled;
  const changesAddress =
    (email !== undefined && email !== row.email) ||
    (isEmailVerified !== undefined && isEmailVerified !== row.email_verified);
  if (!changesStatus && !changesAddress) return null;
  const isOperators = changesStatus && row.is_disabled && row.disabled_by === null;
  return controlRejection(row) ?? (isOperators ? 'disabled-by-operator' : null);
}

function toChange({ id, email, isEmailVerified, name, isDisabled }: AccountMembers & { id: string }): object {
  return {
    id,
    ...(email === undefined ? {} : { email }),
    ...(isEmailVerified === undefined ? {} : { email_verified: isEmailVerified }),
    ...(name === undefined ? {} : { name }),
    ...(isDisabled === undefined ? {} : { disabled: isDisabled }),
  };
}

/**
 * Deletes an account with its resources, sessions and grants.
 * @param beforeDelete runs just before the row is deleted, when no other transaction can refer to the account any more
 * @returns false if the account does not exist
 */
export async function deleteAccount(
  tx: Transaction,
  id: string,
  beforeDelete: () => Promise<void>,
): Promise<boolean> {
  // Disabling withdraws each grant, which adds it to the audit log.
  const { rows } = await sql`
    update accounts set disabled_at = coalesce(disabled_at, now()) where id = ${id} returning id`.execute(tx);
  if (rows.length === 0) return false;
  // The lock that the deletion requires anyway. It waits for transactions that add the account to an app.
  await sql`select from accounts where id = ${id} for update`.execute(tx);
  await beforeDelete();
  await sql`delete from accounts where id = ${id}`.execute(tx);
  return true;
}
