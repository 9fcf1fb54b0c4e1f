/**
 * Cells: values of resources as the JSON text that an answer shows, column by column. A page comes from PostgreSQL as
 * one row with an array of JSON for each column: of 50 rows of 9 fields the driver would make 450 strings, one by one,
 * which took longer than all the rest of reading them. An array is cut into its values as they stand in it: PostgreSQL
 * escapes a text as `JSON.stringify` does, so most of them go into the answer untouched.
 */

import { type RawBuilder, sql } from 'kysely';
import { type ColumnType, toTime } from './column.ts';
import { identifier } from './literal.ts';
import { type NamedColumn, type Row, shownColumns } from './resource.ts';
import type { ResourceType } from './resource_type.ts';

export interface Cells {
  /** As they are, in the order of the page. */
  ids: readonly string[];
  /** Of a sub-collection: of the resources that each belongs to. */
  parentIds: readonly string[];
  /** By column, in the same order. */
  columns: ReadonlyMap<string, readonly string[]>;
}

/** What `cellList` selects, from a statement of one row: by column the array, or null where the page is empty. */
export type CellsRow = Readonly<Record<string, string | null>>;

/**
 * The aggregates that make a page's cells, for `select`.
 * @param alias of what holds the rows of the page
 * @param order the page's order, as `order by` takes it: each aggregate is told, so that no plan can change it
 */
export function cellList(type: ResourceType, alias: string, order: string): RawBuilder<unknown> {
  const key = `${alias} ${order}`;
  const known = cellLists.get(type) ?? new Map<string, RawBuilder<unknown>>();
  cellLists.set(type, known);
  const made =
    known.get(key) ??
    sql.raw(
      shownColumns(type)
        .map((column) => `${aggregate(column, alias, order)} as ${identifier(column.name)}`)
        .join(', '),
    );
  known.set(key, made);
  return made;
}

const cellLists = new WeakMap<ResourceType, Map<string, RawBuilder<unknown>>>();

/** Ids that are never null, and need no escape, are only joined: that costs PostgreSQL half. */
function aggregate({ name, column, isId }: NamedColumn, alias: string, order: string): string {
  const reference = `${alias}.${identifier(name)}`;
  if (isId) return `string_agg(${reference}::text, ',' order by ${order})`;
  const value = column === 'timestamptz' ? `${reference} at time zone 'UTC'` : reference;
  return `json_agg(${value} order by ${order})::text`;
}

/** Reads what `cellList` selected. */
export function readCells(type: ResourceType, row: CellsRow): Cells {
  const columns = new Map<string, readonly string[]>();
  for (const { name, column, isId } of shownColumns(type)) {
    const text = row[name] ?? null;
    if (isId) columns.set(name, split(text).map(quoted));
    else columns.set(name, text === null ? [] : readers[column](text));
  }
  return { ids: split(row.id), parentIds: split(row.parent_id), columns };
}

/** The cells of one row, as the statements of single resources give it. */
export function cellsOf(type: ResourceType, row: Row): Cells {
  const columns = new Map<string, readonly string[]>();
  for (const { name, column } of shownColumns(type)) {
    const value = row[name];
    columns.set(name, [value === null ? 'null' : writers[column](value)]);
  }
  return { ids: [row.id], parentIds: row.parent_id === undefined ? [] : [row.parent_id], columns };
}

function split(text: string | null | undefined): string[] {
  return text == null ? [] : text.split(',');
}

const quoted = (text: string) => `"${text}"`;

/** What the cells of an array are. */
const readers: Readonly<Record<ColumnType, (text: string) => string[]>> = {
  text: cut,
  uuid: cut,
  bigint: cut,
  boolean: cut,
  timestamptz: (text) => cut(text).map(timeCell),
  // PostgreSQL writes 1e-07 and { "a": 1 } where JavaScript writes 1e-7 and {"a":1}.
  'double precision': rewritten,
  jsonb: rewritten,
};

function rewritten(text: string): string[] {
  return (JSON.parse(text) as unknown[]).map((value) => JSON.stringify(value));
}

/** From `"2026-01-02T03:04:05.6789"` of UTC the time that is answered: to the millisecond. */
function timeCell(piece: string): string {
  // As most times are: with all three digits and no more.
  if (piece.length === 25) return `${piece.slice(0, 24)}Z"`;
  return piece === 'null' ? piece : `"${toTime(piece.slice(1, -1))}"`;
}

/** What `JSON.stringify` makes of what `fromColumn` gives, for values that are not null. */
const writers: Readonly<Record<ColumnType, (value: unknown) => string>> = {
  text: JSON.stringify,
  // Nothing in these needs an escape.
  uuid: (value) => `"${value}"`,
  timestamptz: (value) => `"${toTime(value as string)}"`,
  bigint: (value) => String(Number(value)),
  'double precision': JSON.stringify,
  boolean: String,
  jsonb: JSON.stringify,
};

const quote = 34;
const backslash = 92;

/** The values of a JSON array of scalars as `json_agg` writes it: `["a", null, "b"]`, and never one without any. */
export function cut(text: string): string[] {
  const pieces: string[] = [];
  for (let at = 1; at < text.length; ) {
    const end = text.charCodeAt(at) === quote ? endOfString(text, at) : endOfWord(text, at);
    pieces.push(text.slice(at, end));
    at = end + 2;
  }
  return pieces;
}

/** Most strings have no escape before their end, and the first quote is it. */
function endOfString(text: string, start: number): number {
  let end = text.indexOf('"', start + 1);
  if (text.charCodeAt(end - 1) !== backslash) return end + 1;
  for (end = start + 1; text.charCodeAt(end) !== quote; end++) {
    if (text.charCodeAt(end) === backslash) end++;
  }
  return end + 1;
}

function endOfWord(text: string, start: number): number {
  const comma = text.indexOf(',', start);
  return comma < 0 ? text.length - 1 : comma;
}
