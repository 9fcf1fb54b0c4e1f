/**
 * Apps when an account is deleted: its invitations end, and apps that lose their last owner are suspended. An administrator can
 * add an owner and reinstate them. Writes the table `clients`, as src/clients does.
 */

import { sql } from 'kysely';
import { recordEntry } from '../audit/entry.ts';
import type { Transaction } from '../database/database.ts';
import { deleteInvitationsOf } from './invitation.ts';

/** For the audit log. */
const reason = 'its only owner was deleted';

/** Locks the apps of an account. Must run before other rows than the account's own are locked, to avoid deadlocks. */
export async function lockOwnedApps(tx: Transaction, accountId: string): Promise<void> {
  await sql`
    select from clients
    where id in (select client_id from app_members where account_id = ${accountId} and role = 'owner')
    order by id for no key update`.execute(tx);
}

/**
 * Ends the account's invitations, and suspends the apps whose only enabled owner it is.
 * @param accountId an account that other transactions can no longer refer to
 */
export async function suspendAbandonedApps(tx: Transaction, accountId: string): Promise<void> {
  await deleteInvitationsOf(tx, accountId);
  const { rows } = await sql<{ id: string }>`
    update clients set suspended_at = now(), updated_at = now()
    where origin = 'account' and suspended_at is null
      and id in (select client_id from app_members where account_id = ${accountId} and role = 'owner')
      and not exists (
        select from app_members m join accounts a on a.id = m.account_id
        where m.client_id = clients.id and m.role = 'owner' and m.account_id <> ${accountId}
          and a.disabled_at is null)
    returning id`.execute(tx);
  for (const { id } of rows) {
    await recordEntry(tx, { kind: 'app.suspended', clientId: id, details: { reason } });
  }
}
