/**
 * Accounts of another application: it has the users and their sign-in, and knows each by a user id of its own, the
 * external id. An account comes into being when the application tells of it, or publishes the first event for it.
 *
 * An external id is compared byte by byte. One that looks like an account id is an external id all the same: where an
 * API takes both, each has a place of its own.
 */

import { sql } from 'kysely';
import { newId } from '../crypto/ids.ts';
import { textArray, uuidArray } from '../database/arrays.ts';
import type { Database, Transaction } from '../database/database.ts';

/** Characters (code points) of an external id, at most. */
export const externalIdCharactersMax = 255;

export function isExternalId(value: unknown): value is string {
  return (
    typeof value === 'string' &&
    value !== '' &&
    // A code point takes two UTF-16 units at most.
    value.length <= 2 * externalIdCharactersMax &&
    value.isWellFormed() &&
    !/\p{Cc}/u.test(value) &&
    [...value].length <= externalIdCharactersMax
  );
}

/** What an application may tell of an account; what is left out stays as it is. */
export interface AccountMembers {
  /** Lower case. */
  email?: string | null;
  isEmailVerified?: boolean | null;
  /** Empty for none. */
  name?: string;
  isDisabled?: boolean;
}

export interface ExternalAccount extends AccountMembers {
  externalId: string;
}

/** @returns account ids by external id, of those that are known; disabled accounts too */
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
 * Creates the accounts that are not known yet: one statement, whatever their number. Of two transactions that create
 * the same account one waits for the other and uses what it made.
 * @returns account ids by external id, and which of them are new
 */
export async function ensureExternalAccounts(
  tx: Transaction,
  externalIds: readonly string[],
): Promise<{ ids: Map<string, string>; created: ReadonlySet<string> }> {
  const wanted = [...new Set(externalIds)];
  const ids = await findExternalAccounts(tx, wanted);
  const created = new Set<string>();
  for (;;) {
    // Sorted: transactions that wait for each other's accounts do so in one order, and cannot deadlock.
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
    // Another transaction made them meanwhile: a statement of its own sees them.
    const others = missing.filter((externalId) => !ids.has(externalId));
    for (const [externalId, id] of await findExternalAccounts(tx, others)) ids.set(externalId, id);
  }
}

/** Why an application may not disable or enable an account. */
export type SwitchRefusal = 'administrator' | 'local-account' | 'disabled-by-operator';

interface Switched {
  /** Ids of those that this disabled. */
  disabled: string[];
  /** The first one that may not be disabled or enabled: nothing is changed then, and nothing may be committed. */
  refused: { id: string; reason: SwitchRefusal } | null;
}

export interface ChangedAccounts extends Switched {
  /** In the order given. */
  accounts: { id: string; externalId: string; isNew: boolean }[];
}

/**
 * Creates or changes accounts, all of them in one statement each.
 * @param given each external id once
 * @returns undefined where one was deleted at the same moment
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
 * Changes accounts that exist, for the application.
 * @returns undefined where one does not exist (any more): nothing may be committed then
 */
export async function changeAccounts(
  tx: Transaction,
  given: readonly (AccountMembers & { id: string })[],
): Promise<Switched | undefined> {
  const ids = uuidArray(given.map(({ id }) => id));
  // In one order: two lists with the same accounts wait for each other and never in a circle.
  const { rows: locked } = await sql<SwitchRow>`
    select id, disabled_at is not null as is_disabled, disabled_by, is_admin, external_id is null as is_local
    from accounts where id = any(${ids}::uuid[])
    order by id for no key update`.execute(tx);
  if (locked.length < given.length) return undefined;
  const before = new Map(locked.map((row) => [row.id, row]));
  const switched = given.filter(
    ({ id, isDisabled }) => isDisabled !== undefined && isDisabled !== before.get(id)?.is_disabled,
  );
  for (const { id } of switched) {
    const reason = refuseSwitch(before.get(id) as SwitchRow);
    if (reason !== null) return { disabled: [], refused: { id, reason } };
  }
  const changes = JSON.stringify(given.map(toChange));
  await sql`
    update accounts set
      email = case when given.change ? 'email' then given.change ->> 'email' else email end,
      email_verified = case when given.change ? 'email_verified'
        then (given.change ->> 'email_verified')::boolean
        -- What was said of the address before says nothing of another one.
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
  return { disabled: switched.filter(({ isDisabled }) => isDisabled).map(({ id }) => id), refused: null };
}

interface SwitchRow {
  id: string;
  is_disabled: boolean;
  disabled_by: 'application' | null;
  is_admin: boolean;
  is_local: boolean;
}

/** The application disables its own users, and undoes what it did itself. */
function refuseSwitch(row: SwitchRow): SwitchRefusal | null {
  if (row.is_admin) return 'administrator';
  if (row.is_local) return 'local-account';
  return row.is_disabled && row.disabled_by === null ? 'disabled-by-operator' : null;
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
 * With an account go its resources, sessions, grants and what they opened.
 * @param beforeLast what is done last before that, when nobody else can refer to the account any more
 * @returns whether there was such an account
 */
export async function deleteAccount(
  tx: Transaction,
  id: string,
  beforeLast: () => Promise<void>,
): Promise<boolean> {
  // Disabled first: its grants are withdrawn one by one, which the audit log tells.
  const { rows } = await sql`
    update accounts set disabled_at = coalesce(disabled_at, now()) where id = ${id} returning id`.execute(tx);
  if (rows.length === 0) return false;
  // The lock that the deletion takes: whoever is just making the account a member of an app is waited for.
  await sql`select from accounts where id = ${id} for update`.execute(tx);
  await beforeLast();
  await sql`delete from accounts where id = ${id}`.execute(tx);
  return true;
}
