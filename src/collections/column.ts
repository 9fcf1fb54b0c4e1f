/**
 * Columns: the PostgreSQL type for a field's schema, and the conversion of its values.
 */

import type { TSchema } from 'typebox';

export type ColumnType =
  | 'text'
  | 'uuid'
  | 'timestamptz'
  | 'bigint'
  | 'double precision'
  | 'boolean'
  | 'jsonb';

/** The parts of a JSON Schema that this room reads. */
export interface JsonSchema {
  type?: string | string[];
  format?: string;
  enum?: unknown[];
  const?: unknown;
  anyOf?: JsonSchema[];
  default?: unknown;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
}

export interface Column {
  type: ColumnType;
  nullable: boolean;
}

/** Returns the column for a schema, or undefined if the schema is not supported. */
export function columnOf(schema: TSchema): Column | undefined {
  const parts = alternatives(schema as JsonSchema);
  const types = new Set<ColumnType | 'null' | undefined>(parts.map(typeOf));
  const nullable = types.delete('null');
  if (types.size !== 1) return undefined;
  const [type] = types as Set<ColumnType | undefined>;
  return type === undefined ? undefined : { type, nullable };
}

/** Expands unions, enumerations and type lists into one schema per alternative. */
function alternatives(schema: JsonSchema): JsonSchema[] {
  if (schema.anyOf !== undefined) return schema.anyOf.flatMap(alternatives);
  if (schema.enum !== undefined) return schema.enum.map((value) => ({ const: value }));
  if (Array.isArray(schema.type)) return schema.type.map((type) => ({ ...schema, type }));
  return [schema];
}

function typeOf(schema: JsonSchema): ColumnType | 'null' | undefined {
  if (schema.const !== undefined) return typeOfConstant(schema.const);
  switch (schema.type) {
    case 'null':
      return 'null';
    case 'string':
      if (schema.format === 'date-time') return 'timestamptz';
      return schema.format === 'uuid' ? 'uuid' : 'text';
    case 'integer':
      return 'bigint';
    case 'number':
      return 'double precision';
    case 'boolean':
      return 'boolean';
    case 'array':
    case 'object':
      return 'jsonb';
  }
  return undefined;
}

function typeOfConstant(value: unknown): ColumnType | 'null' | undefined {
  if (value === null) return 'null';
  if (typeof value === 'string') return 'text';
  if (typeof value === 'boolean') return 'boolean';
  if (typeof value === 'number') return Number.isInteger(value) ? 'bigint' : 'double precision';
  return undefined;
}

/** Converts a field's value to a statement parameter. */
export function toColumn(type: ColumnType, value: unknown): unknown {
  if (value === null || value === undefined) return null;
  // The driver would convert an array to a PostgreSQL array.
  if (type === 'jsonb') return JSON.stringify(value);
  if (type === 'timestamptz') return new Date(value as string).toISOString();
  return value;
}

/**
 * Whether a time in valid syntax can be stored: years 1 to 9999 in UTC, and no leap second.
 */
export function isStorableTime(text: string): boolean {
  const time = new Date(text);
  return !Number.isNaN(time.getTime()) && /^(?!0000)\d{4}-/.test(time.toISOString());
}

/**
 * Selects a column under a name. Times are selected as text in UTC: converting them to `Date` objects would cost more than
 * the rest of the row, and responses need text anyway.
 */
export function columnText(type: ColumnType, reference: string, name: string): string {
  return type === 'timestamptz' ? `(${reference} at time zone 'UTC')::text as ${name}` : reference;
}

/** Converts PostgreSQL's text of a time (`2026-01-02 03:04:05.6789`) to the API's form with milliseconds. */
export function toTime(text: string): string {
  // Most times have exactly three fraction digits.
  if (text.length === 23) return `${text.slice(0, 10)}T${text.slice(11)}Z`;
  return `${text.slice(0, 10)}T${text.slice(11, 19)}.${text.slice(20, 23).padEnd(3, '0')}Z`;
}

/** Converts a value selected with `columnText` to the API's form. */
export function fromColumn(type: ColumnType, value: unknown): unknown {
  if (value === null) return null;
  if (type === 'timestamptz') return toTime(value as string);
  // The driver returns 64-bit integers as text. The schema limits them to exact numbers.
  if (type === 'bigint') return Number(value);
  return value;
}
