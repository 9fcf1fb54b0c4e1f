/** Pages of clients. Everybody can register large ones, and all requests of a node share its memory and its thread. */

import { type RawBuilder, sql } from 'kysely';
import { textArray } from '../database/arrays.ts';
import type { Database } from '../database/database.ts';
import { type Client, clientColumns } from './client.ts';

/** Bytes of the redirect URIs and the metadata on a page, before its last client. */
const pageBytesMax = 2_097_152;

/** An item of a list, without what makes clients large. */
interface Head {
  id: string;
}

/**
 * A table for statements: `position` and `id` of as many of the given clients as fit on a page, at least one. Measures no others.
 * @param ids in the order of the page
 */
export function fittingClients(ids: readonly string[]): RawBuilder<unknown> {
  return sql`(
    with recursive given as (select ${textArray(ids)}::text[] as ids),
    page (position, bytes) as (
      select 0, 0::bigint
      union all
      select position + 1, bytes + coalesce((
        select octet_length(metadata::text) + octet_length(redirect_uris::text) from clients where id = ids[position + 1]), 0)
      from page, given where position < cardinality(ids) and bytes < ${sql.lit(pageBytesMax)}
    )
    select position, ids[position] as id from page, given where position > 0)`;
}

/** Reads the clients of a page, without those that were deleted since their ids were read. */
export async function readClientPage(db: Database, heads: readonly Head[]): Promise<Client[]> {
  const { rows } = await sql<Client>`
    select ${clientColumns('c')} from ${fittingClients(heads.map(({ id }) => id))} as fitting
    join clients c on c.id = fitting.id order by fitting.position`.execute(db);
  return rows;
}

/**
 * The item that the next page follows.
 * @param heads of the list: one more than the page may have if there are more
 * @param found the clients of the page
 * @returns undefined on the last page
 */
export function lastOfPage<Item extends Head>(
  heads: readonly Item[],
  found: readonly Head[],
  limit: number,
): Item | undefined {
  const id = found.at(-1)?.id;
  const last = heads.findLast((head) => head.id === id) ?? heads.slice(0, limit).at(-1);
  return last === heads.at(-1) ? undefined : last;
}
