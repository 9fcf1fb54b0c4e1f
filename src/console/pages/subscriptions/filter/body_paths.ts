/** Paths to the values of event bodies, by the JSON Schemas of their kinds. The server follows the same parts of a schema. */

export type BodyType = 'string' | 'number' | 'boolean' | 'null' | 'object' | 'array';

export interface BodyPath {
  /** A JSON pointer (RFC 6901). */
  path: string;
  /** Of each kind, the value has one of these. None if the kinds have no type in common. */
  types: readonly BodyType[];
  /** The values that the schema lists; empty if it lists none. */
  choices: readonly unknown[];
}

/** Levels of a body that are listed. Schemas can refer to themselves. */
const depthMax = 6;
const pathsMax = 500;
/** Characters of a path that the server accepts. */
export const pathCharactersMax = 256;
const allTypes: readonly BodyType[] = ['string', 'number', 'boolean', 'null', 'object', 'array'];

type Plain = Record<string, unknown>;

/** The paths that every schema has, in the order of the first. */
export function commonPaths(schemas: readonly unknown[]): BodyPath[] {
  const [first, ...others] = schemas.map(pathsOf);
  if (first === undefined) return [];
  return [...first.values()].flatMap((found) => {
    let common: BodyPath | undefined = found;
    for (const other of others) {
      const same = other.get(found.path);
      if (common !== undefined) common = same && inCommon(common, same);
    }
    return common === undefined ? [] : [common];
  });
}

function inCommon(one: BodyPath, other: BodyPath): BodyPath {
  const both = one.choices.filter((choice) => other.choices.includes(choice));
  const choices = one.choices.length === 0 ? other.choices : other.choices.length === 0 ? one.choices : both;
  return { path: one.path, types: one.types.filter((type) => other.types.includes(type)), choices };
}

interface Place {
  path: string;
  /** Of each level, the number of the member: the order of the schema. */
  order: readonly number[];
  schemas: readonly Plain[];
}

/** Goes level by level, so that a large part of a body does not hide the others. */
function pathsOf(schema: unknown): Map<string, BodyPath> {
  const root = schema as Plain;
  const places: Place[] = [{ path: '', order: [], schemas: alternativesOf([root], root) }];
  for (const place of places) {
    if (place.order.length === depthMax) break;
    for (const [number, [name, children]] of [...membersOf(place.schemas)].entries()) {
      if (places.length > pathsMax) break;
      const path = `${place.path}/${name.replaceAll('~', '~0').replaceAll('/', '~1')}`;
      const schemas = alternativesOf(children, root);
      if (path.length > pathCharactersMax || schemas.length === 0) continue;
      places.push({ path, order: [...place.order, number], schemas });
    }
  }
  const sorted = places.slice(1).sort((one, other) => compare(one.order, other.order));
  const described = sorted.map(({ path, schemas }) => describe(path, schemas, root));
  // No value fits a reference that leads to itself.
  return new Map(described.filter(({ types }) => types.length > 0).map((each) => [each.path, each]));
}

/** A value comes before its parts. */
function compare(one: readonly number[], other: readonly number[]): number {
  for (const [level, number] of one.entries()) {
    const against = other[level];
    if (against === undefined) return 1;
    if (number !== against) return number - against;
  }
  return one.length - other.length;
}

function describe(path: string, schemas: readonly Plain[], root: Plain): BodyPath {
  const types = [...new Set(schemas.flatMap((schema) => typesOf(schema, root)))];
  const scalars = schemas.filter((schema) => typesOf(schema, root).some((type) => type !== 'null'));
  const lists = scalars.map(valuesOf);
  const choices = lists.every((list) => list !== undefined) ? lists.flat() : [];
  return { path, types, choices: [...new Set(choices)] };
}

/** The members of an object and the first item of an array, with their schemas. */
function membersOf(schemas: readonly Plain[]): Map<string, unknown[]> {
  const members = new Map<string, unknown[]>();
  const add = (name: string, schema: unknown) => members.set(name, [...(members.get(name) ?? []), schema]);
  for (const { properties, items } of schemas) {
    if (isPlain(properties)) {
      for (const [name, schema] of Object.entries(properties)) if (canBeNamed(name)) add(name, schema);
    }
    if (items !== undefined) add('0', Array.isArray(items) ? items[0] : items);
  }
  return members;
}

/** In a path of a filter, digits are an index. */
const canBeNamed = (name: string) =>
  !/^(?:0|[1-9]\d{0,8})$/.test(name) && name.isWellFormed() && !name.includes('\0');

const schemasMax = 1_000;

/** Schemas, with those that they are a union of or refer to, each once. */
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

function referredBy({ $ref: reference }: Plain, root: Plain): Plain | undefined {
  if (typeof reference !== 'string') return undefined;
  const named = isPlain(root.$defs) && Object.hasOwn(root.$defs, reference) && root.$defs[reference];
  if (isPlain(named) && named.$id === reference) return named;
  if (!/^#(?:$|\/)/.test(reference)) return undefined;
  let value: unknown = root;
  for (const step of reference.split('/').slice(1)) {
    const name = decoded(step).replaceAll('~1', '/').replaceAll('~0', '~');
    if (typeof value !== 'object' || value === null || !Object.hasOwn(value, name)) return undefined;
    value = (value as Plain)[name];
  }
  return isPlain(value) ? value : undefined;
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function typesOf(schema: Plain, root: Plain): BodyType[] {
  const given = [schema.type ?? []].flat() as string[];
  if (given.length > 0) return given.map((name) => (name === 'integer' ? 'number' : name) as BodyType);
  const values = valuesOf(schema);
  if (values !== undefined) {
    return values.map((each) =>
      each === null ? 'null' : Array.isArray(each) ? 'array' : (typeof each as BodyType),
    );
  }
  // A union or a reference says nothing itself: what it leads to does.
  const leads = [schema.anyOf, schema.oneOf, schema.allOf, referredBy(schema, root)];
  return leads.some((parts) => parts !== undefined) ? [] : [...allTypes];
}

function valuesOf({ enum: values, const: value }: Plain): unknown[] | undefined {
  return value === undefined ? (values as unknown[] | undefined) : [value];
}

function isPlain(value: unknown): value is Plain {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
