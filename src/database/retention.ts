/** How long rows are kept, as all nodes read it. Owns the table `retention`. */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from './database.ts';
import type { RetentionSettings } from './retention_settings.ts';

/** SQL expressions for the days of each setting. */
export const keptDays = Object.freeze({
  deliveries: sql<number>`(select deliveries_days from retention)`,
  audit: sql<number>`(select audit_days from retention)`,
  connections: sql<number>`(select connections_days from retention)`,
  mails: sql<number>`(select mails_days from retention)`,
});

/** An SQL interval. */
export function keptFor(days: RawBuilder<number>): RawBuilder<string> {
  return sql<string>`make_interval(days => ${days})`;
}

/** The settings of the node that starts last apply to all. */
export async function storeRetention(db: Database, settings: RetentionSettings): Promise<void> {
  const { deliveriesDays, responsesDays, rejectedDays, auditDays, connectionsDays, mailsDays } = settings;
  await sql`
    update retention set deliveries_days = given.deliveries, responses_days = given.responses, rejected_days = given.rejected,
      audit_days = given.audit, connections_days = given.connections, mails_days = given.mails
    from (select ${deliveriesDays}::int as deliveries, ${responsesDays}::int as responses, ${rejectedDays}::int as rejected,
      ${auditDays}::int as audit, ${connectionsDays}::int as connections, ${mailsDays}::int as mails) as given
    where (deliveries_days, responses_days, rejected_days, audit_days, connections_days, mails_days)
      is distinct from (given.deliveries, given.responses, given.rejected, given.audit, given.connections, given.mails)`.execute(
    db,
  );
}

/** Days for which events and their deliveries are kept. */
export async function readDeliveriesDays(db: Database): Promise<number> {
  const { rows } = await sql<{ days: number }>`select deliveries_days as days from retention`.execute(db);
  return (rows[0] as { days: number }).days;
}
