/**
 * The event kinds of a collection, one per published life event and action, and their bodies: `{ "article": { … } }`, or
 * `{ "comment": { … }, "article": { "id" } }` for a sub-collection.
 */

import Type, { type TSchema } from 'typebox';
import { defineEventKind, type EventKind } from '../events/kind.ts';
import { exampleIds, exampleResource } from './example.ts';
import type { ResourceType } from './resource_type.ts';
import { eventResourceSchema } from './schemas.ts';

/** Returns the kinds of a type and of its sub-collections. */
export function kindsOf(type: ResourceType): EventKind[] {
  const item = withArticle(type.item);
  const lifeEvents = [...type.events].map((event) => ({
    name: `${type.item}.${event}`,
    description: `${item} was ${event}.`,
    example: exampleResource(type),
  }));
  const emitted = type.actions.flatMap((action) =>
    action.emits === null
      ? []
      : [
          {
            name: action.emits,
            description: `${item} was ${words(action.emits.slice(type.item.length + 1))}.`,
            example: exampleResource(type, action),
          },
        ],
  );
  const kinds = [...lifeEvents, ...emitted].map(({ name, description, example }) =>
    defineEventKind({
      name,
      description,
      object: type.scope,
      schema: bodySchema(type),
      example: eventBody(type, example, exampleIds.parent),
      resource: resourceTemplate(type),
      ...type.bodies,
    }),
  );
  return [...kinds, ...type.children.flatMap(kindsOf)];
}

/** `An article`, `A user`. */
function withArticle(item: string): string {
  return `${/^(?:[aeio]|u(?!ni|s|t))/.test(item) ? 'An' : 'A'} ${words(item)}`;
}

function words(name: string): string {
  return name.replaceAll(/[_-]/g, ' ');
}

export function eventBody(type: ResourceType, resource: Record<string, unknown>, parentId: string): unknown {
  return type.parent === null
    ? { [type.item]: resource }
    : { [type.item]: resource, [type.parent.item]: { id: parentId } };
}

/** The path of the resource in an event's body. */
function resourceTemplate({ name, item, parent }: ResourceType): string {
  const path = `/${name}/{/${item}/id}`;
  return parent === null ? path : `/${parent.name}/{/${parent.item}/id}${path}`;
}

function bodySchema(type: ResourceType): TSchema {
  const members: Record<string, TSchema> = { [type.item]: eventResourceSchema(type) };
  if (type.parent !== null) {
    members[type.parent.item] = Type.Object({ id: Type.String({ format: 'uuid' }) });
  }
  return Type.Object(members);
}
