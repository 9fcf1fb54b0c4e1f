/**
 * Reads a page as columns of JSON text, without parsing it.
 *
 * A cell is one value of one resource, as the JSON text of the response. PostgreSQL returns a page as a single row with one
 * JSON array per column (`json_agg`), and this file splits each array into its cells. PostgreSQL escapes text as
 * `JSON.stringify` does, so most cells go into the response unchanged.
 *
 * Why not rows, objects and `JSON.stringify`: for a page of 50 resources with 9 fields the driver would create 450 strings
 * one by one. docs/decisions/libraries.md has the cost of the alternatives.
 */

import { type RawBuilder, sql } from 'kysely';
import { type ColumnType, toTime } from './column.ts';
import { identifier } from './literal.ts';
import { type NamedColumn, type Row, shownColumns } from './resource.ts';
import type { ResourceType } from './resource_type.ts';

export interface Cells {
  /** Ids without quotes, in the order of the page. */
  ids: readonly string[];
  /** For a sub-collection: the parent of each resource. */
  parentIds: readonly string[];
  /** Cells by column that was read, in the order of the page. */
  columns: ReadonlyMap<string, readonly string[]>;
}

/** The row that `cellList` selects: one array per column, or null if the page is empty. */
export type CellsRow = Readonly<Record<string, string | null>>;

/**
 * Returns the aggregates of a page for `select`.
 * @param alias the alias of the subquery with the rows of the page
 * @param order the `order by` list of the page. Each aggregate repeats it, because the order of its input is not guaranteed.
 */
export function cellList(columns: readonly NamedColumn[], alias: string, order: string): RawBuilder<unknown> {
  const key = `${alias} ${order}`;
  const known = cellLists.get(columns) ?? new Map<string, RawBuilder<unknown>>();
  cellLists.set(columns, known);
  const list =
    known.get(key) ??
    sql.raw(
      columns.map((column) => `${aggregate(column, alias, order)} as ${identifier(column.name)}`).join(', '),
    );
  known.set(key, list);
  return list;
}

const cellLists = new WeakMap<readonly NamedColumn[], Map<string, RawBuilder<unknown>>>();

/** Ids are never null and need no escaping. Joining them costs PostgreSQL half as much as `json_agg`. */
function aggregate({ name, column, isId }: NamedColumn, alias: string, order: string): string {
  const reference = `${alias}.${identifier(name)}`;
  if (isId) return `string_agg(${reference}::text, ',' order by ${order})`;
  const value = column === 'timestamptz' ? `${reference} at time zone 'UTC'` : reference;
  return `json_agg(${value} order by ${order})::text`;
}

/** Splits the arrays that `cellList` selected. */
export function readCells(columns: readonly NamedColumn[], row: CellsRow): Cells {
  const cells = new Map<string, readonly string[]>();
  for (const { name, column, isId } of columns) {
    const text = row[name] ?? null;
    if (isId) cells.set(name, split(text).map(quoted));
    else cells.set(name, text === null ? [] : readers[column](text));
  }
  return { ids: split(row.id), parentIds: split(row.parent_id), columns: cells };
}

/** Makes the cells of a single row, as read with `columnList`. */
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

/** How to split an array of each type into cells. */
const readers: Readonly<Record<ColumnType, (text: string) => string[]>> = {
  text: splitJsonArray,
  uuid: splitJsonArray,
  bigint: splitJsonArray,
  boolean: splitJsonArray,
  timestamptz: (text) => splitJsonArray(text).map(timeCell),
  // PostgreSQL writes 1e-07 and { "a": 1 } where JavaScript writes 1e-7 and {"a":1}.
  'double precision': rewritten,
  jsonb: rewritten,
};

function rewritten(text: string): string[] {
  return (JSON.parse(text) as unknown[]).map((value) => JSON.stringify(value));
}

/** Converts `"2026-01-02T03:04:05.6789"` in UTC to the API's form with milliseconds. */
function timeCell(piece: string): string {
  // Most times have exactly three fraction digits.
  if (piece.length === 25) return `${piece.slice(0, 24)}Z"`;
  return piece === 'null' ? piece : `"${toTime(piece.slice(1, -1))}"`;
}

/** How to write a value that is not null as `JSON.stringify(fromColumn(value))` would. */
const writers: Readonly<Record<ColumnType, (value: unknown) => string>> = {
  text: JSON.stringify,
  // UUIDs and times need no escaping.
  uuid: (value) => `"${value}"`,
  timestamptz: (value) => `"${toTime(value as string)}"`,
  bigint: (value) => String(Number(value)),
  'double precision': JSON.stringify,
  boolean: String,
  jsonb: JSON.stringify,
};

const quote = 34;
const backslash = 92;

/** Splits a non-empty JSON array of scalars, in the form that `json_agg` writes: `["a", null, "b"]`. */
export function splitJsonArray(text: string): string[] {
  const pieces: string[] = [];
  for (let at = 1; at < text.length; ) {
    const end = text.charCodeAt(at) === quote ? endOfString(text, at) : endOfWord(text, at);
    pieces.push(text.slice(at, end));
    at = end + 2;
  }
  return pieces;
}

/** In most strings the first quote ends the string, because no backslash precedes it. */
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
