/**
 * SQL made from declarations: names and constants that an operator wrote. What a request brings is never part of a
 * statement's text; it goes in as a parameter.
 */

import { type RawBuilder, sql } from 'kysely';
import type { ColumnType } from './column.ts';
import type { Conditions, Field } from './resource_type.ts';

/** A constant of a declaration, with its type. */
export function literal(type: ColumnType, value: unknown): string {
  if (value === null) return `null::${type}`;
  const text = type === 'jsonb' ? JSON.stringify(value) : String(value);
  // With standard_conforming_strings (the default since 9.1) a quote is the only character with a meaning.
  return `'${text.replaceAll("'", "''")}'::${type}`;
}

/** A name of a table or column. */
export function identifier(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}

/**
 * Conditions as text, constants included: a partial index serves a statement only where both say the same.
 * @param alias the table's alias in the statement
 */
export function conditionText(conditions: Conditions, alias = ''): string {
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

/** Whose resources one may read beside one's own, as a condition. */
export function readableText(readable: 'owner' | 'all' | Conditions, alias = ''): string {
  if (readable === 'owner') return 'false';
  return readable === 'all' ? 'true' : conditionText(readable, alias);
}

/** Text of this file as a part of a statement. */
export function fragment(text: string): RawBuilder<unknown> {
  return sql.raw(text);
}
