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
import { typed } from './create.ts';
import { type Place, readCursor, writeCursor } from './cursor.ts';
import { fragment, identifier } from './literal.ts';
import type { ListQuery } from './query.ts';
import {
  columnList,
  findVisible,
  notFound,
  type Row,
  rawColumnList,
  readableByAll,
  tableOf,
} from './resource.ts';
import type { ResourceType } from './resource_type.ts';
import { orderExpression, orderType } from './table.ts';

export interface Page {
  rows: Row[];
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
  const rows = await select(db, type, principal, part, parentId).catch((error: unknown) => {
    // A cursor's key that the column's type refuses (SQLSTATE class 22) was not written here.
    if (/^22/.test(String((error as { code?: unknown }).code))) {
      throw new Problem(400, 'after is not of this list.', { code: 'invalid-cursor', cause: error });
    }
    throw error;
  });
  const page = rows.slice(0, query.limit);
  const last = page.at(-1);
  if (rows.length <= query.limit || last === undefined) return { rows: page, next: undefined };
  return { rows: page, next: writeCursor(query.order, { key: hasKey ? last._sort_key : null, id: last.id }) };
}

type KeyedRow = Row & { _sort_key: string };

interface Part {
  columns: RawBuilder<unknown>;
  /** What the rows found are answered as. */
  outerColumns: RawBuilder<unknown>;
  /** Filters and the place to begin after. */
  where: RawBuilder<unknown>;
  order: RawBuilder<unknown>;
  outerOrder: RawBuilder<unknown>;
  limit: RawBuilder<unknown>;
}

function partOf(type: ResourceType, query: ListQuery, name: string, after: Place | undefined): Part {
  const expression = fragment(orderExpression(type, name));
  const direction = fragment(query.order.startsWith('-') ? 'desc' : 'asc');
  const hasKey = name !== 'created_at';
  const conditions = query.filters.map((filter) => {
    const column = type.fields.find((field) => field.name === filter.name)?.column ?? 'uuid';
    return sql`${fragment(identifier(filter.name))} = ${typed(column, filter.value)}`;
  });
  if (after !== undefined) {
    const comparison = fragment(query.order.startsWith('-') ? '<' : '>');
    conditions.push(
      hasKey
        ? sql`(${expression}, id) ${comparison} (${after.key}::text::${fragment(orderType(type, name))}, ${after.id}::uuid)`
        : sql`id ${comparison} ${after.id}`,
    );
  }
  return {
    columns: hasKey
      ? sql`${rawColumnList(type)}, ${expression} as _sort_value, (${expression})::text as _sort_key`
      : rawColumnList(type),
    outerColumns: hasKey ? sql`${columnList(type, 'v')}, v._sort_key` : columnList(type, 'v'),
    where: conditions.length === 0 ? fragment('true') : sql.join(conditions, fragment(' and ')),
    order: hasKey ? sql`${expression} ${direction}, id ${direction}` : sql`id ${direction}`,
    outerOrder: hasKey ? sql`v._sort_value ${direction}, v.id ${direction}` : sql`v.id ${direction}`,
    // One more than the page tells whether there is a next one.
    limit: sql`${query.limit + 1}`,
  };
}

async function select(
  db: Database,
  type: ResourceType,
  { accountId }: Principal,
  { columns, outerColumns, where, order, outerOrder, limit }: Part,
  parentId: string | undefined,
): Promise<KeyedRow[]> {
  const table = tableOf(type);
  if (type.parent !== null) {
    const { rows } = await sql<KeyedRow>`
      select ${outerColumns} from (
        select ${columns} from ${table} where parent_id = ${parentId} and ${where}
        order by ${order} limit ${limit}
      ) as v
      order by ${outerOrder}`.execute(db);
    return rows;
  }
  const { rows } = await sql<KeyedRow>`
    select ${outerColumns} from (
      (select ${columns} from ${table} where author = ${accountId} and ${where} order by ${order} limit ${limit})
      union all
      (select ${columns} from ${table}
        where ${readableByAll(type)} and author is distinct from ${accountId}::uuid and ${where}
        order by ${order} limit ${limit})
    ) as v
    order by ${outerOrder} limit ${limit}`.execute(db);
  return rows;
}
