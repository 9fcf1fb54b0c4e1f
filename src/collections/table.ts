/**
 * Derives the table of a collection from its declaration: typed columns, keys and indexes. Names and constants come only from
 * the declaration, never from a request.
 */

import { createHash } from 'node:crypto';
import type { ColumnType } from './column.ts';
import { identifier, literal, readableText } from './literal.ts';
import type { ListQuery } from './query.ts';
import { type Field, isChangeable, type ResourceType } from './resource_type.ts';

export interface TableColumn {
  name: string;
  /** In the form of `format_type`. */
  type: string;
  notNull: boolean;
  /** The value for existing rows; undefined if there is none. */
  default: string | undefined;
}

export interface TableIndex {
  /** Derived from the definition, so that a changed index gets a new name. */
  name: string;
  /** The text after `create index <name> on <table>`. */
  definition: string;
}

/** Prefix of index names created here. Other indexes belong to the operator and stay. */
export const indexPrefix = 'nx_';

/** Longest text with an index. An index entry must fit on a page. */
export const indexedCharactersMax = 500;

export function columnsOf(type: ResourceType): TableColumn[] {
  const standard: TableColumn[] = [
    { name: 'id', type: 'uuid', notNull: true, default: undefined },
    ...(type.parent === null ? [] : [{ name: 'parent_id', type: 'uuid', notNull: true, default: undefined }]),
    { name: 'author', type: 'uuid', notNull: true, default: undefined },
    { name: 'version', type: 'bigint', notNull: true, default: '1' },
    { name: 'created_at', type: 'timestamp with time zone', notNull: true, default: 'now()' },
    ...(isChangeable(type)
      ? [{ name: 'updated_at', type: 'timestamp with time zone', notNull: true, default: 'now()' }]
      : []),
  ];
  return [...standard, ...type.fields.map(columnOfField)];
}

function columnOfField(field: Field): TableColumn {
  return {
    name: field.name,
    type: field.column === 'timestamptz' ? 'timestamp with time zone' : field.column,
    notNull: !field.nullable,
    default: field.default === undefined ? undefined : literal(field.column, field.default),
  };
}

/** Returns the table constraints of a new table. */
export function constraintsOf(type: ResourceType): string[] {
  const constraints = ['primary key (id)', 'foreign key (author) references accounts on delete cascade'];
  if (type.parent !== null) {
    constraints.push(`foreign key (parent_id) references ${identifier(type.parent.table)} on delete cascade`);
  }
  return constraints;
}

/**
 * Returns an index for every list that the declaration allows. A list of a collection is read in two parts: the user's own
 * resources, and readable resources of others. Each part has an index for every order and filter.
 */
export function indexesOf(type: ResourceType): TableIndex[] {
  const orders = type.sorts
    .filter((name) => name !== 'created_at')
    .map((name) => orderExpression(type, name));
  const filters = type.filters.filter((name) => name !== 'author').map(identifier);
  const keys = [...orders, ...filters].map((key) => `${key}, id`);
  const owner = type.parent === null ? 'author' : 'parent_id';
  const definitions = ['id', ...keys].map((key) => `(${owner}, ${key})`);
  if (type.parent !== null) definitions.push('(author)');
  else if (type.readable !== 'owner') {
    const where = type.readable === 'all' ? '' : ` where ${readableText(type.readable)}`;
    definitions.push(...(where === '' ? keys : ['id', ...keys]).map((key) => `(${key})${where}`));
  }
  return [...new Set(definitions)].map((definition) => ({
    name: indexName(type.table, definition),
    definition,
  }));
}

/**
 * Whether an index has the resources of a list in its order, and no others between them. Otherwise the time for a page grows with what the owner has.
 * @param accountId whose list it is, which has its own resources too
 */
export function isIndexed(
  type: ResourceType,
  { order, filters }: Pick<ListQuery, 'order' | 'filters'>,
  accountId: string | null,
): boolean {
  const author = filters.find(({ name }) => name === 'author')?.value;
  const fields = filters.flatMap(({ name }) => (name === 'author' ? [] : [name]));
  // Authors in a sub-collection have no index in its order. Of others, only what is readable is shown.
  if (author !== undefined && type.parent !== null) return false;
  if (author !== undefined && author !== accountId && Array.isArray(type.readable)) {
    if (type.readable.some(({ field, values }) => values.length > 1 || !type.filters.includes(field.name)))
      return false;
    fields.push(...type.readable.map(({ field }) => field.name));
  }
  const isById = order === 'created_at' || order === '-created_at';
  return new Set(fields).size + (isById ? 0 : 1) <= 1;
}

function indexName(table: string, definition: string): string {
  const mark = createHash('sha256').update(`${table} ${definition}`).digest('hex').slice(0, 10);
  return `${indexPrefix}${table.slice(0, 45)}_${mark}`;
}

/** The smallest value of each type. Null fields sort as this value. */
const least: Readonly<Record<ColumnType, string>> = {
  text: "''::text",
  uuid: "'00000000-0000-0000-0000-000000000000'::uuid",
  timestamptz: "'-infinity'::timestamptz",
  bigint: "'-9223372036854775808'::bigint",
  'double precision': "'-infinity'::double precision",
  boolean: 'false',
  jsonb: "'null'::jsonb",
};

/** Returns the SQL expression for a sort: the column, nulls first. Ids contain the creation time, so `created_at` is `id`. */
export function orderExpression(type: ResourceType, name: string): string {
  if (name === 'created_at') return 'id';
  const field = type.fields.find((candidate) => candidate.name === name);
  const column = identifier(name);
  return field?.nullable ? `(coalesce(${column}, ${least[field.column]}))` : column;
}

/** The type of `orderExpression`. */
export function orderType(type: ResourceType, name: string): ColumnType {
  if (name === 'created_at') return 'uuid';
  return type.fields.find((candidate) => candidate.name === name)?.column ?? 'timestamptz';
}
