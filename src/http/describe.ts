/** Building blocks for the descriptions of operations in the API reference. */

import Type, { type TSchema } from 'typebox';
import { mergePatchType } from './api.ts';
import { keyCharactersMax, keyPattern } from './idempotency.ts';
import type { AdmissionRule, BodyDescription, Parameter, ResponseDescription } from './operation.ts';
import { cursorCharactersMax, cursorPattern, pageSizeDefault, pageSizeMax } from './page.ts';
import { Id, named, schemaName, strict } from './schema.ts';

export const Link = named(
  'Link',
  Type.Object({ href: Type.String(), method: Type.Optional(Type.String()) }, strict),
);
export const links = Type.Record(Type.String(), Link);

/** A page of a list, named after its items. */
export function listOf<S extends TSchema>(item: S, maxItems: number | undefined = pageSizeMax) {
  const items = Type.Array(item, maxItems === undefined ? {} : { maxItems });
  return named(`${schemaName(item)}List`, Type.Object({ items, _links: links }, strict));
}

/** Admits every access token with the scopes. */
export function token(...scopes: string[]): AdmissionRule {
  return { audience: 'token', scopes };
}

export function pathParameter(name: string, description: string, schema: TSchema): Parameter {
  return { name, in: 'path', description, schema, required: true };
}

export function idParameter(item: string): Parameter {
  return pathParameter('id', `The id of the ${item}.`, Id());
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

/** @param schema a named schema */
export function jsonBody<S extends TSchema>(
  schema: S,
  example: unknown,
  required = true,
): BodyDescription<S> {
  return { required, types: ['application/json'], schema, example };
}

/** @param schema a named schema */
export function mergePatchBody<S extends TSchema>(schema: S, example: unknown): BodyDescription<S> {
  return { required: true, types: [mergePatchType, 'application/json'], schema, example };
}

const empty = named('EmptyBody', Type.Object({}, strict));
/** Of operations that take no input. */
export const emptyBody = jsonBody(empty, {}, false);

/** The only response of most operations. @param schema a named schema; none for 204 */
export function ok(
  description: string,
  schema: TSchema,
  headers?: readonly string[],
): Record<200, ResponseDescription> {
  return { 200: { description, schema, ...(headers === undefined ? {} : { headers }) } };
}

/** The response with one page of a list. */
export function page(description: string, item: TSchema): Record<200, ResponseDescription> {
  return ok(description, listOf(item), ['Link']);
}

/** Headers of the response to an idempotent POST that creates a resource. */
export const createdHeaders = ['Location', 'Idempotency-Replayed'];
