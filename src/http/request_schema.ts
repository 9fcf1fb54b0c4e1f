/**
 * Schemas of what a request brings, as the reference describes them: with the bounds that hold for every body
 * (json.ts) and that the schema of a field does not name. PostgreSQL keeps no NUL, and past 2^53 a number is not the
 * one that was written. Halves of surrogate pairs are refused, too: I-JSON (RFC 7493) has none.
 */

import type { TSchema } from 'typebox';

const withoutNul = '^[^\\u0000]*$';

/** Formats of texts in which no NUL can be. */
const plainFormats: ReadonlySet<unknown> = new Set(['uuid', 'date-time', 'uri']);

/** Members of a schema that hold values. */
const valueMembers: ReadonlySet<string> = new Set(['default', 'enum', 'const', 'example', 'examples']);

/** @returns the schema with these bounds added wherever it leaves them open */
export function requestSchema<S extends TSchema>(schema: S): S {
  return withBounds(schema) as S;
}

function withBounds(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withBounds);
  if (typeof value !== 'object' || value === null) return value;
  const members = Object.entries(value).map(([name, member]) => [
    name,
    valueMembers.has(name) ? member : withBounds(member),
  ]);
  return bounded(Object.fromEntries(members) as Record<string, unknown>);
}

function bounded(schema: Record<string, unknown>): Record<string, unknown> {
  if ('enum' in schema || 'const' in schema) return schema;
  if (schema.type === 'integer') {
    return { minimum: Number.MIN_SAFE_INTEGER, maximum: Number.MAX_SAFE_INTEGER, ...schema };
  }
  if (schema.type !== 'string' || plainFormats.has(schema.format)) return schema;
  if (schema.pattern === undefined) return { ...schema, pattern: withoutNul };
  return { ...schema, allOf: [{ pattern: withoutNul }] };
}
