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
  const lifeEvents = [...type.events].map((event) => ({
    name: `${type.item}.${event}`,
    description: `A resource of ${type.name} was ${event}.`,
    example: exampleResource(type),
  }));
  const emitted = type.actions.flatMap((action) =>
    action.emits === null
      ? []
      : [
          {
            name: action.emits,
            description: action.description || `The action ${action.name} was performed.`,
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
    }),
  );
  return [...kinds, ...type.children.flatMap(kindsOf)];
}

export function eventBody(type: ResourceType, resource: Record<string, unknown>, parentId: string): unknown {
  return type.parent === null
    ? { [type.item]: resource }
    : { [type.item]: resource, [type.parent.item]: { id: parentId } };
}

function bodySchema(type: ResourceType): TSchema {
  const members: Record<string, TSchema> = { [type.item]: eventResourceSchema(type) };
  if (type.parent !== null) {
    members[type.parent.item] = Type.Object({ id: Type.String({ format: 'uuid' }) });
  }
  return Type.Object(members);
}
