/**
 * GET on a collection or sub-collection, with keyset pagination. A page starts after the position where the previous page ended.
 * So a traversal returns each resource that exists all the time exactly once, also if others are inserted or deleted.
 *
 * A collection is read in two parts: the user's own resources, and readable resources of others. Each part is at most one page long. With at
 * most one condition it is read from an index in the order of the list; other lists take turns (list_turns.ts).
 *
 * All clients of a node share its memory and its server thread, so a page also ends when its values are large. Columns that the client leaves out are
 * not read: PostgreSQL stores large values apart from their rows.
 */

import { type RawBuilder, sql } from 'kysely';
import { type Database, varied } from '../database/database.ts';
import type { Principal } from '../grants/principal.ts';
import { Problem } from '../http/problem.ts';
import { type Cells, type CellsRow, cellList, readCells, splitJsonArray } from './cells.ts';
import { typedParameter } from './create.ts';
import { type Place, readCursor, writeCursor } from './cursor.ts';
import { fragment, identifier } from './literal.ts';
import type { ListQuery } from './query.ts';
import {
  bytesOf,
  columnsToRead,
  findVisible,
  jsonBytesOf,
  type NamedColumn,
  notFound,
  rawColumnList,
  readableByAll,
  tableOf,
} from './resource.ts';
import type { ResourceType } from './resource_type.ts';
import { orderExpression, orderType } from './table.ts';

export interface Page {
  cells: Cells;
  /** Resources on the page. If there is a next page, each column has one more cell. */
  count: number;
  /** @param shown how many resources of the page are shown @returns cursor of the next page; undefined on the last page */
  nextAfter: (shown: number) => string | undefined;
}

/**
 * Bytes of the texts and documents on a page, about as JSON: with eight articles of control characters as the newest, the list of all readers took PostgreSQL 65 ms.
 * A single larger resource comes alone.
 */
const pageBytesMax = 524_288;

/**
 * @param parentId of a sub-collection
 * @throws Problem 404 if the principal cannot read the parent, 400 for a cursor of another list
 */
export async function listResources(
  db: Database,
  type: ResourceType,
  principal: Principal,
  query: ListQuery,
  parentId?: string,
): Promise<Page> {
  const name = query.order.replace(/^-/, '');
  const hasKey = name !== 'created_at';
  const after = query.after === undefined ? undefined : readCursor(query.order, hasKey, query.after);
  if (type.parent !== null && (await findVisible(db, type.parent, principal, parentId ?? '')) === undefined) {
    throw notFound(type.parent);
  }
  const columns = columnsToRead(type, query.fields);
  const part = partOf(type, columns, query, name, after);
  const author = query.filters.find((filter) => filter.name === 'author')?.value;
  const row = await select(db, type, principal, part, author, parentId).catch((error: unknown) => {
    // SQLSTATE class 22: the column's type rejects the cursor's key, so the cursor is forged or of another list.
    if (/^22/.test(String((error as { code?: unknown }).code))) {
      throw new Problem(400, 'after is not a cursor of this list.', { code: 'invalid-cursor', cause: error });
    }
    throw error;
  });
  const cells = readCells(columns, row);
  const fitting = Math.max(Number(row._fitting), 1);
  const count = Math.min(cells.ids.length, query.limit, fitting);
  const nextAfter = (shown: number) => {
    if (cells.ids.length <= shown) return undefined;
    const key = hasKey
      ? (JSON.parse(splitJsonArray(row._sort_keys as string)[shown - 1] as string) as string)
      : null;
    return writeCursor(query.order, { key, id: cells.ids[shown - 1] as string });
  };
  return { cells, count, nextAfter };
}

interface Part {
  /** Columns of the inner queries. */
  columns: RawBuilder<unknown>;
  /** Bytes of a row, and about as JSON, for the outer queries. */
  bytes: RawBuilder<unknown>;
  jsonBytes: RawBuilder<unknown>;
  /** Aggregates of the outer query. */
  cells: RawBuilder<unknown>;
  /** Filters and the position to start after. */
  where: RawBuilder<unknown>;
  order: RawBuilder<unknown>;
  outerOrder: RawBuilder<unknown>;
  limit: RawBuilder<unknown>;
}

function partOf(
  type: ResourceType,
  columns: readonly NamedColumn[],
  query: ListQuery,
  name: string,
  after: Place | undefined,
): Part {
  const expression = fragment(orderExpression(type, name));
  const isDescending = query.order.startsWith('-');
  const direction = fragment(isDescending ? 'desc' : 'asc');
  const hasKey = name !== 'created_at';
  const conditions = query.filters.map((filter) => {
    const column = type.fields.find((field) => field.name === filter.name)?.column ?? 'uuid';
    return sql`${fragment(identifier(filter.name))} = ${typedParameter(column, filter.value)}`;
  });
  if (after !== undefined) {
    const comparison = fragment(isDescending ? '<' : '>');
    conditions.push(
      hasKey
        ? sql`(${expression}, id) ${comparison} (${after.key}::text::${fragment(orderType(type, name))}, ${after.id}::uuid)`
        : sql`id ${comparison} ${after.id}`,
    );
  }
  const outerOrder = ['v._sort_value', 'v.id']
    .slice(hasKey ? 0 : 1)
    .map((key) => `${key} ${isDescending ? 'desc' : 'asc'}`)
    .join(', ');
  const cells = cellList(columns, 'v', outerOrder);
  return {
    columns: hasKey
      ? sql`${rawColumnList(columns)}, ${expression} as _sort_value, (${expression})::text as _sort_key`
      : rawColumnList(columns),
    bytes: bytesOf(columns),
    jsonBytes: jsonBytesOf(columns),
    cells: hasKey
      ? sql`${cells}, json_agg(v._sort_key order by ${fragment(outerOrder)})::text as _sort_keys`
      : cells,
    where: conditions.length === 0 ? fragment('true') : sql.join(conditions, fragment(' and ')),
    order: hasKey ? sql`${expression} ${direction}, id ${direction}` : sql`id ${direction}`,
    outerOrder: fragment(outerOrder),
    // One more row shows whether there is a next page.
    limit: sql`${query.limit + 1}`,
  };
}

async function select(
  db: Database,
  type: ResourceType,
  { accountId }: Principal,
  { columns, bytes, jsonBytes, cells, where, order, outerOrder, limit }: Part,
  author: unknown,
  parentId: string | undefined,
): Promise<CellsRow> {
  const table = tableOf(type);
  const own = sql`(select ${columns} from ${table} where author = ${accountId} and ${where} order by ${order} limit ${limit})`;
  const others = sql`(select * from (
    select ${columns} from ${table} where ${readableByAll(type)} and ${where}
    order by ${order} limit ${limit}) as r
    -- The user's own are in the other part. Left out here before the limit, they would all be read, to find others.
    where author is distinct from ${accountId}::uuid)`;
  const parts = author === undefined ? sql`${own} union all ${others}` : author === accountId ? own : others;
  const found =
    type.parent !== null
      ? sql`
        select ${columns} from ${table} where parent_id = ${parentId} and ${where}
        order by ${order} limit ${limit}`
      : sql`
        select * from (${parts}) as v
        order by ${outerOrder} limit ${limit}`;
  const before = (size: string) => sql`coalesce(sum(v.${fragment(size)}) over (
    order by ${outerOrder} rows between unbounded preceding and 1 preceding), 0)`;
  const { rows } = await sql<CellsRow>`${varied}
    select ${cells}, (count(*) filter (where v._json_before + v._json <= ${pageBytesMax}))::text as _fitting from (
      select v.*, ${before('_json')} as _json_before from (
        -- Only of texts that may be on the page.
        select v.*, ${jsonBytes} as _json from (
          select v.*, ${before('_bytes')} as _before from (select v.*, ${bytes} as _bytes from (${found}) as v) as v
        ) as v
        where v._before <= ${pageBytesMax}
      ) as v
    ) as v
    where v._json_before <= ${pageBytesMax}`.execute(db);
  return rows[0] as CellsRow;
}
