/**
 * The schemas of the OpenAPI document. A named schema stands once under its name, and `$ref` points to it everywhere else.
 *
 * Schemas of request bodies also show the limits of every body (http/json.ts): PostgreSQL stores no NUL characters, and
 * JavaScript represents integers exactly only up to 2^53. Lone surrogates are rejected too, as I-JSON (RFC 7493) demands.
 */

import type { TSchema } from 'typebox';
import { schemaName } from '../../http/schema.ts';

type Json = Record<string, unknown>;

const withoutNul = '^[^\\u0000]*$';

/** Formats that exclude NUL. */
const plainFormats: ReadonlySet<unknown> = new Set(['uuid', 'date-time', 'uri', 'binary']);

/** Schema members that hold values rather than schemas. */
const valueMembers: ReadonlySet<string> = new Set(['default', 'enum', 'const', 'example', 'examples']);

export class DocumentSchemas {
  readonly #byName = new Map<string, unknown>();

  /** The schemas in alphabetical order. */
  get byName(): Json {
    return Object.fromEntries([...this.#byName].sort(([a], [b]) => (a < b ? -1 : 1)));
  }

  /** @returns the schema as it stands in the document. @param isRequest whether the limits of every body apply */
  show(schema: TSchema, isRequest = false): unknown {
    const name = schemaName(schema);
    if (name === undefined) return this.#showMembers(schema, isRequest);
    if (!this.#byName.has(name)) {
      // Before its members, which may contain the schema itself.
      this.#byName.set(name, {});
      this.#byName.set(name, this.#showMembers(schema, isRequest));
    }
    return { $ref: `#/components/schemas/${name}` };
  }

  #showMembers(schema: TSchema, isRequest: boolean): unknown {
    const shown = Object.entries(schema).map(([member, value]) => [
      member,
      valueMembers.has(member) ? value : this.#showValue(value, isRequest),
    ]);
    const result = Object.fromEntries(shown) as Json;
    return isRequest ? bounded(result) : result;
  }

  #showValue(value: unknown, isRequest: boolean): unknown {
    if (Array.isArray(value)) return value.map((item) => this.#showValue(item, isRequest));
    return typeof value === 'object' && value !== null ? this.show(value as TSchema, isRequest) : value;
  }
}

function bounded(schema: Json): Json {
  if ('enum' in schema || 'const' in schema) return schema;
  if (schema.type === 'integer') {
    return { minimum: Number.MIN_SAFE_INTEGER, maximum: Number.MAX_SAFE_INTEGER, ...schema };
  }
  if (schema.type !== 'string' || plainFormats.has(schema.format)) return schema;
  if (schema.pattern === undefined) return { ...schema, pattern: withoutNul };
  return { ...schema, allOf: [{ pattern: withoutNul }] };
}
