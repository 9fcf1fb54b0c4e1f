/** Requests to the API, typed by its OpenAPI document. */

import { accessToken, end } from '../session/session.ts';
import type { Operations } from './generated.ts';
import { ApiError } from './problem.ts';

type Empty = Record<string, never>;
type WhereAny<Name extends string, Value> = keyof Value extends never ? unknown : Record<Name, Value>;
type Optional<Name extends string, Value> = keyof Value extends never
  ? unknown
  : Partial<Record<Name, Value>>;
type Body<Value> = [Value] extends [undefined] ? unknown : { body?: Value };

export type RequestInput<Name extends keyof Operations> = WhereAny<'path', Operations[Name]['path']> &
  Optional<'query', Operations[Name]['query']> &
  Body<Operations[Name]['body']> & { signal?: AbortSignal };

type Parameters<Name extends keyof Operations> =
  Empty extends RequestInput<Name> ? [input?: RequestInput<Name>] : [input: RequestInput<Name>];

interface AnyInput {
  path?: Record<string, string>;
  query?: Record<string, string | number | boolean | undefined>;
  body?: unknown;
  signal?: AbortSignal;
}

/**
 * @throws ApiError for an error response
 * @throws TypeError if the server cannot be reached
 */
export async function request<Name extends keyof Operations>(
  name: Name,
  ...[input]: Parameters<Name>
): Promise<Operations[Name]['response']> {
  const [method = '', template = ''] = name.split(' ');
  const { path = {}, query = {}, body, signal } = (input ?? {}) as AnyInput;
  const url = template.replaceAll(/\{(\w+)\}/g, (_all, part: string) => encodeURIComponent(path[part] ?? ''));
  const parameters = new URLSearchParams();
  for (const [key, value] of Object.entries(query))
    if (value !== undefined) parameters.set(key, String(value));
  const headers: Record<string, string> = { accept: 'application/json' };
  // Files are sent with their own type, everything else as JSON.
  const isFile = body instanceof Blob;
  if (isFile) headers['content-type'] = body.type;
  else if (body !== undefined) {
    headers['content-type'] = method === 'PATCH' ? 'application/merge-patch+json' : 'application/json';
  }
  // A retry after a lost response uses the same key, so nothing is done twice.
  if (method === 'POST') headers['idempotency-key'] = crypto.randomUUID();
  const response = await send(parameters.size > 0 ? `${url}?${parameters}` : url, {
    method,
    headers,
    ...(body === undefined ? {} : { body: isFile ? body : JSON.stringify(body) }),
    ...(signal === undefined ? {} : { signal }),
  });
  if (response.status === 204) return null as Operations[Name]['response'];
  return (await response.json()) as Operations[Name]['response'];
}

/**
 * Sends a request with the user's access token. Replaces a refused token once.
 * @throws ApiError for every response that is not 2xx
 */
export async function send(url: string, init: RequestInit): Promise<Response> {
  const token = await accessToken();
  let response = await fetchWith(token, url, init);
  if (response.status === 401) response = await fetchWith(await accessToken(token), url, init);
  if (response.status === 401) end();
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new ApiError(response.status, problem, response.headers.get('request-id'));
}

function fetchWith(token: string, url: string, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set('authorization', `Bearer ${token}`);
  return fetch(url, { ...init, headers, credentials: 'omit', cache: 'no-store' });
}
