/** JSON values of a given size that are slow to check where a check takes more than one look at each part, and bodies with one of them. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
type Path = readonly (string | number)[];

const many = (bytes: number, each: number, value: (index: number) => Json): Json[] =>
  Array.from({ length: Math.floor(bytes / each) }, (_none, index) => value(index));
const named = (bytes: number, each: number, value: Json): Json =>
  Object.fromEntries(many(bytes, each, (index) => `k${index.toString(36)}`).map((name) => [name, value]));
const nested = (open: string, close: string, depth: number): Json =>
  JSON.parse(`${open.repeat(depth)}1${close.repeat(depth)}`);

/** Each makes a value of about so many bytes. The first ones are those for which a check has taken too long. */
export const expensiveValues: Readonly<Record<string, (bytes: number, expected: Json) => Json>> = {
  'empty objects': (bytes) => many(bytes, 3, () => ({})),
  nulls: (bytes) => many(bytes, 5, () => null),
  numbers: (bytes) => many(bytes, 2, () => 1),
  'unknown members': (bytes) => named(bytes, 12, null),
  'unknown objects': (bytes) => named(bytes, 10, {}),
  'unknown lists': (bytes) => named(bytes, 14, ['a', 'b']),
  lists: (bytes) => many(bytes, 5, () => [[]]),
  'different texts': (bytes) => many(bytes, 9, (index) => index.toString(36).padStart(6, 'a')),
  'different URLs': (bytes) => many(bytes, 27, (index) => `https://${index.toString(36)}.example.com/`),
  'copies of the item': (bytes, expected) => {
    const item = (Array.isArray(expected) ? expected[0] : expected) ?? null;
    return many(bytes, JSON.stringify(item).length + 1, () => item);
  },
  'deep lists': () => nested('[', ']', 1_000),
  'deep objects': () => nested('{"a":', '}', 1_000),
  'a letter': (bytes) => 'a'.repeat(bytes),
  spaces: (bytes) => `a${' '.repeat(bytes)}b`,
  'a deep URL': (bytes) => `https://a.example/${'/'.repeat(bytes)}`,
  'a host of Chinese letters': (bytes) =>
    `https://${String.fromCodePoint(...many(bytes, 3, (index) => 0x4e00 + (index % 20_000)).map(Number))}/`,
  'a long host': (bytes) => `https://${'a.'.repeat(bytes / 2)}com/`,
  'a long query': (bytes) => `https://a.example/?${'a=b&'.repeat(bytes / 4)}`,
  'mail addresses': (bytes) => 'a@'.repeat(bytes / 2),
  dashes: (bytes) => `${'-'.repeat(bytes)}!`,
  accents: (bytes) => `a${'\u0301'.repeat(bytes / 2)}`,
  words: (bytes) => many(bytes, 6, (index) => `s${index.toString(36)}`).join(' '),
};

/** Every path into a value, first its own. Of a list, only into the first item. */
export function pathsOf(value: Json, path: Path = []): Path[] {
  if (typeof value !== 'object' || value === null) return [path];
  const members = Array.isArray(value) ? [...value.slice(0, 1).entries()] : Object.entries(value);
  return [path, ...members.flatMap(([name, member]) => pathsOf(member, [...path, name]))];
}

export function valueAt(value: Json, path: Path): Json {
  return path.reduce<Json>((parent, name) => (parent as Record<string, Json>)[name] as Json, value);
}

/** A copy with another value at the path. */
export function withValue(value: Json, path: Path, other: Json): Json {
  const [name, ...rest] = path;
  if (name === undefined) return other;
  const copy = structuredClone(value) as Record<string, Json>;
  copy[name] = withValue(copy[name] as Json, rest, other);
  return copy;
}

// biome-ignore lint/suspicious/noExplicitAny: schemas are read as they come
type Schema = any;

/**
 * A value that has all members of a schema.
 * @param schemas finds the schema for a reference @param choice which of several alternatives
 */
export function fullValue(
  given: Schema,
  schemas: (reference: string) => Schema,
  choice = 0,
  depth = 0,
): Json {
  const schema = given?.$ref === undefined ? given : schemas(given.$ref);
  if (schema === undefined || depth > 8) return null;
  const inner = (each: Schema) => fullValue(each, schemas, choice, depth + 1);
  const alternatives = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (alternatives !== undefined) return inner(alternatives[Math.min(choice, alternatives.length - 1)]);
  const [type] = [schema.type].flat();
  if (schema.properties !== undefined) {
    const members = Object.entries(schema.properties).map(([name, member]) => [name, inner(member)]);
    return Object.fromEntries(members);
  }
  if (type === 'array') return [inner(schema.items)];
  const known = schema.examples?.[0] ?? schema.const ?? schema.enum?.[0] ?? schema.default;
  if (known !== undefined) return known;
  if (type === 'object') return { name: inner(schema.additionalProperties || undefined) };
  if (type === 'integer' || type === 'number') return schema.minimum ?? 1;
  if (type === 'boolean') return true;
  return schema.format === 'uri' ? 'https://app.example/' : 'text';
}
