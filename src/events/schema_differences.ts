/**
 * What changed between two JSON Schemas of a body that can break a subscriber: a value that it relied on may be absent or
 * different. Added properties and narrower values break nobody, and neither do texts, formats and limits.
 */

interface Schema {
  readonly type?: string | readonly string[];
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly anyOf?: readonly Schema[];
  readonly oneOf?: readonly Schema[];
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
  readonly items?: Schema;
  readonly $ref?: string;
}

/** The part of a schema that describes values of one type. */
interface Variant {
  type: string;
  schema: Schema;
}

/** Stands for values of every type. */
const anything = 'anything';
const depthMax = 64;

/** @returns the differences in plain words, each with the place in the body; empty if no subscriber can break */
export function schemaDifferences(before: unknown, after: unknown, at = '', depth = 0): string[] {
  if (depth > depthMax || JSON.stringify(before) === JSON.stringify(after)) return [];
  const old = variantsOf(before as Schema);
  const place = at === '' ? 'the body' : at;
  return variantsOf(after as Schema).flatMap((variant) => {
    const sameType = old.filter(({ type }) => type === variant.type || type === anything);
    // Every integer is a number.
    if (sameType.length === 0 && variant.type === 'integer')
      sameType.push(...old.filter(({ type }) => type === 'number'));
    if (sameType.length === 0)
      return [`${place} was ${alternatives(old)} and may now be ${withArticle(variant.type)}`];
    if (sameType.some(({ type, schema }) => type === anything || isSame(schema, variant.schema))) return [];
    const found = sameType.map(({ schema }) => variantDifferences(schema, variant.schema, at, place, depth));
    // One of several forms is enough.
    return found.some(({ length }) => length === 0) ? [] : (found[0] as string[]);
  });
}

function isSame(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

function variantsOf(schema: Schema): Variant[] {
  const forms = schema.anyOf ?? schema.oneOf;
  if (forms !== undefined) return forms.flatMap(variantsOf);
  const values = 'const' in schema ? [schema.const] : schema.enum;
  const types = typeof schema.type === 'string' ? [schema.type] : (schema.type ?? values?.map(typeOf));
  if (types === undefined) {
    if (schema.properties !== undefined) return [{ type: 'object', schema }];
    return [{ type: schema.items === undefined ? anything : 'array', schema }];
  }
  return [...new Set(types)].map((type) => ({ type, schema }));
}

function typeOf(value: unknown): string {
  if (value === null) return 'null';
  if (Array.isArray(value)) return 'array';
  return Number.isInteger(value) ? 'integer' : typeof value;
}

function variantDifferences(
  before: Schema,
  after: Schema,
  at: string,
  place: string,
  depth: number,
): string[] {
  if (before.$ref !== after.$ref) return [`${place} refers to another schema`];
  return [
    ...valueDifferences(before, after, place),
    ...memberDifferences(before, after, at, depth),
    ...(before.items === undefined
      ? []
      : schemaDifferences(before.items, after.items ?? {}, `${at}/*`, depth + 1)),
  ];
}

function valueDifferences(before: Schema, after: Schema, place: string): string[] {
  const old = valuesOf(before);
  if (old === undefined) return [];
  const now = valuesOf(after);
  if (now === undefined) return [`${place} was one of ${old.join(', ')} and may now have other values`];
  const added = now.filter((value) => !old.includes(value));
  return added.length === 0 ? [] : [`${place} may now be ${added.join(' or ')}`];
}

/** The allowed values as JSON; undefined if the schema does not list them. */
function valuesOf(schema: Schema): string[] | undefined {
  if ('const' in schema) return [JSON.stringify(schema.const)];
  return schema.enum?.map((value) => JSON.stringify(value));
}

function memberDifferences(before: Schema, after: Schema, at: string, depth: number): string[] {
  return Object.entries(before.properties ?? {}).flatMap(([name, member]) => {
    const pointer = `${at}/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`;
    const now = after.properties;
    if (now === undefined || !Object.hasOwn(now, name)) return [`${pointer} was removed`];
    const mayNowMiss = before.required?.includes(name) && !after.required?.includes(name);
    return [
      ...(mayNowMiss ? [`${pointer} was always there and may now be missing`] : []),
      ...schemaDifferences(member, now[name], pointer, depth + 1),
    ];
  });
}

function alternatives(variants: readonly Variant[]): string {
  return [...new Set(variants.map(({ type }) => withArticle(type)))].join(' or ');
}

function withArticle(type: string): string {
  if (type === 'null' || type === anything) return type;
  return `${/^[aeio]/.test(type) ? 'an' : 'a'} ${type}`;
}
