/** Builds an example resource from the declaration's example values. */

import { now } from './declaration.ts';
import { isChangeable, type ResourceAction, type ResourceType } from './resource_type.ts';

export const exampleIds = {
  resource: '01981f6e-7c5a-7d3e-9f21-3b8a5d0c6e11',
  parent: '01981f6e-6b1f-7a02-8c44-90d7e2f1ab30',
  author: '01981f6d-0f3c-7e1b-a6d5-4c2b1a0f9e88',
};
const exampleTime = '2026-01-02T03:04:05.678Z';

/**
 * Returns an example resource without `_links`.
 * @param action the last action on the resource
 */
export function exampleResource(type: ResourceType, action?: ResourceAction): Record<string, unknown> {
  const resource: Record<string, unknown> = {
    id: type.parent === null ? exampleIds.parent : exampleIds.resource,
  };
  for (const field of type.fields) resource[field.name] = type.example[field.name] ?? field.default ?? null;
  for (const { field, value } of action?.change ?? [])
    resource[field.name] = value === now ? exampleTime : value;
  resource.author = exampleIds.author;
  resource.created_at = exampleTime;
  if (isChangeable(type)) resource.updated_at = exampleTime;
  return resource;
}
