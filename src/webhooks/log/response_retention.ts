/**
 * Deletes headers and bodies of responses before their attempts, where `retention.responsesDays` is less than
 * `retention.deliveriesDays`. Works through a day's partition in ranges of pages, so that no statement locks many rows.
 */

import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';

/** Pages of a range: about a thousand attempts. */
const rangePages = 20;

/** @param today the UTC day that counts as today */
export async function deleteResponses(db: Database, today: string): Promise<void> {
  const { rows: days } = await sql<{ day: string; table: string; pages: number }>`
    select day::text, table_name as "table", (pg_relation_size(oid) / current_setting('block_size')::int)::int as pages
    from retention, (
      select c.oid, c.relname as table_name, to_date(right(c.relname, 8), 'YYYYMMDD') as day
      from pg_inherits join pg_class c on c.oid = inhrelid
      where inhparent = 'attempts'::regclass and not inhdetachpending
    ) as partition
    where responses_days < deliveries_days and day < ${today}::date - responses_days
      and day > coalesce(responses_deleted_through, '-infinity')
    order by day`.execute(db);
  for (const { day, table, pages } of days) {
    for (let page = 0; page < pages; page += rangePages) await deleteOfPages(db, table, page);
    await sql`
      update retention set responses_deleted_through = ${day}::date
      where responses_deleted_through is distinct from ${day}::date`.execute(db);
  }
}

/** New versions of the rows may follow in later pages, and have nothing to delete. */
async function deleteOfPages(db: Database, table: string, from: number): Promise<void> {
  await sql`
    update ${sql.table(table)} set headers = null, body = null, response_omitted = true
    where ctid >= ${`(${from},0)`}::tid and ctid < ${`(${from + rangePages},0)`}::tid
      and (headers is not null or body is not null)`.execute(db);
}
