/**
 * The API's part of the application: what the answers of all protected resources have in common. They are private
 * to a token, they say so to caches, they take and give JSON, and pages of other origins may read them, because a
 * token that a page has to add itself is nothing that a browser would add on its own.
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { parseJson } from './json.ts';
import { admits, hasOtherCharset, mediaType } from './media_types.ts';
import { Problem } from './problem.ts';

export const mergePatchType = 'application/merge-patch+json';
export const jsonPatchType = 'application/json-patch+json';

/** What PATCH takes; `application/json` is read as a merge patch. */
export const patchTypes = [mergePatchType, jsonPatchType, 'application/json'] as const;

/** Headers of answers that pages of other origins may read. */
const exposedHeaders = [
  'DPoP-Nonce',
  'Deprecation',
  'ETag',
  'Idempotency-Replayed',
  'Link',
  'Location',
  'Nuncio-Version',
  'RateLimit-Limit',
  'RateLimit-Remaining',
  'RateLimit-Reset',
  'Request-Id',
  'Retry-After',
  'Sunset',
  'WWW-Authenticate',
].join(', ');

/** Headers that pages of other origins may send. */
const acceptedHeaders = [
  'Accept',
  'Authorization',
  'Content-Type',
  'DPoP',
  'Idempotency-Key',
  'If-Match',
  'If-Modified-Since',
  'If-None-Match',
  'If-Unmodified-Since',
].join(', ');

/**
 * Registers routes with these rules.
 * @param register is given the part of the application that the rules hold for
 */
export function registerApi(app: FastifyInstance, register: (api: FastifyInstance) => void): void {
  app.register(async (api) => {
    api.addHook('onRequest', async (request, reply) => {
      describe(reply);
      checkAccept(request);
      checkBodyType(request);
    });
    for (const type of [mergePatchType, jsonPatchType]) {
      api.addContentTypeParser(type, { parseAs: 'buffer' }, async (_request: FastifyRequest, body: Buffer) =>
        parseJson(body),
      );
    }
    const methods = new Map<string, Set<string>>();
    api.addHook('onRoute', ({ url, method }) => {
      const known = methods.get(url) ?? new Set(['OPTIONS']);
      for (const each of [method].flat()) known.add(each);
      methods.set(url, known);
    });
    register(api);
    for (const [url, known] of [...methods]) addOptions(api, url, [...known].sort());
  });
}

/** What can be done with a resource, also asked by browsers before a page of another origin does it. */
function addOptions(api: FastifyInstance, url: string, methods: readonly string[]): void {
  const allowed = methods.join(', ');
  api.options(url, async (request, reply) => {
    reply.code(204).header('allow', allowed);
    if (methods.includes('PATCH')) reply.header('accept-patch', patchTypes.join(', '));
    if (request.headers['access-control-request-method'] !== undefined) {
      reply.header('access-control-allow-methods', allowed);
      reply.header('access-control-allow-headers', acceptedHeaders);
      reply.header('access-control-max-age', '7200');
    }
  });
}

/** Headers of every answer; an error that must not be kept says so later. */
function describe(reply: FastifyReply): void {
  reply.header('cache-control', 'private, no-cache');
  reply.header('vary', 'Authorization, Accept');
  reply.header('access-control-allow-origin', '*');
  reply.header('access-control-expose-headers', exposedHeaders);
}

const eventStreamType = 'text/event-stream';

/** Whether the request wants server-sent events instead of JSON, by name. */
export function asksForEvents({ headers: { accept = '' } }: FastifyRequest): boolean {
  return accept.toLowerCase().includes(eventStreamType) && admits(accept, eventStreamType);
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route also answers with server-sent events. */
    streamsEvents?: boolean;
    /** Media types that the route takes, where it does not take JSON. */
    takes?: readonly string[];
  }
}

function checkAccept(request: FastifyRequest): void {
  if (request.routeOptions.config.streamsEvents === true && asksForEvents(request)) return;
  if (admits(request.headers.accept, 'application/json')) return;
  throw new Problem(406, 'This resource is given as application/json.', { code: 'not-acceptable' });
}

/** RFC 9110 section 15.5.16: a 415 says what would have been taken. */
function checkBodyType(request: FastifyRequest): void {
  const { 'content-type': header, 'content-encoding': encoding } = request.headers;
  if (encoding !== undefined && encoding.toLowerCase() !== 'identity') {
    throw new Problem(415, 'Bodies are taken as they are, without a content encoding.', {
      code: 'unsupported-media-type',
      headers: { 'accept-encoding': 'identity' },
    });
  }
  const taken: readonly string[] =
    request.routeOptions.config.takes ?? (request.method === 'PATCH' ? patchTypes : ['application/json']);
  const type = mediaType(header);
  // Of what is not there the type is of no account.
  if (!hasBody(request)) return;
  if (type !== undefined && taken.includes(type) && !hasOtherCharset(header as string)) return;
  throw new Problem(415, `This resource takes ${taken.join(', ')}.`, {
    code: 'unsupported-media-type',
    headers: request.method === 'PATCH' ? { 'accept-patch': taken.join(', ') } : { accept: taken.join(', ') },
  });
}

function hasBody(request: FastifyRequest): boolean {
  const { 'content-length': length, 'transfer-encoding': transfer } = request.headers;
  return transfer !== undefined || (length !== undefined && length !== '0');
}
