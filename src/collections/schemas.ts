/**
 * JSON Schemas of requests and responses, derived from a resource type. The same schemas validate bodies and appear in the
 * reference.
 */

import Type, { type TSchema } from 'typebox';
import { Link } from '../http/describe.ts';
import { Id, named, StringEnum, strict, Time } from '../http/schema.ts';
import { patchOperationsMax } from './json_patch.ts';
import { type Field, isChangeable, type ResourceType } from './resource_type.ts';

/** The members of a resource in a response, without `_links`. */
function members(type: ResourceType): Record<string, TSchema> {
  const result: Record<string, TSchema> = { id: Id() };
  for (const field of type.fields) result[field.name] = field.schema;
  result.author = Id();
  result.created_at = Time();
  if (isChangeable(type)) result.updated_at = Time();
  return result;
}

/** A resource in an event body. */
export function eventResourceSchema(type: ResourceType): TSchema {
  return Type.Object(members(type));
}

/** The schema that `?expand=` embeds, a resource or a page, by link name. */
export type EmbeddedSchemas = Readonly<Record<string, TSchema>>;

/** A resource in a response. */
export function resourceSchema(type: ResourceType, embedded: EmbeddedSchemas): TSchema {
  return Type.Object({ ...members(type), _links: linksSchema(type), ...embeddedMember(embedded) }, strict);
}

/** All members are optional: a request may not expand them, and permissions may have changed. */
function embeddedMember(embedded: EmbeddedSchemas): Record<string, TSchema> {
  const schemas = Object.entries(embedded).map(([name, schema]) => [name, Type.Optional(schema)]);
  if (schemas.length === 0) return {};
  const members = Object.fromEntries(schemas) as Record<string, TSchema>;
  return { _embedded: Type.Optional(Type.Object(members, strict)) };
}

/** A resource with only the members that `?fields=` names. */
export function selectionSchema(type: ResourceType, embedded: EmbeddedSchemas): TSchema {
  const { id, ...rest } = members(type);
  const selectable = Object.entries(rest).map(([name, schema]) => [name, Type.Optional(schema)]);
  return Type.Object(
    {
      id: id as TSchema,
      ...(Object.fromEntries(selectable) as Record<string, TSchema>),
      _links: linksSchema(type),
      ...embeddedMember(embedded),
    },
    strict,
  );
}

/** A page of a list. */
export function listSchema(item: TSchema): TSchema {
  const links = Type.Object({ self: Link, next: Type.Optional(Link) }, strict);
  return Type.Object({ items: Type.Array(item), _links: links }, strict);
}

/** RFC 7396: any writable members; null removes a member. */
export function mergePatchSchema(type: ResourceType): TSchema {
  const properties: Record<string, TSchema> = {};
  for (const field of type.fields) {
    if (field.set !== 'client') continue;
    const schema = withoutDefault(field.schema);
    const isRemovable = field.nullable || field.default !== undefined;
    const part = field.column === 'jsonb' ? mergePart(schema) : schema;
    properties[field.name] = Type.Optional(isRemovable ? Type.Union([part, Type.Null()]) : part);
  }
  return Type.Object(properties, strict);
}

/** RFC 7396: objects are merged member by member. The result must match the field's own schema. */
function mergePart(schema: TSchema): TSchema {
  const { anyOf, properties, required, ...rest } = schema as {
    anyOf?: TSchema[];
    properties?: Record<string, TSchema>;
    required?: string[];
  };
  if (anyOf !== undefined) return { ...rest, anyOf: anyOf.map(mergePart) } as TSchema;
  if (properties === undefined) return schema;
  const members = Object.entries(properties).map(([name, member]) => {
    const part = mergePart(member);
    return [name, required?.includes(name) ? part : Type.Union([part, Type.Null()])];
  });
  return { ...rest, properties: Object.fromEntries(members) } as TSchema;
}

/** The values to filter by: all values of the field except null, which query text cannot express. */
export function filterSchema(field: Field): TSchema {
  const { anyOf, ...rest } = withoutDefault(field.schema) as { anyOf?: { type?: string }[] };
  const parts = anyOf?.filter(({ type }) => type !== 'null');
  if (parts === undefined) return rest as TSchema;
  return (parts.length === 1 ? { ...rest, ...parts[0] } : { ...rest, anyOf: parts }) as TSchema;
}

function withoutDefault(schema: TSchema): TSchema {
  const { default: _, ...rest } = schema as { default?: unknown };
  return rest;
}

function linksSchema(type: ResourceType): TSchema {
  const links: Record<string, TSchema> = { self: Link };
  if (type.parent !== null) links[type.parent.item] = Link;
  for (const child of type.children) links[child.name] = Link;
  for (const action of type.actions) links[action.name] = Type.Optional(Link);
  return Type.Object(links, strict);
}

/** The body of POST. */
export function createSchema(type: ResourceType): TSchema {
  return bodySchema(type.fields.filter((field) => field.set !== 'server'));
}

/** The body of PUT: all fields that a client may change. */
export function replaceSchema(type: ResourceType): TSchema {
  return bodySchema(type.fields.filter((field) => field.set === 'client'));
}

/** The body of an action. */
export function actionSchema(fields: readonly Field[]): TSchema {
  return bodySchema(fields);
}

function bodySchema(fields: readonly Field[]): TSchema {
  const properties: Record<string, TSchema> = {};
  for (const field of fields) {
    const { name, schema, default: fallback } = field;
    properties[name] = fallback === undefined ? schema : Type.Optional({ ...schema, default: fallback });
  }
  return Type.Object(properties, strict);
}

const pointer = Type.String({ pattern: '^(/([^~]|~[01])*)?$' });

/** RFC 6902. */
export const jsonPatchSchema = named(
  'JsonPatch',
  Type.Array(
    Type.Union([
      Type.Object({
        op: StringEnum('add', 'replace', 'test'),
        path: pointer,
        value: {} as TSchema,
      }),
      Type.Object({ op: StringEnum('remove'), path: pointer }),
      Type.Object({ op: StringEnum('move', 'copy'), path: pointer, from: pointer }),
    ]),
    { maxItems: patchOperationsMax },
  ),
);
