/**
 * Columns: which PostgreSQL type a field's schema asks for, and how its values go in and come out.
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

/** What this file reads of a JSON Schema. */
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

/** The column for a field, or undefined where there is none for such a schema. */
export function columnOf(schema: TSchema): Column | undefined {
  const parts = alternatives(schema as JsonSchema);
  const types = new Set<ColumnType | 'null' | undefined>(parts.map(typeOf));
  const nullable = types.delete('null');
  if (types.size !== 1) return undefined;
  const [type] = types as Set<ColumnType | undefined>;
  return type === undefined ? undefined : { type, nullable };
}

/** A union's members, an enumeration's values as constants, a list of types as one schema each. */
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

/** A field's value as PostgreSQL is given it. */
export function toColumn(type: ColumnType, value: unknown): unknown {
  if (value === null || value === undefined) return null;
  // The driver would make an array of PostgreSQL of an array.
  if (type === 'jsonb') return JSON.stringify(value);
  if (type === 'timestamptz') return new Date(value as string).toISOString();
  return value;
}

/**
 * Whether a text that has the form of a time is one that can be kept: in the years 1 to 9999 of UTC, and without the
 * leap second that clocks here do not have.
 */
export function isKeepableTime(text: string): boolean {
  const time = new Date(text);
  return !Number.isNaN(time.getTime()) && /^(?!0000)\d{4}-/.test(time.toISOString());
}

/**
 * A column as a statement gives it, under a name. Times come as text of UTC: a driver's dates cost more than all the
 * rest of a row, and no answer needs them.
 */
export function columnText(type: ColumnType, reference: string, name: string): string {
  return type === 'timestamptz' ? `(${reference} at time zone 'UTC')::text as ${name}` : reference;
}

/** From PostgreSQL's text of a time (`2026-01-02 03:04:05.6789`) the one that is answered: to the millisecond. */
export function toTime(text: string): string {
  // As most times are: with all three digits and no more.
  if (text.length === 23) return `${text.slice(0, 10)}T${text.slice(11)}Z`;
  return `${text.slice(0, 10)}T${text.slice(11, 19)}.${text.slice(20, 23).padEnd(3, '0')}Z`;
}

/** A column's value, as `columnText` gave it, as the API answers it. */
export function fromColumn(type: ColumnType, value: unknown): unknown {
  if (value === null) return null;
  if (type === 'timestamptz') return toTime(value as string);
  // The driver gives 64-bit integers as text. The schema's limits keep them exact.
  if (type === 'bigint') return Number(value);
  return value;
}
