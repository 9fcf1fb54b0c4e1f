/**
 * Expansions embed linked resources in a response on request (`?expand=`). Each expansion takes one statement for a whole
 * page. The statement checks permissions again, because they may have changed since the page was read. Embedded resources
 * have no expansions themselves.
 */

import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import type { Principal } from '../grants/principal.ts';
import { type Cells, type CellsRow, cellList, readCells } from './cells.ts';
import { writeCursor } from './cursor.ts';
import { orderDefault } from './query.ts';
import { pathOf, resourceWriter, writeAll } from './representation.ts';
import { rawColumnList, readableByAll, tableOf } from './resource.ts';
import type { Expansion, ResourceType } from './resource_type.ts';

/** Limit of embedded resources per resource and sub-collection. */
export const embeddedMax = 20;
/**
 * Limit of embedded resources per response. On long pages each resource gets fewer, but at least one: a page has at most 200
 * resources, and a type at most 5 expansions.
 */
export const embeddedInResponseMax = 1_000;

/**
 * Reads the resources to embed in a page.
 * @param count resources on the page; the cells may contain one more
 * @param limit the page size
 * @returns a function that writes the member `_embedded` of a resource, with a leading comma; empty without expansions
 */
export async function embed(
  db: Database,
  principal: Principal,
  { ids, parentIds }: Cells,
  expansions: readonly Expansion[],
  count: number,
  limit: number,
): Promise<(index: number) => string> {
  if (expansions.length === 0) return () => '';
  const size = Math.min(embeddedMax, Math.floor(embeddedInResponseMax / (limit * expansions.length)));
  const members: { name: string; of: readonly string[]; texts: ReadonlyMap<string, string> }[] = [];
  for (const { name, type } of expansions) {
    const isPage = type.parent !== null;
    const of = (isPage ? ids : parentIds).slice(0, count);
    const wanted = [...new Set(of)];
    const texts = isPage
      ? await readPages(db, principal, type, type.parent as ResourceType, wanted, size)
      : await readResources(db, principal, type, wanted);
    members.push({ name, of, texts });
  }
  return (index) => {
    const written = members.flatMap(({ name, of, texts }) => {
      const text = texts.get(of[index] as string);
      return text === undefined ? [] : [`"${name}":${text}`];
    });
    return `,"_embedded":{${written.join(',')}}`;
  };
}

/** Reads resources by id. */
async function readResources(
  db: Database,
  principal: Principal,
  type: ResourceType,
  ids: readonly string[],
): Promise<Map<string, string>> {
  const { rows } = await sql<CellsRow>`
    select ${cellList(type, 'v', 'v.id')} from (
      select ${rawColumnList(type)} from ${tableOf(type)}
       where id = any(${ids}::uuid[]) and (author = ${principal.accountId} or ${readableByAll(type)})
    ) as v`.execute(db);
  const cells = readCells(type, rows[0] as CellsRow);
  const write = resourceWriter(type, principal, cells);
  return new Map(cells.ids.map((id, index) => [id, write(index)]));
}

/** Reads the first page of a sub-collection for each parent. */
async function readPages(
  db: Database,
  principal: Principal,
  type: ResourceType,
  parent: ResourceType,
  parentIds: readonly string[],
  size: number,
): Promise<Map<string, string>> {
  // Newest first, like `orderDefault`: ids are in the order of creation.
  const { rows } = await sql<CellsRow & { _parent: string }>`
    select p.id as _parent, page.*
      from unnest(${parentIds}::uuid[]) as wanted (id)
      join ${tableOf(parent)} p on p.id = wanted.id
     cross join lateral (
       select ${cellList(type, 'v', 'v.id desc')} from (
         select ${rawColumnList(type)} from ${tableOf(type)} where parent_id = p.id order by id desc limit ${size + 1}
       ) as v
     ) as page
     where p.author = ${principal.accountId} or ${readableByAll(parent, 'p')}`.execute(db);
  return new Map(
    rows.map((row) => {
      const path = `${pathOf(parent, { id: row._parent })}/${type.name}?limit=${size}`;
      return [row._parent, writePage(type, principal, readCells(type, row), size, path)];
    }),
  );
}

function writePage(
  type: ResourceType,
  principal: Principal,
  cells: Cells,
  size: number,
  path: string,
): string {
  const { ids } = cells;
  const items = writeAll(Math.min(ids.length, size), resourceWriter(type, principal, cells));
  const links: Record<string, { href: string }> = { self: { href: path } };
  if (ids.length > size) {
    const after = writeCursor(orderDefault, { key: null, id: ids[size - 1] as string });
    links.next = { href: `${path}&after=${after}` };
  }
  return `{"items":[${items}],"_links":${JSON.stringify(links)}}`;
}
