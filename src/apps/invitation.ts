/**
 * Invitations to an app. An invitation goes to any e-mail address, also one that no account has. So the inviter does not learn
 * which accounts exist. The account with the address accepts. Owns the table `app_invitations`.
 *
 * An invitation lasts as long as its inviter may invite: somebody who is no longer an owner must not return by an invitation to
 * another account of theirs.
 *
 *   invited (renewed by another invitation) → accepted (a member) | declined | cancelled | expired
 */

import { sql } from 'kysely';
import { ownsAddress } from '../accounts/account.ts';
import { recordEntry } from '../audit/entry.ts';
import { newId } from '../crypto/ids.ts';
import type { Database, Transaction } from '../database/database.ts';
import { lockApp, type Role } from './app.ts';
import { addMember, membersMax } from './member.ts';

export interface Invitation {
  id: string;
  clientId: string;
  email: string;
  role: Role;
  createdAt: Date;
  expiresAt: Date;
}

/** An invitation as the invited account sees it. */
export interface ReceivedInvitation extends Invitation {
  app: { name: string; logoUri: string | null };
  invitedBy: { name: string; email: string | null } | null;
}

/** Lifetime of an invitation in days. */
const invitationDays = 14;

const columns = sql.raw(
  `i.id, i.client_id as "clientId", i.email, i.role, i.created_at as "createdAt", i.expires_at as "expiresAt"`,
);

/** Whether an invitation of `app_invitations i` counts. Machine clients of the operator invite without an account. */
const isLive = sql`
  i.expires_at > now() and (i.invited_by is null or exists (
    select from accounts inviter
    where inviter.id = i.invited_by and inviter.disabled_at is null and (inviter.is_admin or exists (
      select from app_members m
      where m.client_id = i.client_id and m.account_id = inviter.id and m.role = 'owner'))))`;

/** The live invitations of an app. */
export async function listInvitations(db: Database | Transaction, clientId: string): Promise<Invitation[]> {
  const { rows } = await sql<Invitation>`
    select ${columns} from app_invitations i where i.client_id = ${clientId} and ${isLive}
    order by i.created_at, i.id limit ${membersMax}`.execute(db);
  return rows;
}

export async function findInvitation(
  db: Database | Transaction,
  clientId: string,
  email: string,
): Promise<Invitation | undefined> {
  const { rows } = await sql<Invitation>`
    select ${columns} from app_invitations i
    where i.client_id = ${clientId} and i.email = ${email} and ${isLive}`.execute(db);
  return rows[0];
}

/** @returns undefined if the app has the maximum number of members and invitations */
export async function invite(
  tx: Transaction,
  clientId: string,
  email: string,
  role: Role,
  invitedBy: string | null,
): Promise<Invitation | undefined> {
  await lockApp(tx, clientId);
  await sql`delete from app_invitations i where i.client_id = ${clientId} and not (${isLive})`.execute(tx);
  const { rows } = await sql<Invitation>`
    insert into app_invitations as i (id, client_id, email, role, invited_by, expires_at)
    select ${newId()}, ${clientId}, ${email}, ${role}, ${invitedBy}::uuid, now() + make_interval(days => ${invitationDays})
    where (select count(*) from app_members where client_id = ${clientId})
      + (select count(*) from app_invitations where client_id = ${clientId} and email <> ${email}) < ${membersMax}::int
    on conflict (client_id, email) do update set
      role = excluded.role, invited_by = excluded.invited_by, expires_at = excluded.expires_at
    returning ${columns}`.execute(tx);
  if (rows[0] === undefined) return undefined;
  await recordEntry(tx, { kind: 'app.member_invited', clientId, details: { email, role } });
  return rows[0];
}

/** @returns false if there is no such invitation */
export async function cancelInvitation(tx: Transaction, clientId: string, email: string): Promise<boolean> {
  const { rows } = await sql`
    delete from app_invitations i where i.client_id = ${clientId} and i.email = ${email} and ${isLive}
    returning i.id`.execute(tx);
  if (rows.length > 0) {
    await recordEntry(tx, { kind: 'app.invitation_taken_back', clientId, details: { email } });
  }
  return rows.length > 0;
}

/** Lists invitations to the address of an account. @param after the last id of the previous page */
export async function listReceivedInvitations(
  db: Database | Transaction,
  accountId: string,
  limit: number,
  after: string | null,
  id: string | null = null,
): Promise<ReceivedInvitation[]> {
  const { rows } = await sql<ReceivedInvitation>`
    select ${columns}, jsonb_build_object('name', c.name, 'logoUri', c.metadata ->> 'logo_uri') as app,
      case when b.id is not null then jsonb_build_object(
        'name', b.name, 'email', case when ${ownsAddress('b')} then b.email end) end as "invitedBy"
    from accounts a
    join app_invitations i on i.email = a.email and ${ownsAddress('a')} and ${isLive}
    join clients c on c.id = i.client_id
    left join accounts b on b.id = i.invited_by
    where a.id = ${accountId} and (${after}::uuid is null or i.id > ${after}::uuid)
      and (${id}::uuid is null or i.id = ${id}::uuid)
    order by i.id limit ${limit}`.execute(db);
  return rows;
}

/** Deletes the invitations of an account that is deleted: without it, nobody could tell whose they were. */
export async function deleteInvitationsOf(tx: Transaction, inviterId: string): Promise<void> {
  await sql`delete from app_invitations where invited_by = ${inviterId}`.execute(tx);
}

/** Accepts an invitation, which deletes it. @returns undefined if the account has no such invitation */
export async function acceptInvitation(
  tx: Transaction,
  accountId: string,
  id: string,
): Promise<Invitation | undefined> {
  const invitation = await deleteReceivedInvitation(tx, accountId, id);
  if (invitation !== undefined) await addMember(tx, invitation.clientId, accountId, invitation.role);
  return invitation;
}

/** @returns false if the account has no such invitation */
export async function declineInvitation(tx: Transaction, accountId: string, id: string): Promise<boolean> {
  const invitation = await deleteReceivedInvitation(tx, accountId, id);
  if (invitation === undefined) return false;
  const { clientId } = invitation;
  await recordEntry(tx, { kind: 'app.invitation_declined', accountId, clientId });
  return true;
}

async function deleteReceivedInvitation(
  tx: Transaction,
  accountId: string,
  id: string,
): Promise<Invitation | undefined> {
  const { rows: found } = await sql<{ client_id: string }>`
    select client_id from app_invitations where id = ${id}`.execute(tx);
  if (found[0] === undefined) return undefined;
  await lockApp(tx, found[0].client_id);
  const { rows } = await sql<Invitation>`
    delete from app_invitations i
    where i.id = ${id} and ${isLive}
      and i.email = (select a.email from accounts a where a.id = ${accountId} and a.disabled_at is null and ${ownsAddress('a')})
    returning ${columns}`.execute(tx);
  return rows[0];
}
