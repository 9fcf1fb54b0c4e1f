/** Building blocks for the descriptions of operations and schemas in the API reference. */

import Type, { type TSchema } from 'typebox';
import { mergePatchType } from './api.ts';
import { keyCharactersMax, keyPattern } from './idempotency.ts';
import type { Operation, Parameter } from './operation.ts';
import { cursorCharactersMax, cursorPattern, pageSizeDefault, pageSizeMax } from './page.ts';

export const Id = () => Type.String({ format: 'uuid' });
export const Time = () => Type.String({ format: 'date-time' });
export const Nullable = <S extends TSchema>(schema: S) => Type.Union([schema, Type.Null()]);
export const StringEnum = (...names: readonly string[]) => ({ type: 'string', enum: names }) as TSchema;
/** For objects without other members. */
export const strict = { additionalProperties: false };
/** Refers to a schema of the reference by name. */
export const reference = (name: string): TSchema => ({ $ref: `#/components/schemas/${name}` });
export const links = Type.Record(Type.String(), reference('Link'));
export const listOf = (name: string) =>
  Type.Object({ items: Type.Array(reference(name), { maxItems: pageSizeMax }), _links: links }, strict);

export function pathParameter(name: string, description: string, schema: TSchema): Parameter {
  return { name, in: 'path', description, schema, required: true };
}

export function queryParameter(name: string, description: string, schema: TSchema): Parameter {
  return { name, in: 'query', description, schema };
}

export const pageParameters: readonly Parameter[] = [
  queryParameter(
    'limit',
    'The maximum number of items on the page.',
    Type.Integer({ minimum: 1, maximum: pageSizeMax, default: pageSizeDefault }),
  ),
  queryParameter(
    'after',
    'The cursor from the `next` link of the same list.',
    Type.String({ pattern: cursorPattern, minLength: 1, maxLength: cursorCharactersMax }),
  ),
];

export const keyParameter: Parameter = {
  name: 'Idempotency-Key',
  in: 'header',
  description:
    'For 24 hours, a repeated request with the same key gets the first response and has no further effect. The same key with a different request gets 422.',
  schema: Type.String({ minLength: 1, maxLength: keyCharactersMax, pattern: keyPattern }),
};

export function jsonBody(schema: string, example: unknown, required = true): NonNullable<Operation['body']> {
  return { required, content: { 'application/json': { schema, example } } };
}

export function mergePatchBody(schema: string, example: unknown): NonNullable<Operation['body']> {
  const content = [mergePatchType, 'application/json'].map((type) => [type, { schema, example }]);
  return { required: true, content: Object.fromEntries(content) };
}

/** Headers of the response to an idempotent POST that creates a resource. */
export const createdHeaders = ['Location', 'Idempotency-Replayed'];
/** Problems of every request with a body. */
export const bodyProblems = [413, 415, 422];
