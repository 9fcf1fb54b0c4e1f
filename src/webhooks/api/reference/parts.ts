/** What the descriptions of the webhooks' operations share. */

import Type, { type TSchema } from 'typebox';
import type { Parameter } from '../../../http/operation.ts';

export const Id = () => Type.String({ format: 'uuid' });
/** Visible ASCII. */
export const EventId = () => Type.String({ pattern: '^[!-~]+$', minLength: 1, maxLength: 255 });
export const Time = () => Type.String({ format: 'date-time' });
export const Maybe = <S extends TSchema>(schema: S) => Type.Union([schema, Type.Null()]);
export const Named = (...names: readonly string[]) => ({ type: 'string', enum: names }) as TSchema;
export const strict = { additionalProperties: false };
export const reference = (name: string): TSchema => ({ $ref: `#/components/schemas/${name}` });
/** An object with whatever names; programs made from the document know the type of its values. */
export const mapOf = (value: TSchema): TSchema =>
  ({ type: 'object', additionalProperties: value }) as TSchema;
export const links = Type.Record(Type.String(), reference('Link'));
export const listOf = (name: string) =>
  Type.Object({ items: Type.Array(reference(name)), _links: links }, strict);

export const idParameter = (item: string): Parameter => ({
  name: 'id',
  in: 'path',
  description: `Which ${item}.`,
  schema: Id(),
  required: true,
});

export const read = ['read:webhooks'];
export const write = ['write:webhooks'];
export const jsonBody = (schema: string, example: unknown, required = true) => ({
  required,
  content: { 'application/json': { schema, example } },
});
/** Headers of what was made, and is shown again to who comes with the same key. */
export const madeOnce = ['Location', 'Idempotency-Replayed'];
export const bodyProblems = [413, 415, 422];
