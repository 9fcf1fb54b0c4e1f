/**
 * Members of an app. Owners may do everything; developers may not manage members or delete the app. Owns the table
 * `app_members`. No request removes the last owner of an app that an account created.
 *
 *   (invited) → developer ⇄ owner → removed
 */

import { sql } from 'kysely';
import { ownsAddress } from '../accounts/account.ts';
import { recordEntry } from '../audit/entry.ts';
import type { Database, Transaction } from '../database/database.ts';
import { Problem } from '../http/problem.ts';
import { lockApp, type Role } from './app.ts';

export interface Member {
  accountId: string;
  name: string;
  /** Null also if the address is not verified. */
  email: string | null;
  role: Role;
  createdAt: Date;
}

/** Maximum number of members and invitations of one app, together. */
export const membersMax = 100;

const selected = sql`
  select m.account_id as "accountId", a.name, case when ${ownsAddress('a')} then a.email end as email, m.role,
    m.created_at as "createdAt"
  from app_members m join accounts a on a.id = m.account_id`;

export async function listMembers(db: Database | Transaction, clientId: string): Promise<Member[]> {
  const { rows } = await sql<Member>`
    ${selected} where m.client_id = ${clientId} order by m.created_at, m.account_id limit ${membersMax}`.execute(
    db,
  );
  return rows;
}

/**
 * @param account an account id, or an e-mail address in lower case
 * @throws Problem 409 if several members have the address
 */
export async function findMember(
  db: Database | Transaction,
  clientId: string,
  account: { id: string } | { email: string },
): Promise<Member | undefined> {
  const condition =
    'id' in account
      ? sql`m.account_id = ${account.id}`
      : sql`a.email = ${account.email} and ${ownsAddress('a')}`;
  const { rows } = await sql<Member>`
    ${selected} where m.client_id = ${clientId} and ${condition} limit 2`.execute(db);
  if (rows.length > 1) {
    throw new Problem(409, 'Several members have this address. Use the account id instead.', {
      code: 'ambiguous-address',
    });
  }
  return rows[0];
}

export async function addMember(
  tx: Transaction,
  clientId: string,
  accountId: string,
  role: Role,
): Promise<void> {
  const { rows } = await sql`
    insert into app_members (client_id, account_id, role) values (${clientId}, ${accountId}, ${role})
    on conflict (client_id, account_id) do nothing returning client_id`.execute(tx);
  if (rows.length === 0) return;
  await recordEntry(tx, { kind: 'app.member_added', accountId, clientId, details: { role } });
}

/** @returns false if the account is the last owner, who cannot be demoted */
export async function changeRole(
  tx: Transaction,
  clientId: string,
  accountId: string,
  role: Role,
): Promise<boolean> {
  await lockApp(tx, clientId);
  if (role !== 'owner' && (await isLastOwner(tx, clientId, accountId))) return false;
  const { rows } = await sql`
    update app_members set role = ${role}
    where client_id = ${clientId} and account_id = ${accountId} and role <> ${role} returning client_id`.execute(
    tx,
  );
  if (rows.length > 0) {
    await recordEntry(tx, { kind: 'app.member_changed', accountId, clientId, details: { role } });
  }
  return true;
}

/** @returns false if the account is the last owner, who cannot be removed */
export async function removeMember(tx: Transaction, clientId: string, accountId: string): Promise<boolean> {
  await lockApp(tx, clientId);
  if (await isLastOwner(tx, clientId, accountId)) return false;
  const { rows } = await sql`
    delete from app_members where client_id = ${clientId} and account_id = ${accountId} returning client_id`.execute(
    tx,
  );
  if (rows.length > 0) await recordEntry(tx, { kind: 'app.member_removed', accountId, clientId });
  return true;
}

/** The app must be locked. Disabled owners do not count if another owner is enabled. */
async function isLastOwner(tx: Transaction, clientId: string, accountId: string): Promise<boolean> {
  const { rows } = await sql<{ account_id: string; is_disabled: boolean }>`
    select m.account_id, a.disabled_at is not null as is_disabled
    from app_members m join accounts a on a.id = m.account_id
    where m.client_id = ${clientId} and m.role = 'owner'`.execute(tx);
  const own = rows.find((owner) => owner.account_id === accountId);
  if (own === undefined) return false;
  return !rows.some((owner) => owner !== own && (!owner.is_disabled || own.is_disabled));
}
