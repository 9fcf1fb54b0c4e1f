/**
 * Which types the value at a place of a JSON document can have, by its JSON Schema. Unions and references within the schema
 * (`#/$defs/…`) are followed. What the schema does not rule out counts as possible.
 */

import type { TSchema } from 'typebox';

export type JsonType = 'string' | 'number' | 'boolean' | 'null' | 'object' | 'array';

const allTypes: readonly JsonType[] = ['string', 'number', 'boolean', 'null', 'object', 'array'];
/** Maximum schemas that a path may lead to, through unions and references. */
const schemasMax = 1_000;

type Plain = Record<string, unknown>;

/**
 * The types that the value at a place can have; none if the schema has no such place.
 * @param steps the reference tokens of a JSON pointer
 */
export function typesAt(schema: TSchema, steps: readonly string[]): Set<JsonType> {
  const root = schema as unknown as Plain;
  let found = alternativesOf([root], root);
  for (const step of steps) {
    found = alternativesOf(
      found.flatMap((each) => childrenOf(each, step)),
      root,
    );
  }
  return new Set(found.flatMap((each) => typesOf(each, root)));
}

/** Digits are always an index: whether the value is an array is only known later. */
export const isIndex = (step: string): boolean => /^(?:0|[1-9]\d{0,8})$/.test(step);

/**
 * Schemas, with those that they are a union of or refer to. Each occurs once, so it ends also if a schema refers to itself.
 * @param root that references lead into
 */
function alternativesOf(schemas: readonly unknown[], root: Plain): Plain[] {
  const found = new Set<Plain>();
  const waiting = [...schemas].reverse();
  while (waiting.length > 0 && found.size < schemasMax) {
    const schema = waiting.pop();
    const plain = schema === true ? {} : schema;
    if (!isPlain(plain) || found.has(plain)) continue;
    found.add(plain);
    const parts = ['anyOf', 'oneOf', 'allOf'].flatMap((name) => (plain[name] as unknown[] | undefined) ?? []);
    waiting.push(...[...parts, referredBy(plain, root) ?? []].flat().reverse());
  }
  return [...found];
}

/** @returns undefined without a reference, and for one that leads out of the schema */
function referredBy({ $ref: reference }: Plain, root: Plain): Plain | undefined {
  if (typeof reference !== 'string') return undefined;
  // TypeBox refers to a definition by its id.
  const named = isPlain(root.$defs) && Object.hasOwn(root.$defs, reference) && root.$defs[reference];
  if (isPlain(named) && named.$id === reference) return named;
  return reference.startsWith('#') ? schemaAt(root, reference.slice(1)) : undefined;
}

/** @param fragment a JSON pointer, percent-encoded (RFC 6901 section 6) */
function schemaAt(root: Plain, fragment: string): Plain | undefined {
  let value: unknown = root;
  for (const step of fragment.split('/').slice(1)) {
    const name = decoded(step).replaceAll('~1', '/').replaceAll('~0', '~');
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return undefined;
    value = (value as Plain)[name];
  }
  return isPlain(value) && /^(?:$|\/)/.test(fragment) ? value : undefined;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function isPlain(value: unknown): value is Plain {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** The schemas of what a step leads to. Of a schema that says nothing, everything is a part. */
function childrenOf(schema: Plain, step: string): unknown[] {
  const keywords = ['type', 'properties', 'items', 'enum', 'const', 'anyOf', 'oneOf', 'allOf', '$ref', 'not'];
  if (!keywords.some((name) => name in schema)) return [{}];
  const { properties = {}, additionalProperties, patternProperties = {}, items } = schema;
  if (isIndex(step)) return Array.isArray(items) ? [items[Number(step)]] : [items];
  const children: unknown[] = [];
  if (Object.hasOwn(properties as object, step)) children.push((properties as Plain)[step]);
  else {
    // Any of the patterns may fit: patterns of operators are not run against texts of subscribers.
    children.push(...Object.values(patternProperties as Plain));
    if (typeof additionalProperties === 'object') children.push(additionalProperties);
  }
  return children;
}

function typesOf(schema: Plain, root: Plain): JsonType[] {
  const { type, enum: values, const: value, anyOf, oneOf, allOf } = schema;
  const given = [type ?? []].flat() as string[];
  if (given.length > 0) return given.map((name) => (name === 'integer' ? 'number' : name) as JsonType);
  const listed = value === undefined ? (values as unknown[] | undefined) : [value];
  if (listed !== undefined) {
    return listed.map((each) =>
      each === null ? 'null' : Array.isArray(each) ? 'array' : (typeof each as JsonType),
    );
  }
  // A union or a reference says nothing itself: what it leads to does.
  const leads = [anyOf, oneOf, allOf, referredBy(schema, root)];
  return leads.some((parts) => parts !== undefined) ? [] : [...allTypes];
}
