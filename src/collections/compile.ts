/**
 * Compiles a declaration to a resource type. Checks every name, schema, guard and example, and reports every problem with its
 * place, before the type is used.
 */

import { createHash } from 'node:crypto';
import { Ajv } from 'ajv';
import type { TSchema } from 'typebox';
import { withFormats } from '../http/body_schema.ts';
import { reportUnknown } from '../shared/nearest.ts';
import { columnOf, type JsonSchema } from './column.ts';
import { compileToolOptions } from './compile_tools.ts';
import {
  type AnyChildDeclaration,
  type AnyCollectionDeclaration,
  actionMembers,
  childMembers,
  collectionMembers,
  type FieldDeclaration,
  now,
  readChild,
} from './declaration.ts';
import type { Conditions, Expansion, Field, Report, ResourceAction, ResourceType } from './resource_type.ts';
import { indexedCharactersMax } from './table.ts';

const namePattern = /^[a-z][a-z0-9_]*$/;
/** Limit for names of collections, fields, actions and events. */
const nameCharactersMax = 30;
/** Limit of fields per collection. */
const fieldsMax = 200;
const addedPerMinuteDefault = 60;
const addedPerMinuteMax = 1_000_000;
/** Limit of expansions per type. They share the limit of embedded resources per response. */
const expansionsMax = 5;
/** Columns and members of every resource. */
const reservedFields = new Set(['id', 'author', 'version', 'created_at', 'updated_at', 'parent_id']);
/** Query parameters that a filter of the same name would hide. */
const reservedFilters = new Set(['limit', 'after', 'sort', 'fields', 'expand']);

const ajv = withFormats(new Ajv({ strict: false, useDefaults: false }));

/** @param place prefix of the places in reports, such as `collections.articles` */
export function compileCollection(
  declaration: AnyCollectionDeclaration,
  place: string,
  report: Report,
): ResourceType {
  reportUnknown(declaration, collectionMembers, place, report);
  const type = compileCommon(declaration, place, report, null);
  if (!/^[a-z][a-z0-9_-]{0,29}$/.test(String(declaration.scope))) {
    report(
      `${place}.scope`,
      'it must be a lower-case word, such as posts: the object of the read and write scopes',
    );
  }
  type.readable = compileReadable(declaration, type, place, report);
  type.actions = Object.entries(declaration.actions ?? {}).map(([name, action]) =>
    compileAction(name, action, type, `${place}.actions.${name}`, report),
  );
  const children = declaration.children ?? [];
  type.children = children.flatMap((value, index) => {
    const child = readChild(value);
    if (child === undefined) {
      report(`${place}.children[${index}]`, 'it was not created by defineChild');
      return [];
    }
    const childPlace = `${place}.children.${child.name}`;
    reportUnknown(child, childMembers, childPlace, report);
    const compiled = compileCommon(child, childPlace, report, type);
    compiled.createdBy = child.createdBy ?? 'readers';
    compiled.addedPerMinute = child.addedPerMinute ?? addedPerMinuteDefault;
    if (!isAddedPerMinute(compiled.addedPerMinute)) {
      report(`${childPlace}.addedPerMinute`, `it must be an integer from 1 to ${addedPerMinuteMax}`);
    }
    compiled.expansions = compileExpansions(
      child.expansions,
      [{ name: type.item, type }],
      childPlace,
      report,
    );
    compiled.tools = compileToolOptions(child.mcp, compiled, `${childPlace}.mcp`, report);
    for (const event of child.events ?? []) {
      if (event !== 'created')
        report(`${childPlace}.events`, `a sub-collection can only publish created, not ${event}`);
    }
    return [compiled];
  });
  const segments = [
    ...type.children.map((child) => child.name),
    ...type.actions.map((action) => action.name),
  ];
  for (const name of duplicates(segments)) {
    report(place, `${name} is declared twice among its sub-collections and actions`);
  }
  for (const name of segments) {
    if (name === 'self') report(place, 'self is the name of the link to the resource itself');
  }
  type.expansions = compileExpansions(
    declaration.expansions,
    type.children.map((child) => ({ name: child.name, type: child })),
    place,
    report,
  );
  type.tools = compileToolOptions(declaration.mcp, type, `${place}.mcp`, report);
  type.fingerprint = fingerprintOf(type);
  return type;
}

type Draft<T> = { -readonly [K in keyof T]: T[K] };

function compileCommon(
  declaration: AnyCollectionDeclaration | AnyChildDeclaration,
  place: string,
  report: Report,
  parent: ResourceType | null,
): Draft<ResourceType> {
  const { name, item } = declaration;
  if (!isName(name)) report(`${place}.name`, nameReason);
  if (!isName(item)) report(`${place}.item`, nameReason);
  const scope = parent?.scope ?? (declaration as AnyCollectionDeclaration).scope;
  const fields = compileFields(declaration.fields ?? {}, place, report, parent);
  const type: Draft<ResourceType> = {
    name,
    item,
    description: declaration.description ?? '',
    scope,
    readScope: `read:${scope}`,
    writeScope: `write:${scope}`,
    table: parent === null ? name : `${parent.item}_${name}`,
    fields,
    readable: 'owner',
    actions: [],
    events: new Set(declaration.events ?? []),
    filters: declaration.filters ?? [],
    sorts: declaration.sorts ?? [],
    example: declaration.example ?? {},
    bodies: pickVersions(declaration),
    parent,
    createdBy: 'readers',
    addedPerMinute: addedPerMinuteDefault,
    children: [],
    expansions: [],
    tools: false,
    fingerprint: '',
  };
  for (const event of type.events) {
    if (!['created', 'updated', 'deleted'].includes(event)) {
      report(
        `${place}.events`,
        `${String(event)} is not one of created, updated and deleted; an action declares its event with emits`,
      );
    }
  }
  compileListing(type, place, report);
  compileExample(type, place, report);
  type.fingerprint = fingerprintOf(type);
  return type;
}

function pickVersions({ version, versions }: AnyChildDeclaration): ResourceType['bodies'] {
  return { ...(version === undefined ? {} : { version }), ...(versions === undefined ? {} : { versions }) };
}

function compileFields(
  fields: Readonly<Record<string, FieldDeclaration>>,
  place: string,
  report: Report,
  parent: ResourceType | null,
): Field[] {
  const names = Object.keys(fields);
  if (names.length === 0) report(`${place}.fields`, 'a collection needs at least one field');
  if (names.length > fieldsMax)
    report(`${place}.fields`, `there are ${names.length}, but at most ${fieldsMax} are allowed`);
  return Object.entries(fields).flatMap(([name, declared]) => {
    const at = `${place}.fields.${name}`;
    if (!isName(name)) report(at, nameReason);
    if (reservedFields.has(name) || name === parent?.item)
      report(at, 'the name is reserved: every resource has such a member');
    const field = compileField(name, declared, at, report);
    return field === undefined ? [] : [field];
  });
}

function compileField(
  name: string,
  declared: FieldDeclaration,
  place: string,
  report: Report,
): Field | undefined {
  const marked = declared as { set?: 'server' | 'create'; schema?: TSchema; initial?: unknown };
  const isMarked = marked.set === 'server' || marked.set === 'create';
  const schema = (isMarked ? marked.schema : declared) as TSchema & JsonSchema;
  const set = isMarked ? (marked.set as 'server' | 'create') : 'client';
  const column = columnOf(schema);
  if (column === undefined) {
    report(
      place,
      'its schema must be a string, integer, number, boolean, array or object, optionally nullable',
    );
    return undefined;
  }
  let validates: ReturnType<typeof ajv.compile>;
  try {
    validates = ajv.compile(schema);
  } catch (error) {
    report(place, `its schema cannot be used: ${(error as Error).message}`);
    return undefined;
  }
  if (column.type === 'text' && schema.maxLength === undefined && unlimited(schema)) {
    report(place, 'a string needs a maxLength');
  }
  let fallback = set === 'server' ? marked.initial : schema.default;
  if (fallback === undefined && column.nullable) fallback = null;
  if (set === 'server' && fallback === undefined)
    report(place, 'a field that the server sets needs an initial value');
  if (fallback !== undefined && !validates(fallback)) {
    report(place, `its default ${JSON.stringify(fallback)} does not fit its schema`);
  }
  return { name, schema, column: column.type, nullable: column.nullable, set, default: fallback };
}

/** Whether the schema allows text of any length. Enumerations do not. */
function unlimited(schema: JsonSchema): boolean {
  if (schema.anyOf !== undefined) return schema.anyOf.some(unlimited);
  return schema.type === 'string' && schema.maxLength === undefined && schema.enum === undefined;
}

function compileReadable(
  declaration: AnyCollectionDeclaration,
  type: ResourceType,
  place: string,
  report: Report,
): ResourceType['readable'] {
  const readable = declaration.readable ?? 'owner';
  if (readable === 'owner' || readable === 'all') return readable;
  return compileConditions(readable, type, `${place}.readable`, report);
}

function compileConditions(match: object, type: ResourceType, place: string, report: Report): Conditions {
  return Object.entries(match).flatMap(([name, value]) => {
    const field = type.fields.find((candidate) => candidate.name === name);
    if (field === undefined) {
      report(`${place}.${name}`, `${type.name} has no such field`);
      return [];
    }
    if (field.column === 'jsonb') {
      report(`${place}.${name}`, 'a condition cannot compare arrays and objects');
      return [];
    }
    const values: unknown[] = Array.isArray(value) ? value : [value];
    if (values.length === 0) report(`${place}.${name}`, 'it needs at least one value');
    for (const each of values) checkValue(field, each, `${place}.${name}`, report);
    return [{ field, values }];
  });
}

function checkValue(field: Field, value: unknown, place: string, report: Report): void {
  if (!ajv.validate(field.schema, value)) {
    report(place, `${JSON.stringify(value)} does not fit the field's schema`);
  }
}

function compileAction(
  name: string,
  action: NonNullable<AnyCollectionDeclaration['actions']>[string],
  type: ResourceType,
  place: string,
  report: Report,
): ResourceAction {
  if (!isName(name)) report(place, nameReason);
  reportUnknown(action, actionMembers, place, report);
  const find = (fieldName: string, at: string): Field[] => {
    const field = type.fields.find((candidate) => candidate.name === fieldName);
    if (field === undefined) report(at, `${type.name} has no field ${fieldName}`);
    return field === undefined ? [] : [field];
  };
  const input = (action.input ?? []).flatMap((fieldName) => find(fieldName, `${place}.input`));
  for (const field of input) {
    if (field.set !== 'server') report(`${place}.input`, `${field.name} is not a server-set field`);
  }
  const change = Object.entries(action.change ?? {}).flatMap(([fieldName, value]) =>
    find(fieldName, `${place}.change`).map((field) => {
      if (value !== now) checkValue(field, value, `${place}.change.${fieldName}`, report);
      else if (field.column !== 'timestamptz')
        report(`${place}.change.${fieldName}`, 'now requires a Timestamp() field');
      return { field, value };
    }),
  );
  if (change.length + input.length === 0) report(`${place}.change`, 'the action changes nothing');
  if (action.emits !== undefined && !isName(action.emits)) report(`${place}.emits`, nameReason);
  return {
    name,
    description: action.description ?? '',
    guard: compileConditions(action.guard ?? {}, type, `${place}.guard`, report),
    refusal: action.refusal ?? `The state of this ${type.item} does not allow ${name}.`,
    input,
    change,
    emits: action.emits === undefined ? null : `${type.item}.${action.emits}`,
  };
}

/** @param links the links that can be embedded */
function compileExpansions(
  names: readonly string[] = [],
  links: readonly Expansion[],
  place: string,
  report: Report,
): Expansion[] {
  if (names.length > expansionsMax) {
    report(`${place}.expansions`, `there are ${names.length}, but at most ${expansionsMax} are allowed`);
  }
  for (const name of duplicates(names)) report(`${place}.expansions`, `${name} is named twice`);
  const known = links.map((link) => link.name).join(', ');
  return names.flatMap((name) => {
    const link = links.find((candidate) => candidate.name === name);
    if (link !== undefined) return [link];
    const choice = known === '' ? 'this type has none' : `it must be one of ${known}`;
    report(`${place}.expansions`, `${String(name)} is not a link to resources: ${choice}`);
    return [];
  });
}

function compileListing(type: ResourceType, place: string, report: Report): void {
  for (const name of type.filters) {
    const field = type.fields.find((candidate) => candidate.name === name);
    if (name !== 'author' && field === undefined) report(`${place}.filters`, `there is no field ${name}`);
    if (field?.column === 'jsonb') report(`${place}.filters`, `${name} is an array or object`);
    if (field !== undefined) checkIndexed(field, `${place}.filters`, report);
    if (reservedFilters.has(name)) report(`${place}.filters`, `${name} is a parameter of every list`);
  }
  for (const name of type.sorts) {
    const field = type.fields.find((candidate) => candidate.name === name);
    const isStandard = name === 'created_at' || (name === 'updated_at' && type.parent === null);
    if (!isStandard && field === undefined) report(`${place}.sorts`, `there is no field ${name}`);
    if (field?.column === 'jsonb' || field?.column === 'boolean')
      report(`${place}.sorts`, `${name} has no order`);
    if (field !== undefined) checkIndexed(field, `${place}.sorts`, report);
  }
}

/** An index entry must fit on an index page. */
function checkIndexed(field: Field, place: string, report: Report): void {
  if (field.column === 'text' && longest(field.schema as JsonSchema) > indexedCharactersMax) {
    report(
      place,
      `${field.name} allows more than ${indexedCharactersMax} characters, which is too long for an index`,
    );
  }
}

/** Maximum characters of a text; 0 if the schema does not limit it by a length. */
function longest({ anyOf = [], maxLength = 0 }: JsonSchema): number {
  return Math.max(maxLength, ...anyOf.map(longest));
}

/** The example must be a valid body for POST, plus values for the input of actions. */
function compileExample(type: ResourceType, place: string, report: Report): void {
  for (const [name, value] of Object.entries(type.example)) {
    const field = type.fields.find((candidate) => candidate.name === name);
    if (field === undefined) report(`${place}.example`, `there is no field ${name}`);
    else checkValue(field, value, `${place}.example.${name}`, report);
  }
  for (const field of type.fields) {
    if (field.default === undefined && !Object.hasOwn(type.example, field.name)) {
      report(`${place}.example`, `${field.name} is missing`);
    }
  }
}

const nameReason = `it must consist of lower-case letters, digits and _, with at most ${nameCharactersMax} characters`;

function isAddedPerMinute(value: unknown): boolean {
  return Number.isInteger(value) && Number(value) >= 1 && Number(value) <= addedPerMinuteMax;
}

function isName(name: unknown): name is string {
  return typeof name === 'string' && namePattern.test(name) && name.length <= nameCharactersMax;
}

function duplicates(names: readonly string[]): Set<string> {
  return new Set(names.filter((name, index) => names.indexOf(name) !== index));
}

function fingerprintOf(type: ResourceType): string {
  const shape = {
    fields: type.fields.map((field) => [field.name, field.schema]),
    actions: type.actions.map((action) => [
      action.name,
      action.guard.map(({ field, values }) => [field.name, values]),
    ]),
    children: type.children.map((child) => child.name),
    name: type.name,
  };
  return createHash('sha256').update(JSON.stringify(shape)).digest('base64url').slice(0, 6);
}
