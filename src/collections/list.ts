/**
 * GET on a collection or sub-collection: one page, by keyset. A page begins after the place where the one before
 * ended, so each resource that is there from the first page to the last is seen exactly once, whatever is added or
 * removed meanwhile.
 *
 * A collection is read in two parts, one's own and what one may read of others, each from an index in the list's
 * order and each no further than the page is long: what a page costs does not grow with what one may not see.
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../database/database.ts';
import type { Principal } from '../grants/principal.ts';
import { Problem } from '../http/problem.ts';
import { type Cells, type CellsRow, cellList, cut, readCells } from './cells.ts';
import { typed } from './create.ts';
import { type Place, readCursor, writeCursor } from './cursor.ts';
import { fragment, identifier } from './literal.ts';
import type { ListQuery } from './query.ts';
import { findVisible, notFound, rawColumnList, readableByAll, tableOf } from './resource.ts';
import type { ResourceType } from './resource_type.ts';
import { orderExpression, orderType } from './table.ts';

export interface Page {
  cells: Cells;
  /** Resources on it: one more cell of each column tells that there is a next page. */
  count: number;
  /** The cursor of the next page; undefined at the end. */
  next: string | undefined;
}

/**
 * @param parentId of a sub-collection
 * @throws Problem 404 when the parent may not be seen, 400 for a cursor of another list
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
  const part = partOf(type, query, name, after);
  const row = await select(db, type, principal, part, parentId).catch((error: unknown) => {
    // A cursor's key that the column's type refuses (SQLSTATE class 22) was not written here.
    if (/^22/.test(String((error as { code?: unknown }).code))) {
      throw new Problem(400, 'after is not of this list.', { code: 'invalid-cursor', cause: error });
    }
    throw error;
  });
  const cells = readCells(type, row);
  if (cells.ids.length <= query.limit) return { cells, count: cells.ids.length, next: undefined };
  const last = query.limit - 1;
  const key = hasKey ? (JSON.parse(cut(row._sort_keys as string)[last] as string) as string) : null;
  const next = writeCursor(query.order, { key, id: cells.ids[last] as string });
  return { cells, count: query.limit, next };
}

interface Part {
  /** Of a resource, within. */
  columns: RawBuilder<unknown>;
  /** Of the page. */
  cells: RawBuilder<unknown>;
  /** Filters and the place to begin after. */
  where: RawBuilder<unknown>;
  order: RawBuilder<unknown>;
  outerOrder: RawBuilder<unknown>;
  limit: RawBuilder<unknown>;
}

function partOf(type: ResourceType, query: ListQuery, name: string, after: Place | undefined): Part {
  const expression = fragment(orderExpression(type, name));
  const isDescending = query.order.startsWith('-');
  const direction = fragment(isDescending ? 'desc' : 'asc');
  const hasKey = name !== 'created_at';
  const conditions = query.filters.map((filter) => {
    const column = type.fields.find((field) => field.name === filter.name)?.column ?? 'uuid';
    return sql`${fragment(identifier(filter.name))} = ${typed(column, filter.value)}`;
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
  const cells = cellList(type, 'v', outerOrder);
  return {
    columns: hasKey
      ? sql`${rawColumnList(type)}, ${expression} as _sort_value, (${expression})::text as _sort_key`
      : rawColumnList(type),
    cells: hasKey
      ? sql`${cells}, json_agg(v._sort_key order by ${fragment(outerOrder)})::text as _sort_keys`
      : cells,
    where: conditions.length === 0 ? fragment('true') : sql.join(conditions, fragment(' and ')),
    order: hasKey ? sql`${expression} ${direction}, id ${direction}` : sql`id ${direction}`,
    outerOrder: fragment(outerOrder),
    // One more than the page tells whether there is a next one.
    limit: sql`${query.limit + 1}`,
  };
}

async function select(
  db: Database,
  type: ResourceType,
  { accountId }: Principal,
  { columns, cells, where, order, outerOrder, limit }: Part,
  parentId: string | undefined,
): Promise<CellsRow> {
  const table = tableOf(type);
  if (type.parent !== null) {
    const { rows } = await sql<CellsRow>`
      select ${cells} from (
        select ${columns} from ${table} where parent_id = ${parentId} and ${where}
        order by ${order} limit ${limit}
      ) as v`.execute(db);
    return rows[0] as CellsRow;
  }
  const { rows } = await sql<CellsRow>`
    select ${cells} from (
      select * from (
        (select ${columns} from ${table} where author = ${accountId} and ${where} order by ${order} limit ${limit})
        union all
        (select ${columns} from ${table}
          where ${readableByAll(type)} and author is distinct from ${accountId}::uuid and ${where}
          order by ${order} limit ${limit})
      ) as v
      order by ${outerOrder} limit ${limit}
    ) as v`.execute(db);
  return rows[0] as CellsRow;
}
