/**
 * SQL text from declarations: names and constants that the operator wrote. Values of requests never become SQL text; they are
 * parameters.
 */

import { type RawBuilder, sql } from 'kysely';
import type { ColumnType } from './column.ts';
import type { Conditions, Field } from './resource_type.ts';

/** Writes a constant of a declaration, with its type. */
export function literal(type: ColumnType, value: unknown): string {
  if (value === null) return `null::${type}`;
  const text = type === 'jsonb' ? JSON.stringify(value) : String(value);
  // With standard_conforming_strings (the default since PostgreSQL 9.1) only the quote needs escaping.
  return `'${text.replaceAll("'", "''")}'::${type}`;
}

/** Quotes the name of a table or column. */
export function identifier(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

/**
 * Writes conditions as text, including constants: PostgreSQL uses a partial index only if the statement repeats its
 * condition literally.
 * @param alias the table's alias in the statement
 */
function conditionText(conditions: Conditions, alias = ''): string {
  const parts = conditions.map(({ field, values }) => {
    const column = `${alias === '' ? '' : `${alias}.`}${identifier(field.name)}`;
    const constants = values.filter((value) => value !== null);
    const choices =
      constants.length === 0 ? [] : [`${column} in (${constants.map(constantOf(field)).join(', ')})`];
    if (values.includes(null)) choices.push(`${column} is null`);
    return `(${choices.join(' or ')})`;
  });
  return parts.length === 0 ? 'true' : parts.join(' and ');
}

function constantOf(field: Field): (value: unknown) => string {
  return (value) => literal(field.column, value);
}

/** Writes the condition under which users can read resources of others. */
export function readableText(readable: 'owner' | 'all' | Conditions, alias = ''): string {
  if (readable === 'owner') return 'false';
  return readable === 'all' ? 'true' : conditionText(readable, alias);
}

/** Makes text from this file part of a statement. */
export function fragment(text: string): RawBuilder<unknown> {
  return sql.raw(text);
}
