/**
 * Adds the limits of every body (json.ts) to the request schemas of the reference. PostgreSQL stores no NUL characters, and
 * JavaScript represents integers exactly only up to 2^53. Lone surrogates are rejected too, as I-JSON (RFC 7493) demands.
 */

import type { TSchema } from 'typebox';

const withoutNul = '^[^\\u0000]*$';

/** Formats that exclude NUL. */
const plainFormats: ReadonlySet<unknown> = new Set(['uuid', 'date-time', 'uri']);

/** Schema members that hold values rather than schemas. */
const valueMembers: ReadonlySet<string> = new Set(['default', 'enum', 'const', 'example', 'examples']);

/** @returns the schema with these limits added wherever it has none */
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
