/** A value that a schema allows, shown where the document has no example. */

import { type ApiDocument, resolve, type Schema } from './document.ts';

/** Maximum nesting: schemas can be recursive. */
const depthMax = 6;

const byFormat: Readonly<Record<string, string>> = {
  uuid: '01981f6e-7c5a-7d3e-9f21-3b8a5d0c6e11',
  'date-time': '2026-01-02T03:04:05.678Z',
  date: '2026-01-02',
  uri: 'https://app.example/hooks',
  'uri-reference': '/',
  email: 'ann@example.com',
};

export function sampleOf(document: ApiDocument, given: Schema, depth = 0): unknown {
  const { schema } = resolve(document, given);
  if (schema.examples?.[0] !== undefined) return schema.examples[0];
  if (schema.const !== undefined) return schema.const;
  if (schema.enum !== undefined) return schema.enum[0];
  if (schema.default !== undefined) return schema.default;
  const alternatives = schema.anyOf ?? schema.oneOf;
  if (alternatives?.some(({ type }) => type === 'null')) return null;
  const choice = alternatives?.[0] ?? schema.allOf?.[0];
  if (choice !== undefined) return sampleOf(document, choice, depth + 1);
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  if (type === 'object' || schema.properties !== undefined) return sampleObject(document, schema, depth);
  if (type === 'array') return depth >= depthMax ? [] : [sampleOf(document, schema.items ?? {}, depth + 1)];
  if (type === 'integer' || type === 'number') return schema.minimum ?? 1;
  if (type === 'boolean') return false;
  if (type === 'null') return null;
  return byFormat[schema.format ?? ''] ?? 'text';
}

function sampleObject(document: ApiDocument, schema: Schema, depth: number): Record<string, unknown> {
  if (depth >= depthMax) return {};
  const entries = Object.entries(schema.properties ?? {}).filter(
    ([name]) => schema.required?.includes(name) ?? true,
  );
  return Object.fromEntries(entries.map(([name, value]) => [name, sampleOf(document, value, depth + 1)]));
}
