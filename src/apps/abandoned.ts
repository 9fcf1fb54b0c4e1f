/**
 * Apps that lose their last owner because an account is deleted: nobody manages them any more, so they are suspended. An
 * administrator adds an owner and reinstates them. Writes the table `clients` beside src/clients.
 */

import { sql } from 'kysely';
import { recordEntry } from '../audit/entry.ts';
import type { Transaction } from '../database/database.ts';

/** As the audit log says it. */
const reason = 'its only owner was deleted';

/** Before anything else of the account is locked but its row: grants and members come after their app. */
export async function lockOwnedApps(tx: Transaction, accountId: string): Promise<void> {
  await sql`
    select from clients
    where id in (select client_id from app_members where account_id = ${accountId} and role = 'owner')
    order by id for no key update`.execute(tx);
}

/**
 * Suspends the apps that an account leaves without an owner. An owner whose account is disabled does not count.
 * @param accountId an account whose row nobody else can refer to any more
 */
export async function suspendAbandonedApps(tx: Transaction, accountId: string): Promise<void> {
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
