/**
 * Tables: each collection has a real one with typed columns, derived from its declaration. What a table is to be
 * like: columns, keys and indexes. Names and constants come from the declaration alone, never from a request.
 */

import { createHash } from 'node:crypto';
import type { ColumnType } from './column.ts';
import { identifier, literal, readableText } from './literal.ts';
import { type Field, isChangeable, type ResourceType } from './resource_type.ts';

export interface TableColumn {
  name: string;
  /** As `format_type` prints it. */
  type: string;
  notNull: boolean;
  /** What rows that exist already get; undefined where there is nothing for them. */
  default: string | undefined;
}

export interface TableIndex {
  /** Follows from the definition: another definition has another name. */
  name: string;
  /** What comes after `create index <name> on <table>`. */
  definition: string;
}

/** All names of indexes made here begin so; others on the table are the operator's and are left alone. */
export const indexPrefix = 'nx_';

/** Characters at most of a text that has an index: its bytes must fit on a page. */
export const indexedCharactersMax = 500;

/** Columns of the type's table, in order. */
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

/** Constraints that come after the columns of a new table. */
export function constraintsOf(type: ResourceType): string[] {
  const constraints = ['primary key (id)', 'foreign key (author) references accounts on delete cascade'];
  if (type.parent !== null) {
    constraints.push(`foreign key (parent_id) references ${identifier(type.parent.table)} on delete cascade`);
  }
  return constraints;
}

/**
 * Indexes for every list that the declaration allows. Lists of a collection are read in two parts, one's own and
 * what others let one read; each has an index of its own for every order and filter.
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

function indexName(table: string, definition: string): string {
  const mark = createHash('sha256').update(`${table} ${definition}`).digest('hex').slice(0, 10);
  return `${indexPrefix}${table.slice(0, 45)}_${mark}`;
}

/** Below every value of its type: where a field that is null stands in an order. */
const least: Readonly<Record<ColumnType, string>> = {
  text: "''::text",
  uuid: "'00000000-0000-0000-0000-000000000000'::uuid",
  timestamptz: "'-infinity'::timestamptz",
  bigint: "'-9223372036854775808'::bigint",
  'double precision': "'-infinity'::double precision",
  boolean: 'false',
  jsonb: "'null'::jsonb",
};

/** What a list is ordered by for a sort's name: the column, nulls first. `created_at` is in the ids. */
export function orderExpression(type: ResourceType, name: string): string {
  if (name === 'created_at') return 'id';
  const field = type.fields.find((candidate) => candidate.name === name);
  const column = identifier(name);
  return field?.nullable ? `(coalesce(${column}, ${least[field.column]}))` : column;
}

/** The type of what `orderExpression` gives. */
export function orderType(type: ResourceType, name: string): ColumnType {
  if (name === 'created_at') return 'uuid';
  return type.fields.find((candidate) => candidate.name === name)?.column ?? 'timestamptz';
}
