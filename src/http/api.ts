/**
 * Rules that all API routes share. Responses are private to a token and marked so for caches. Requests and responses are
 * JSON. Pages of other origins may read responses (CORS): a browser never adds a bearer token by itself.
 */

import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { addBodyParser } from './body_limit.ts';
import { parseJson } from './json.ts';
import { acceptsMediaType, hasOtherCharset, mediaType } from './media_types.ts';
import { bodyTypes, type Operation } from './operation.ts';
import { Problem } from './problem.ts';

export const mergePatchType = 'application/merge-patch+json';
export const jsonPatchType = 'application/json-patch+json';

/** Response headers that pages of other origins may read. */
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

/** Request headers that pages of other origins may send. */
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
 * Registers routes that follow these rules.
 * @param register adds its routes to the given instance
 */
export function registerApi(app: FastifyInstance, register: (api: FastifyInstance) => void): void {
  app.register(async (api) => {
    api.addHook('onRequest', async (request, reply) => {
      setCommonHeaders(request, reply);
      checkAccept(request);
      checkBodyType(request);
    });
    for (const type of [mergePatchType, jsonPatchType]) addBodyParser(api, type, parseJson);
    const methods = new Map<string, Map<string, Operation | undefined>>();
    api.addHook('onRoute', ({ url, method, config }) => {
      const known = methods.get(url) ?? new Map([['OPTIONS', undefined]]);
      for (const each of [method].flat()) known.set(each, config?.operation);
      methods.set(url, known);
    });
    register(api);
    for (const [url, known] of [...methods]) addOptions(api, url, known);
  });
}

/** Adds OPTIONS, which lists the methods of a resource and serves CORS preflight requests. */
function addOptions(
  api: FastifyInstance,
  url: string,
  methods: ReadonlyMap<string, Operation | undefined>,
): void {
  const allowed = [...methods.keys()].sort().join(', ');
  const patch = methods.get('PATCH')?.body;
  api.options(url, async (request, reply) => {
    reply.code(204).header('allow', allowed);
    if (patch !== undefined) reply.header('accept-patch', bodyTypes(patch).join(', '));
    if (request.headers['access-control-request-method'] !== undefined) {
      reply.header('access-control-allow-methods', allowed);
      reply.header('access-control-allow-headers', acceptedHeaders);
      reply.header('access-control-max-age', '7200');
    }
  });
}

/**
 * Secrets are shown in responses to requests that create or change them, so those are never stored. The few GET routes that
 * show one say `no-store` themselves, and so do errors.
 */
function setCommonHeaders({ method }: FastifyRequest, reply: FastifyReply): void {
  const isRead = method === 'GET' || method === 'HEAD';
  reply.header('cache-control', isRead ? 'private, no-cache' : 'no-store');
  reply.header('vary', 'Authorization, Accept');
  reply.header('access-control-allow-origin', '*');
  reply.header('access-control-expose-headers', exposedHeaders);
}

const eventStreamType = 'text/event-stream';

/** Whether `Accept` names server-sent events explicitly. */
export function acceptsEventStream({ headers: { accept = '' } }: FastifyRequest): boolean {
  return accept.toLowerCase().includes(eventStreamType) && acceptsMediaType(accept, eventStreamType);
}

function checkAccept(request: FastifyRequest): void {
  if (request.routeOptions.config.operation?.streamsEvents === true && acceptsEventStream(request)) return;
  if (acceptsMediaType(request.headers.accept, 'application/json')) return;
  throw new Problem(406, 'This resource is available as application/json only.', { code: 'not-acceptable' });
}

/** RFC 9110 section 15.5.16: a 415 lists the accepted types. */
function checkBodyType(request: FastifyRequest): void {
  const { 'content-type': header, 'content-encoding': encoding } = request.headers;
  if (encoding !== undefined && encoding.toLowerCase() !== 'identity') {
    throw new Problem(415, 'Bodies with a content encoding are not accepted.', {
      code: 'unsupported-media-type',
      headers: { 'accept-encoding': 'identity' },
    });
  }
  const { body } = request.routeOptions.config.operation ?? {};
  const accepted = body === undefined ? ['application/json'] : bodyTypes(body);
  const type = mediaType(header);
  // Without a body its type does not matter.
  if (!hasBody(request)) return;
  if (type !== undefined && accepted.includes(type) && !hasOtherCharset(header as string)) return;
  throw new Problem(415, `This resource accepts ${accepted.join(', ')}.`, {
    code: 'unsupported-media-type',
    headers:
      request.method === 'PATCH' ? { 'accept-patch': accepted.join(', ') } : { accept: accepted.join(', ') },
  });
}

function hasBody(request: FastifyRequest): boolean {
  const { 'content-length': length, 'transfer-encoding': transfer } = request.headers;
  return transfer !== undefined || (length !== undefined && length !== '0');
}
