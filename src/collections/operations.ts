/** Describes the operations of collections for the reference, from their declarations. */

import Type, { type TSchema } from 'typebox';
import { jsonPatchType } from '../http/api.ts';
import { jsonBody, keyParameter, mergePatchBody, pathParameter, token } from '../http/describe.ts';
import type { Operation, Parameter, ReferencePart, ResponseDescription } from '../http/operation.ts';
import { Id, named, reference } from '../http/schema.ts';
import { cursorCharactersMax, cursorPattern } from './cursor.ts';
import { exampleIds, exampleResource } from './example.ts';
import { embeddedInResponseMax, embeddedMax } from './expansions.ts';
import { orderDefault, pageSizeDefault, pageSizeMax, selectableMembers } from './query.ts';
import { type ResourceAction, type ResourceType, withChildren } from './resource_type.ts';
import { rootOperation } from './root_operation.ts';
import {
  actionSchema,
  createSchema,
  filterSchema,
  jsonPatchSchema,
  listSchema,
  mergePatchSchema,
  replaceSchema,
  resourceSchema,
  selectionSchema,
} from './schemas.ts';

export function describeCollections(collections: readonly ResourceType[]): ReferencePart {
  const types = collections.flatMap(withChildren);
  return {
    operations: [rootOperation, ...types.flatMap(describe)],
    tags: [
      { name: 'api', description: 'Who the token acts for.' },
      ...collections.map(({ name, description }) => ({ name, description })),
    ],
  };
}

const nameOf = (type: ResourceType) => upper(type.item);
/** `an article`, `a comment`. */
const oneOf = ({ item }: ResourceType) =>
  `${/^[aeiou]/.test(item) ? 'an' : 'a'} ${item.replaceAll('_', ' ')}`;
const upper = (name: string) =>
  name
    .split('_')
    .map((word) => word.charAt(0).toUpperCase() + word.slice(1))
    .join('');

interface Schemas {
  resource: TSchema;
  /** The resource, or its members that `fields` names. */
  shown: TSchema;
  list: TSchema;
  create: TSchema;
}

const known = new WeakMap<ResourceType, Schemas>();

function schemasOf(type: ResourceType): Schemas {
  const found = known.get(type) ?? createSchemas(type);
  known.set(type, found);
  return found;
}

function createSchemas(type: ResourceType): Schemas {
  const name = nameOf(type);
  // By name, because resources can embed each other.
  const embedded = Object.fromEntries(
    type.expansions.map((expansion) => {
      const embeddedName = nameOf(expansion.type);
      return [
        expansion.name,
        reference(expansion.type.parent === null ? embeddedName : `${embeddedName}List`),
      ];
    }),
  );
  const resource = named(name, resourceSchema(type, embedded));
  const selection = named(`${name}Selection`, selectionSchema(type, embedded));
  const shown = named(`${name}Shown`, Type.Union([resource, selection]));
  return {
    resource,
    shown,
    list: named(`${name}List`, listSchema(shown)),
    create: named(`${name}Create`, createSchema(type)),
  };
}

function describe(type: ResourceType): Operation[] {
  const operations = [listOperation(type), createOperation(type), readOperation(type)];
  if (type.parent !== null) return operations;
  return [
    ...operations,
    replaceOperation(type),
    patchOperation(type),
    deleteOperation(type),
    ...type.actions.map((action) => actionOperation(type, action)),
  ];
}

function pathOf(type: ResourceType): string {
  return type.parent === null ? `/${type.name}` : `/${type.parent.name}/{parent}/${type.name}`;
}

function pathParameters(type: ResourceType, withId: boolean): Parameter[] {
  const id = (name: string, item: string) => pathParameter(name, `The id of the ${item}.`, Id());
  return [
    ...(type.parent === null ? [] : [id('parent', type.parent.item)]),
    ...(withId ? [id('id', type.item)] : []),
  ];
}

const fieldsParameter = (type: ResourceType): Parameter => ({
  name: 'fields',
  in: 'query',
  description: `Comma-separated members to return in addition to id and _links: ${selectableMembers(type).join(', ')}.`,
  schema: namesSchema(['id', ...selectableMembers(type)]),
});

/** One or more names, separated by commas and optional spaces. */
function namesSchema(names: readonly string[]): TSchema {
  const name = ` *(${names.join('|')}) *`;
  return Type.String({ pattern: `^${name}(,${name})*$` });
}

/** Parameters that select the shown parts of each resource. */
function shapeParameters(type: ResourceType): Parameter[] {
  const names = type.expansions.map(({ name }) => name);
  if (names.length === 0) return [fieldsParameter(type)];
  const expand: Parameter = {
    name: 'expand',
    in: 'query',
    description: `Comma-separated links to embed under _embedded: ${names.join(', ')}. A sub-collection embeds at most the ${embeddedMax} newest resources, and a response at most ${embeddedInResponseMax}.`,
    schema: namesSchema(names),
  };
  return [fieldsParameter(type), expand];
}

const conditionParameters = (...names: string[]): Parameter[] =>
  names.map((name) => ({ name, in: 'header', description: 'RFC 9110 section 13.', schema: Type.String() }));

const validatorHeaders = ['ETag', 'Last-Modified'];
const preconditions = ['If-Match', 'If-None-Match', 'If-Unmodified-Since'];

function listOperation(type: ResourceType): Operation {
  const sorts = [...new Set(['created_at', ...type.sorts])].flatMap((name) => [name, `-${name}`]);
  const filters = type.filters.map((name): Parameter => {
    const field = type.fields.find((candidate) => candidate.name === name);
    return {
      name,
      in: 'query',
      description: `Returns only resources with this ${name}.`,
      schema: field === undefined ? Type.String({ format: 'uuid' }) : filterSchema(field),
    };
  });
  return {
    id: `list_${type.table}`,
    method: 'get',
    path: pathOf(type),
    tag: (type.parent ?? type).name,
    summary: `List ${type.name}`,
    admission: token(type.readScope),
    parameters: [
      ...pathParameters(type, false),
      {
        name: 'limit',
        in: 'query',
        description:
          'The maximum number of resources on the page. Large resources make it shorter, unless `fields` leaves out their large members.',
        schema: Type.Integer({ minimum: 1, maximum: pageSizeMax, default: pageSizeDefault }),
      },
      {
        name: 'after',
        in: 'query',
        description: 'The cursor from the `next` link of the same list in the same order.',
        schema: Type.String({ pattern: cursorPattern, minLength: 1, maxLength: cursorCharactersMax }),
      },
      {
        name: 'sort',
        in: 'query',
        description: 'The order. A leading - means descending.',
        schema: Type.String({ enum: sorts, default: orderDefault }),
      },
      ...filters,
      ...shapeParameters(type),
    ],
    responses: {
      200: {
        description: 'A page of the list.',
        schema: schemasOf(type).list,
        headers: ['Link'],
        example: { items: [exampleOf(type)], _links: { self: { href: examplePath(type) } } },
      },
    },
  };
}

function readOperation(type: ResourceType): Operation {
  return {
    id: `read_${type.table}`,
    method: 'get',
    path: `${pathOf(type)}/{id}`,
    tag: (type.parent ?? type).name,
    summary: `Read ${oneOf(type)}`,
    admission: token(type.readScope),
    parameters: [
      ...pathParameters(type, true),
      ...shapeParameters(type),
      ...conditionParameters('If-None-Match', 'If-Modified-Since'),
    ],
    responses: {
      200: {
        description: 'The resource.',
        schema: schemasOf(type).shown,
        headers: validatorHeaders,
        example: exampleOf(type),
      },
      304: { description: 'The resource has not changed.', headers: validatorHeaders },
    },
  };
}

function shown(
  type: ResourceType,
  description: string,
  headers: readonly string[] = [],
): ResponseDescription {
  return {
    description,
    schema: schemasOf(type).resource,
    headers: [...validatorHeaders, ...headers],
    example: exampleOf(type),
  };
}

function createOperation(type: ResourceType): Operation {
  return {
    id: `create_${type.table}`,
    method: 'post',
    path: pathOf(type),
    tag: (type.parent ?? type).name,
    summary: type.parent === null ? `Create ${oneOf(type)}` : `Add ${oneOf(type)}`,
    admission: token(type.writeScope),
    parameters: [...pathParameters(type, false), keyParameter],
    body: jsonBody(schemasOf(type).create, type.example),
    responses: { 201: shown(type, 'The resource was created.', ['Location', 'Idempotency-Replayed']) },
    problems: [409],
  };
}

function replaceOperation(type: ResourceType): Operation {
  return {
    id: `replace_${type.table}`,
    method: 'put',
    path: `${pathOf(type)}/{id}`,
    tag: type.name,
    summary: `Replace ${oneOf(type)}`,
    admission: token(type.writeScope),
    parameters: [...pathParameters(type, true), ...conditionParameters(...preconditions)],
    body: jsonBody(named(`${nameOf(type)}Replace`, replaceSchema(type)), settable(type)),
    responses: { 200: shown(type, 'The resource has the given values, and defaults for omitted ones.') },
    problems: [412],
  };
}

function patchOperation(type: ResourceType): Operation {
  const [first] = Object.entries(settable(type));
  return {
    id: `patch_${type.table}`,
    method: 'patch',
    path: `${pathOf(type)}/{id}`,
    tag: type.name,
    summary: `Change ${oneOf(type)}`,
    admission: token(type.writeScope),
    parameters: [...pathParameters(type, true), ...conditionParameters(...preconditions)],
    body: {
      ...mergePatchBody(named(`${nameOf(type)}MergePatch`, mergePatchSchema(type)), settable(type)),
      otherTypes: {
        [jsonPatchType]: {
          schema: jsonPatchSchema,
          example: first === undefined ? [] : [{ op: 'replace', path: `/${first[0]}`, value: first[1] }],
        },
      },
    },
    responses: { 200: shown(type, 'The resource was changed.') },
    problems: [409, 412],
  };
}

function deleteOperation(type: ResourceType): Operation {
  return {
    id: `delete_${type.table}`,
    method: 'delete',
    path: `${pathOf(type)}/{id}`,
    tag: type.name,
    summary: `Delete ${oneOf(type)}`,
    admission: token(type.writeScope),
    parameters: [...pathParameters(type, true), ...conditionParameters(...preconditions)],
    responses: { 204: { description: 'The resource and its sub-collections were deleted.' } },
    problems: [412],
  };
}

function actionOperation(type: ResourceType, action: ResourceAction): Operation {
  const example = Object.fromEntries(
    action.input.map((field) => [field.name, type.example[field.name] ?? field.default ?? null]),
  );
  return {
    id: `${action.name}_${type.table}`,
    method: 'post',
    path: `${pathOf(type)}/{id}/${action.name}`,
    tag: type.name,
    summary: `${upper(action.name)} ${oneOf(type)}`,
    ...(action.description === '' ? {} : { description: action.description }),
    admission: token(type.writeScope),
    parameters: [...pathParameters(type, true), keyParameter, ...conditionParameters(...preconditions)],
    body: jsonBody(named(`${nameOf(type)}${upper(action.name)}`, actionSchema(action.input)), example, false),
    responses: { 200: shown(type, 'The action was performed.', ['Idempotency-Replayed']) },
    problems: [409, 412],
  };
}

/** The writable members of the example. */
function settable(type: ResourceType): Record<string, unknown> {
  const names = type.fields.filter((field) => field.set === 'client').map((field) => field.name);
  return Object.fromEntries(Object.entries(type.example).filter(([name]) => names.includes(name)));
}

function examplePath(type: ResourceType): string {
  return pathOf(type).replace('{parent}', exampleIds.parent);
}

function exampleOf(type: ResourceType): Record<string, unknown> {
  const resource = exampleResource(type);
  const self = `${examplePath(type)}/${resource.id}`;
  const links: Record<string, unknown> = { self: { href: self } };
  if (type.parent !== null) links[type.parent.item] = { href: `/${type.parent.name}/${exampleIds.parent}` };
  for (const child of type.children) links[child.name] = { href: `${self}/${child.name}` };
  for (const action of type.actions) links[action.name] = { href: `${self}/${action.name}`, method: 'POST' };
  return { ...resource, _links: links };
}
