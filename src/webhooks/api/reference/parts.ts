/** Parts that the descriptions of the webhooks operations share. */

import Type, { type TSchema } from 'typebox';
import { Id, links, reference, strict } from '../../../http/describe.ts';
import type { Parameter } from '../../../http/operation.ts';

export {
  bodyProblems,
  createdHeaders,
  Id,
  jsonBody,
  links,
  Nullable,
  reference,
  StringEnum,
  strict,
  Time,
} from '../../../http/describe.ts';

/** Visible ASCII. */
export const EventId = () => Type.String({ pattern: '^[!-~]+$', minLength: 1, maxLength: 255 });
/** An object with arbitrary names, typed so that generated clients know the type of its values. */
export const mapOf = (value: TSchema): TSchema =>
  ({ type: 'object', additionalProperties: value }) as TSchema;
export const listOf = (name: string) =>
  Type.Object({ items: Type.Array(reference(name)), _links: links }, strict);

export const idParameter = (item: string): Parameter => ({
  name: 'id',
  in: 'path',
  description: `The id of the ${item}.`,
  schema: Id(),
  required: true,
});

export const read = ['read:webhooks'];
export const write = ['write:webhooks'];
