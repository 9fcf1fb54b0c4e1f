/**
 * The kinds of events that agents can have, with the arguments that narrow them down: each scalar field of the body is an argument. The
 * object that a body is about needs no prefix, so `invoice.amount` of `invoice.paid` is `amount`; other nested fields have dots.
 */

import type { TSchema } from 'typebox';
import type { Catalogue } from '../../events/catalogue.ts';
import { choicesMax } from '../../events/filter.ts';
import { isIndex, type JsonType, typesAt } from '../../events/schema_types.ts';

export interface AgentKind {
  name: string;
  description: string;
  /** Null if it requires none. */
  scope: string | null;
  /** JSON Schema of the arguments. */
  inputSchema: object;
  /** JSON Schema of the body. */
  schema: TSchema;
  arguments: ReadonlyMap<string, ArgumentField>;
}

export interface ArgumentField {
  /** JSON pointer of the field in the body. */
  path: string;
  types: ReadonlySet<JsonType>;
  description: string | undefined;
}

/** Maximum arguments of a kind, and levels of objects in which they are looked for. */
const fieldsMax = 100;
const levelsMax = 4;

/** @returns the declared kinds by name, in the order of their names. The server's own report about subscriptions. */
export function agentKinds({ kinds }: Catalogue): ReadonlyMap<string, AgentKind> {
  const offered = kinds
    .values()
    .filter(({ isBuiltIn }) => !isBuiltIn)
    .map(({ name, description, object, schema }) => {
      const fields = argumentsOf(name, schema);
      const scope = object === null ? null : `read:${object}`;
      return { name, description, scope, schema, arguments: fields, inputSchema: inputSchemaOf(fields) };
    });
  return new Map([...offered].sort(byName).map((kind) => [kind.name, kind]));
}

function byName({ name: one }: AgentKind, { name: other }: AgentKind): number {
  return one < other ? -1 : 1;
}

function argumentsOf(kind: string, schema: TSchema): ReadonlyMap<string, ArgumentField> {
  const subject = kind.split('.')[0] as string;
  const found = new Map<string, ArgumentField>();
  const subjects = propertiesOf(schema)[subject];
  if (subjects !== undefined) collect(found, schema, [subject], subjects, '');
  collect(found, schema, [], schema, '', subject);
  return found;
}

/** @param steps that lead to `part` in the schema */
function collect(
  found: Map<string, ArgumentField>,
  schema: TSchema,
  steps: readonly string[],
  part: TSchema,
  prefix: string,
  except?: string,
): void {
  for (const [name, property] of Object.entries(propertiesOf(part))) {
    const isPlain = !name.includes('.') && !name.startsWith('$') && !isIndex(name);
    if (found.size >= fieldsMax || name === except || !isPlain) continue;
    const path = [...steps, name];
    const types = typesAt(schema, path);
    const isScalar = types.size > 0 && !types.has('object') && !types.has('array');
    if (isScalar && !found.has(prefix + name)) {
      const { description } = property as { description?: string };
      found.set(prefix + name, { path: pointerOf(path), types, description });
    }
    if (!isScalar && path.length < levelsMax) collect(found, schema, path, property, `${prefix}${name}.`);
  }
}

function propertiesOf(schema: TSchema): Readonly<Record<string, TSchema>> {
  const { properties } = schema as { properties?: Record<string, TSchema> };
  return properties ?? {};
}

function pointerOf(steps: readonly string[]): string {
  return steps.map((step) => `/${step.replaceAll('~', '~0').replaceAll('/', '~1')}`).join('');
}

function inputSchemaOf(fields: ReadonlyMap<string, ArgumentField>): object {
  const properties = [...fields].map(([name, field]) => [name, argumentSchema(field)]);
  return { type: 'object', properties: Object.fromEntries(properties), additionalProperties: false };
}

/** A value, a list of values, or limits. */
function argumentSchema({ types, description }: ArgumentField): object {
  const value = { type: types.size === 1 ? [...types][0] : [...types] };
  const forms: object[] = [value, { type: 'array', items: value, minItems: 1, maxItems: choicesMax }];
  const ordered = [...types].filter((type) => type === 'string' || type === 'number');
  if (ordered.length > 0) {
    const limit = { type: ordered.length === 1 ? ordered[0] : ordered };
    const properties = { $gt: limit, $gte: limit, $lt: limit, $lte: limit };
    forms.push({ type: 'object', properties, minProperties: 1, additionalProperties: false });
  }
  return { ...(description === undefined ? {} : { description }), anyOf: forms };
}
