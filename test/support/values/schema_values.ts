/** Values generated from a JSON Schema for fuzzing: valid ones and nearly valid ones. */

import fc from 'fast-check';

// biome-ignore lint/suspicious/noExplicitAny: a schema is whatever a document holds
export type Schema = Record<string, any>;

/** Generates valid values. @param resolve follows a `$ref` */
export function fitting(schema: Schema, resolve: (reference: string) => Schema): fc.Arbitrary<unknown> {
  if (schema.$ref !== undefined) return fitting(resolve(schema.$ref), resolve);
  if (schema.const !== undefined) return fc.constant(schema.const);
  if (schema.enum !== undefined) return fc.constantFrom(...schema.enum);
  if (schema.anyOf !== undefined)
    return fc.oneof(...schema.anyOf.map((each: Schema) => fitting(each, resolve)));
  switch (schema.type) {
    case 'null':
      return fc.constant(null);
    case 'boolean':
      return fc.boolean();
    case 'integer':
      return fc.integer({ min: schema.minimum ?? -1_000, max: schema.maximum ?? 1_000 });
    case 'number':
      return fc.double({ min: schema.minimum ?? -1e6, max: schema.maximum ?? 1e6, noNaN: true });
    case 'array':
      return fc.array(fitting(schema.items ?? {}, resolve), { maxLength: Math.min(schema.maxItems ?? 5, 5) });
    case 'object': {
      const required: string[] = schema.required ?? [];
      const members = Object.entries<Schema>(schema.properties ?? {}).map(([name, each]) => [
        name,
        fitting(each, resolve),
      ]);
      return fc.record(Object.fromEntries(members) as Record<string, fc.Arbitrary<unknown>>, {
        requiredKeys: required,
      });
    }
    case 'string':
      return text(schema);
  }
  return fc.jsonValue();
}

function text(schema: Schema): fc.Arbitrary<string> {
  if (schema.format === 'uuid') return fc.uuid();
  if (schema.format === 'date-time') {
    return fc
      .date({ noInvalidDate: true, min: new Date(0), max: new Date('9999-01-01') })
      .map((date) => date.toISOString());
  }
  // Only loopback URLs, because the server sends real requests to subscriptions.
  if (schema.format === 'uri') {
    return fc.constantFrom(
      'http://127.0.0.1:4799/hook',
      'https://localhost:9/',
      'https://10.0.0.1/',
      'ftp://localhost/',
      'x',
    );
  }
  if (schema.pattern !== undefined) return fc.stringMatching(new RegExp(schema.pattern));
  const maxLength = Math.min(schema.maxLength ?? 300, 300);
  return fc.string({ unit: 'grapheme', minLength: schema.minLength ?? 0, maxLength });
}

/** Text that often breaks programs. */
const awkward = fc.constantFrom(
  '\0',
  '\ud800',
  "' or 1=1 --",
  '%00',
  '../../..',
  '\r\nX-Evil: 1',
  '😀',
  'null',
  '9'.repeat(400),
  '__proto__',
  '{}',
  '',
);

/** Generates any value; most are nearly valid. */
export function anything(schema: Schema, resolve: (reference: string) => Schema): fc.Arbitrary<unknown> {
  const fits = fitting(schema, resolve);
  return fc.oneof(
    { weight: 4, arbitrary: fits },
    {
      weight: 2,
      arbitrary: fc
        .tuple(fits, fc.string(), fc.jsonValue())
        .map(([value, name, other]) => spoil(value, name, other)),
    },
    { weight: 1, arbitrary: fc.tuple(fits, awkward).map(([value, odd]) => spoil(value, undefined, odd)) },
    { weight: 1, arbitrary: fc.jsonValue() },
    { weight: 1, arbitrary: awkward },
  );
}

/** Changes one member of an object, or replaces any other value. */
function spoil(value: unknown, name: string | undefined, other: unknown): unknown {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return other;
  const names = Object.keys(value);
  return { ...value, [name ?? names[0] ?? 'x']: other };
}
