/** Pages of the audit log, newest first. Each page reads one index. */

import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import type { AuditRow } from './audit_log.ts';

export interface AuditPageRow extends AuditRow {
  id: string;
  /** An account id or `client:<id>`; null if the actor is unknown. */
  actor: string | null;
}

/**
 * @param of selects the index. The indexes by account and by client do not contain `token.` entries.
 * @param after the last id of the previous page
 */
export async function readAuditPage(
  db: Database,
  of: { account: string | null; client: string | null; withTokens: boolean; until: Date | null },
  after: string | null,
  count: number,
): Promise<AuditPageRow[]> {
  const byAccount = sql`and e.account_id = ${of.account} and e.kind !~~ 'token.%'`;
  const byClient = sql`and e.client_id = ${of.client} and e.kind !~~ 'token.%'`;
  const isIndexed = !of.withTokens;
  const indexed =
    isIndexed && of.account !== null ? byAccount : isIndexed && of.client !== null ? byClient : sql``;
  const next = after === null ? sql`` : sql`and e.id < ${after}::bigint`;
  const before =
    of.until === null
      ? sql``
      : sql`and e.id < (select audit_entry_at(${of.until}::timestamptz + interval '1 minute'))`;
  const { rows } = await sql<AuditPageRow>`
    select e.id, e.at, e.kind, e.actor, e.account_id as "accountId", e.client_id as "clientId", e.grant_id as "grantId",
      e.details, a.email
    from (
      select * from audit_entries e where true ${indexed} ${next} ${before} order by e.id desc limit ${count}
    ) as e
    left join accounts a on a.id = e.account_id
    order by e.id desc`.execute(db);
  return rows;
}
