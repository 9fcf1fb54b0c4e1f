/** The tools of a collection, derived from its declaration: one for each operation, so that no tool both reads and writes. */

import Type, { type TSchema } from 'typebox';
import { cursorCharactersMax, cursorPattern } from '../../collections/cursor.ts';
import { orderDefault, pageSizeDefault, pageSizeMax } from '../../collections/query.ts';
import { type ResourceAction, type ResourceType, withChildren } from '../../collections/resource_type.ts';
import {
  actionSchema,
  createSchema,
  eventResourceSchema,
  filterSchema,
  mergePatchSchema,
} from '../../collections/schemas.ts';
import { keyCharactersMax, keyPattern } from '../../http/idempotency.ts';
import { Id, Nullable, strict } from '../../http/schema.ts';
import type { ToolDescription } from './tool.ts';

/** The operations of a collection that are tools. */
export type ToolKind = 'list' | 'read' | 'create' | 'patch' | 'delete' | 'action';

export interface CollectionTool extends ToolDescription {
  readonly type: ResourceType;
  readonly kind: ToolKind;
  /** Of kind `action`. */
  readonly action: ResourceAction | null;
}

/** The arguments that are not part of a resource. Fields cannot have these names (`tools.ts` reports them). */
export const ifMatchArgument = 'if_match';
export const keyArgument = 'idempotency_key';
/** The member of a result that holds the entity tag. Names of fields do not begin with an underscore. */
export const tagMember = '_etag';

/** @returns the tools of a collection and of its sub-collections, without hidden ones */
export function describeTools(collection: ResourceType): CollectionTool[] {
  return withChildren(collection).flatMap((type) => {
    const tools = type.parent === null ? describe(type) : [listTool(type), createTool(type)];
    return tools.flatMap((tool) => {
      const option = type.tools === false ? false : type.tools.get(optionName(tool));
      return option === false ? [] : [{ ...tool, ...option }];
    });
  });
}

function optionName({ kind, action }: CollectionTool): string {
  if (action !== null) return `actions.${action.name}`;
  return kind === 'read' ? 'get' : kind === 'patch' ? 'update' : kind;
}

function describe(type: ResourceType): CollectionTool[] {
  const name = oneOf(type);
  const reading = { type, action: null, scope: type.readScope, annotations: readOnly };
  const writing = { type, action: null, scope: type.writeScope };
  return [
    listTool(type),
    {
      ...reading,
      kind: 'read',
      name: `${type.item}_get`,
      title: `Read ${name}`,
      description: `Returns ${name} by its id.`,
      inputSchema: inputSchema({ id: idOf(type) }),
      outputSchema: resourceSchema(type),
    },
    createTool(type),
    {
      ...writing,
      kind: 'patch',
      name: `${type.item}_update`,
      title: `Change ${name}`,
      description: `Changes the given fields of ${name} that the user owns, and leaves the others as they are. Null removes a value.`,
      inputSchema: inputSchema({ id: idOf(type), ...propertiesOf(mergePatchSchema(type)), ...condition }),
      outputSchema: resourceSchema(type),
      annotations: writes,
    },
    {
      ...writing,
      kind: 'delete',
      name: `${type.item}_delete`,
      title: `Delete ${name}`,
      description: `Deletes ${name} that the user owns${withParts(type)}. This cannot be undone.`,
      inputSchema: inputSchema({ id: idOf(type), ...condition }),
      outputSchema: Type.Object({ id: Id(), deleted: Type.Literal(true) }, strict),
      annotations: destructive,
    },
    ...type.actions.map((action) => actionTool(type, action)),
  ];
}

function listTool(type: ResourceType): CollectionTool {
  const { parent } = type;
  const whose = parent === null ? '' : ` of ${oneOf(parent)}`;
  return {
    type,
    kind: 'list',
    action: null,
    name: parent === null ? `${type.name}_list` : `${parent.item}_${type.name}_list`,
    title: `List ${words(type.name)}`,
    description: sentences(
      `Lists the ${words(type.name)}${whose} that the user may read.`,
      type.description,
      'If next is not null, pass it as after to get the next page.',
    ),
    inputSchema: inputSchema({ ...parentId(type), ...listParameters(type) }),
    outputSchema: Type.Object(
      {
        items: Type.Array(Type.Object(membersOf(type), strict)),
        next: Nullable(Type.String({ description: 'The cursor of the next page; null on the last page.' })),
      },
      strict,
    ),
    annotations: readOnly,
    scope: type.readScope,
  };
}

function createTool(type: ResourceType): CollectionTool {
  const { parent } = type;
  return {
    type,
    kind: 'create',
    action: null,
    name: parent === null ? `${type.item}_create` : `${parent.item}_${type.name}_create`,
    title: parent === null ? `Create ${oneOf(type)}` : `Add ${oneOf(type)}`,
    description: sentences(
      parent === null
        ? `Creates ${oneOf(type)} that the user owns.`
        : `Adds ${oneOf(type)} of the user to ${oneOf(parent)}.`,
      type.description,
    ),
    inputSchema: inputSchema({ ...parentId(type), ...propertiesOf(createSchema(type)), ...key }),
    outputSchema: resourceSchema(type),
    annotations: writes,
    scope: type.writeScope,
  };
}

function actionTool(type: ResourceType, action: ResourceAction): CollectionTool {
  return {
    type,
    kind: 'action',
    action,
    name: `${type.item}_${action.name}`,
    title: `${sentence(words(action.name)).slice(0, -1)} ${oneOf(type)}`,
    description: sentences(
      action.description === ''
        ? `Performs ${action.name} on ${oneOf(type)} that the user owns.`
        : action.description,
      action.guard.length === 0 ? '' : `Refused if its state does not allow this: ${action.refusal}`,
    ),
    inputSchema: inputSchema({
      id: idOf(type),
      ...propertiesOf(actionSchema(action.input)),
      ...condition,
      ...key,
    }),
    outputSchema: resourceSchema(type),
    annotations: writes,
    scope: type.writeScope,
  };
}

const readOnly = { readOnlyHint: true, destructiveHint: false, openWorldHint: false };
const writes = { readOnlyHint: false, destructiveHint: false, openWorldHint: false };
const destructive = { readOnlyHint: false, destructiveHint: true, openWorldHint: false };

type Properties = Record<string, TSchema>;

function inputSchema(properties: Properties): TSchema {
  return Type.Object(properties, strict);
}

/** Of an object schema. */
function propertiesOf(schema: TSchema): Properties {
  return (schema as unknown as { properties: Properties }).properties;
}

const condition: Properties = {
  [ifMatchArgument]: Type.Optional(
    Type.String({
      minLength: 1,
      maxLength: 200,
      description: `The ${tagMember} of the version that was read. The change is refused if the resource has changed since.`,
    }),
  ),
};

const key: Properties = {
  [keyArgument]: Type.Optional(
    Type.String({
      pattern: keyPattern,
      minLength: 1,
      maxLength: keyCharactersMax,
      description:
        'A unique text. A repeated call with the same text gets the first result and has no further effect.',
    }),
  ),
};

function idOf({ item }: ResourceType): TSchema {
  return Type.String({ format: 'uuid', description: `The id of the ${words(item)}.` });
}

function parentId({ parent }: ResourceType): Properties {
  return parent === null ? {} : { id: idOf(parent) };
}

function listParameters(type: ResourceType): Properties {
  const sorts = [...new Set(['created_at', ...type.sorts])].flatMap((name) => [name, `-${name}`]);
  const filters = type.filters.map((name) => {
    const field = type.fields.find((candidate) => candidate.name === name);
    return [name, Type.Optional(field === undefined ? Id() : filterSchema(field))] as const;
  });
  return {
    ...Object.fromEntries(filters),
    sort: Type.Optional(
      Type.String({
        enum: sorts,
        default: orderDefault,
        description: 'The order. A leading - means descending.',
      }),
    ),
    limit: Type.Optional(Type.Integer({ minimum: 1, maximum: pageSizeMax, default: pageSizeDefault })),
    after: Type.Optional(
      Type.String({
        pattern: cursorPattern,
        minLength: 1,
        maxLength: cursorCharactersMax,
        description: 'The value of next in the previous page, with the same filters and order.',
      }),
    ),
  };
}

function membersOf(type: ResourceType): Properties {
  return propertiesOf(eventResourceSchema(type));
}

function resourceSchema(type: ResourceType): TSchema {
  return Type.Object({ ...membersOf(type), [tagMember]: Type.String() }, strict);
}

function withParts({ children }: ResourceType): string {
  return children.length === 0 ? '' : `, with its ${children.map(({ name }) => words(name)).join(' and ')}`;
}

function words(name: string): string {
  return name.replaceAll('_', ' ');
}

/** `an article`, `a comment`. */
function oneOf({ item }: ResourceType): string {
  return `${/^(?:[aeio]|u(?!ni|s|t))/.test(item) ? 'an' : 'a'} ${words(item)}`;
}

function sentences(...parts: string[]): string {
  return parts
    .filter((part) => part !== '')
    .map(sentence)
    .join(' ');
}

/** With a capital letter and a full stop. */
function sentence(text: string): string {
  const trimmed = text.trim();
  return `${trimmed.charAt(0).toUpperCase()}${trimmed.slice(1)}${/[.!?]$/.test(trimmed) ? '' : '.'}`;
}
