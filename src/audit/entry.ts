/** Writes an audit entry in the transaction of the change, for changes without a trigger. */

import { sql } from 'kysely';
import type { Transaction } from '../database/database.ts';
import type { AuditEntry } from './audit_log.ts';

export async function recordEntry(
  tx: Transaction,
  entry: Pick<AuditEntry, 'kind'> & Partial<AuditEntry>,
): Promise<void> {
  const { kind, accountId = null, clientId = null, grantId = null, details = {} } = entry;
  await sql`
    insert into audit_entries (kind, account_id, client_id, grant_id, details)
    values (${kind}, ${accountId}, ${clientId}, ${grantId}, ${JSON.stringify(details)})`.execute(tx);
}
