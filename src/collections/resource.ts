/**
 * A resource: its row, its members, and who may read it.
 */

import { type RawBuilder, sql } from 'kysely';
import { isId } from '../crypto/ids.ts';
import type { Database, Transaction } from '../database/database.ts';
import type { Principal } from '../grants/principal.ts';
import { Problem } from '../http/problem.ts';
import { type ColumnType, columnText, fromColumn, toTime } from './column.ts';
import { identifier, readableText } from './literal.ts';
import { type Conditions, isChangeable, type ResourceType } from './resource_type.ts';

/** A row of a collection's table, as `columnList` selects it. `fromColumn` converts its values. */
export interface Row {
  id: string;
  author: string;
  version: string;
  created_at: string;
  updated_at?: string;
  /** For a sub-collection: the id of the parent. */
  parent_id?: string;
  [field: string]: unknown;
}

/** A row with its owner, which for a sub-collection is the parent's owner. */
export type OwnedRow = Row & { _owner: string };

/**
 * The columns of a type's table, for `select` and `returning`. Times are selected as text under their column names. An
 * `order by` in the same `select` would therefore sort by text; put it into a subquery with `rawColumnList`.
 */
export function columnList(type: ResourceType, alias = ''): RawBuilder<unknown> {
  return cached(columnLists, type, alias, () => {
    const prefix = alias === '' ? '' : `${alias}.`;
    return sql.raw(
      columnsOf(type)
        .map(({ name, column }) => columnText(column, prefix + identifier(name), identifier(name)))
        .join(', '),
    );
  });
}

/** Columns of a page without conversion, for subqueries. */
export function rawColumnList(columns: readonly NamedColumn[]): RawBuilder<unknown> {
  return cached(rawColumnLists, columns, '', () =>
    sql.raw(columns.map(({ name }) => identifier(name)).join(', ')),
  );
}

/** The condition under which users can read a resource of another user. */
export function readableByAll(type: ResourceType, alias = ''): RawBuilder<unknown> {
  return cached(readables, type, alias, () => sql.raw(`(${readableText(type.readable, alias)})`));
}

export function tableOf(type: ResourceType): RawBuilder<unknown> {
  return cached(tables, type, '', () => sql.raw(identifier(type.table)));
}

type Cache = WeakMap<object, Map<string, RawBuilder<unknown>>>;
const columnLists: Cache = new WeakMap();
const rawColumnLists: Cache = new WeakMap();
const readables: Cache = new WeakMap();
const tables: Cache = new WeakMap();
const sizes: Cache = new WeakMap();
const jsonSizes: Cache = new WeakMap();

/** Caches parts of statements of a type or of a list of columns, which never change. */
function cached(cache: Cache, of: object, key: string, make: () => RawBuilder<unknown>) {
  const known = cache.get(of) ?? new Map<string, RawBuilder<unknown>>();
  cache.set(of, known);
  const part = known.get(key) ?? make();
  known.set(key, part);
  return part;
}

/** A column, and whether it is one of the standard ids. */
export interface NamedColumn {
  name: string;
  column: ColumnType;
  isId: boolean;
}

/** The columns that appear in responses. */
export function shownColumns(type: ResourceType): readonly NamedColumn[] {
  const known = shown.get(type);
  if (known !== undefined) return known;
  const id = (name: string): NamedColumn => ({ name, column: 'uuid', isId: true });
  const time = (name: string): NamedColumn => ({ name, column: 'timestamptz', isId: false });
  const columns = [
    id('id'),
    ...(type.parent === null ? [] : [id('parent_id')]),
    id('author'),
    time('created_at'),
    ...(isChangeable(type) ? [time('updated_at')] : []),
    ...type.fields.map(({ name, column }) => ({ name, column, isId: false })),
  ];
  shown.set(type, columns);
  return columns;
}

/**
 * The columns that a list reads: ids, the members to show, and what the guards of actions compare for their links. What clients leave out may be
 * large.
 * @param fields the members to show beside `id` and `_links`; undefined for all
 */
export function columnsToRead(
  type: ResourceType,
  fields: ReadonlySet<string> | undefined,
): readonly NamedColumn[] {
  if (fields === undefined) return shownColumns(type);
  const guarded = new Set(type.actions.flatMap(({ guard }) => guard.map(({ field }) => field.name)));
  return shownColumns(type).filter(({ name, isId }) => isId || fields.has(name) || guarded.has(name));
}

/** The bytes of a resource's texts and documents in a subquery `v`, which PostgreSQL knows without reading them. Other values are short. */
export function bytesOf(columns: readonly NamedColumn[]): RawBuilder<unknown> {
  return cached(sizes, columns, '', () => {
    const lengths = columns
      .filter(({ column }) => column === 'text' || column === 'jsonb')
      .map(({ name }) => `coalesce(octet_length(v.${identifier(name)}::text), 0)`);
    return sql.raw(['0', ...lengths].join(' + '));
  });
}

/** Bytes of a text from which on it matters what its characters need as JSON. */
const longTextMin = 2_048;

/**
 * About the bytes of the same as JSON, in which a control character has six. It is asked only whether there is one: to write a text of nothing else takes PostgreSQL
 * sixty times as long as another one. Reads the texts.
 */
export function jsonBytesOf(columns: readonly NamedColumn[]): RawBuilder<unknown> {
  return cached(jsonSizes, columns, '', () => {
    const lengths = columns
      .filter(({ column }) => column === 'text' || column === 'jsonb')
      .map(({ name, column }) => {
        const length = `octet_length(v.${identifier(name)}::text)`;
        if (column === 'jsonb') return `coalesce(${length}, 0)`;
        const isLong = `${length} > ${longTextMin} and v.${identifier(name)} ~ '[\\u0001-\\u0008\\u000b\\u000c\\u000e-\\u001f]'`;
        return `coalesce(case when ${isLong} then 6 * ${length} else ${length} end, 0)`;
      });
    return sql.raw(['0', ...lengths].join(' + '));
  });
}

const shown = new WeakMap<ResourceType, readonly NamedColumn[]>();

function columnsOf(type: ResourceType): { name: string; column: ColumnType }[] {
  return [...shownColumns(type), { name: 'version', column: 'bigint' }];
}

/**
 * Finds a resource that the principal may read. Returns undefined otherwise, whether it exists or not.
 * @param parentId the parent, for a sub-collection
 */
export async function findVisible(
  db: Database | Transaction,
  type: ResourceType,
  principal: Principal,
  id: string,
  parentId?: string,
): Promise<OwnedRow | undefined> {
  if (!isId(id) || (parentId !== undefined && !isId(parentId))) return undefined;
  const { accountId } = principal;
  if (type.parent === null) {
    const { rows } = await sql<OwnedRow>`
      select ${columnList(type)}, author as _owner from ${tableOf(type)}
      where id = ${id} and (author = ${accountId} or ${readableByAll(type)})`.execute(db);
    return rows[0];
  }
  const { rows } = await sql<OwnedRow>`
    select ${columnList(type, 'c')}, p.author as _owner
      from ${tableOf(type)} c join ${tableOf(type.parent)} p on p.id = c.parent_id
     where c.id = ${id} and p.id = ${parentId}
       and (p.author = ${accountId} or ${readableByAll(type.parent, 'p')})`.execute(db);
  return rows[0];
}

/** A resource that the principal may not read is reported as absent. */
export function notFound(type: ResourceType): Problem {
  return new Problem(404, `No such ${type.item}.`, { code: 'not-found' });
}

/** The members of a resource without links, as in event bodies. */
export function toMembers(type: ResourceType, row: Row): Record<string, unknown> {
  const members: Record<string, unknown> = { id: row.id };
  for (const field of type.fields) members[field.name] = fromColumn(field.column, row[field.name]);
  members.author = row.author;
  members.created_at = toTime(row.created_at);
  if (row.updated_at !== undefined) members.updated_at = toTime(row.updated_at);
  return members;
}

export function matches(conditions: Conditions, row: Row): boolean {
  return conditions.every(({ field, values }) => values.includes(fromColumn(field.column, row[field.name])));
}

/** Time of the last change. */
export function modifiedAt(row: Row): Date {
  return new Date(toTime(row.updated_at ?? row.created_at));
}
