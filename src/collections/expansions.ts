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
import { fragment } from './literal.ts';
import { orderDefault } from './query.ts';
import { pathOf, resourceWriter, writeAll } from './representation.ts';
import { bytesOf, rawColumnList, readableByAll, shownColumns, tableOf } from './resource.ts';
import type { Expansion, ResourceType } from './resource_type.ts';

/** Limit of embedded resources per resource and sub-collection. */
export const embeddedMax = 20;
/**
 * Limit of embedded resources per response. On long pages each resource gets fewer, but at least one: a page has at most 200
 * resources, and a type at most 5 expansions.
 */
export const embeddedInResponseMax = 1_000;
/** Bytes of the texts and documents in embedded pages of a response. JSON can make six of one. The pages of one resource may exceed it. */
const embeddedBytesMax = 524_288;

export interface Embedded {
  /** Writes the member `_embedded` of a resource, with a leading comma; empty without expansions. */
  write: (index: number) => string;
  /** Resources, from the first one, whose embedded pages were read. The others must not be shown. */
  count: number;
}

/**
 * Reads the resources to embed in a page.
 * @param count resources on the page; the cells may contain one more
 * @param limit the page size
 */
export async function embed(
  db: Database,
  principal: Principal,
  { ids, parentIds }: Cells,
  expansions: readonly Expansion[],
  count: number,
  limit: number,
): Promise<Embedded> {
  if (expansions.length === 0) return { write: () => '', count };
  const size = Math.min(embeddedMax, Math.floor(embeddedInResponseMax / (limit * expansions.length)));
  let readCount = count;
  const members: { name: string; of: readonly string[]; texts: ReadonlyMap<string, string> }[] = [];
  for (const { name, type } of expansions) {
    const isPage = type.parent !== null;
    const of = (isPage ? ids : parentIds).slice(0, count);
    const wanted = [...new Set(of)];
    const { texts, read } = isPage
      ? await readPages(db, principal, type, type.parent as ResourceType, wanted, size)
      : { texts: await readResources(db, principal, type, wanted), read: count };
    readCount = Math.min(readCount, read);
    members.push({ name, of, texts });
  }
  const write = (index: number) => {
    const written = members.flatMap(({ name, of, texts }) => {
      const text = texts.get(of[index] as string);
      return text === undefined ? [] : [`"${name}":${text}`];
    });
    return `,"_embedded":{${written.join(',')}}`;
  };
  return { write, count: readCount };
}

/** Reads resources by id. */
async function readResources(
  db: Database,
  principal: Principal,
  type: ResourceType,
  ids: readonly string[],
): Promise<Map<string, string>> {
  const columns = shownColumns(type);
  const { rows } = await sql<CellsRow>`
    select ${cellList(columns, 'v', 'v.id')} from (
      select ${rawColumnList(columns)} from ${tableOf(type)}
       where id = any(${ids}::uuid[]) and (author = ${principal.accountId} or ${readableByAll(type)})
    ) as v`.execute(db);
  const cells = readCells(columns, rows[0] as CellsRow);
  const write = resourceWriter(type, principal, cells);
  return new Map(cells.ids.map((id, index) => [id, write(index)]));
}

/**
 * Reads the first page of a sub-collection for each parent, until the pages are large.
 * @returns the pages, and how many parents, from the first one, were read
 */
async function readPages(
  db: Database,
  principal: Principal,
  type: ResourceType,
  parent: ResourceType,
  parentIds: readonly string[],
  size: number,
): Promise<{ texts: Map<string, string>; read: number }> {
  // Newest first, like `orderDefault`: ids are in the order of creation. A range, because with `=` the order of ids alone would do: where one parent has
  // nearly all rows, PostgreSQL expects to find some of each parent soon, and reads the rows of all in search of them.
  const newestOf = (id: string) =>
    sql`from ${tableOf(type)} where parent_id >= ${fragment(id)} and parent_id <= ${fragment(id)}
      order by parent_id desc, id desc limit ${size + 1}`;
  const columns = shownColumns(type);
  // JSON is made only of what is shown: of a thousand long comments it takes PostgreSQL a second.
  const { rows } = await sql<CellsRow & { _parent: string; _read: string | null }>`
    with wanted as (
      select p.id as _parent, wanted.place as _place
        from unnest(${parentIds}::uuid[]) with ordinality as wanted (id, place)
        join ${tableOf(parent)} p on p.id = wanted.id
       where p.author = ${principal.accountId} or ${readableByAll(parent, 'p')}
    ),
    counted as (
      select wanted.*, coalesce(
        sum(page._bytes) over (order by _place rows between unbounded preceding and 1 preceding), 0) as _before
      from wanted cross join lateral (
        select sum(${bytesOf(columns)}) as _bytes from (select ${rawColumnList(columns)} ${newestOf('wanted._parent')}) as v
      ) as page
    )
    select _parent, page.*, (select min(_place) - 1 from counted where _before > ${embeddedBytesMax})::text as _read
    from counted cross join lateral (
      select ${cellList(columns, 'v', 'v.id desc')} from (select ${rawColumnList(columns)} ${newestOf('counted._parent')}) as v
    ) as page
    where _before <= ${embeddedBytesMax}`.execute(db);
  const texts = new Map(
    rows.map((row) => {
      const path = `${pathOf(parent, { id: row._parent })}/${type.name}?limit=${size}`;
      return [row._parent, writePage(type, principal, readCells(columns, row), size, path)];
    }),
  );
  return { texts, read: Number(rows[0]?._read ?? parentIds.length) };
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
