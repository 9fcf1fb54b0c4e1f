/**
 * Adapters of the check for Express, Fastify and `node:http`. Each sends the response of a rejected request and passes the
 * others on. The frameworks' types are declared here, so that none of them is a dependency.
 */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Check, Grant } from './check.ts';
import type { Principal } from './claims.ts';
import type { ProtectedRequest } from './credentials.ts';
import type { ErrorResponse } from './error_response.ts';
import type { ResourceMetadata } from './resource_metadata.ts';

export type ExpressMiddleware = (
  request: IncomingMessage & { originalUrl?: string },
  response: ServerResponse,
  next: (error?: unknown) => void,
) => Promise<void>;

export interface FastifyReplyLike {
  code(status: number): unknown;
  headers(headers: Record<string, string>): unknown;
  send(body: string): unknown;
}

export type FastifyHook = (
  request: { raw: IncomingMessage; originalUrl?: string },
  reply: FastifyReplyLike,
) => Promise<unknown>;

export type HttpListener = (request: IncomingMessage, response: ServerResponse) => Promise<void>;

export type ProtectedListener = (
  request: IncomingMessage,
  response: ServerResponse,
  principal: Principal,
) => unknown;

export interface Adapters {
  /** Express: `app.get('/notes', protect.express('read:notes'), handler)`. */
  express(...scopes: string[]): ExpressMiddleware;
  /** Fastify: `app.get('/notes', { onRequest: protect.fastify('read:notes') }, handler)`. */
  fastify(...scopes: string[]): FastifyHook;
  /** `node:http`: `createServer(protect.http(['read:notes'], (request, response, principal) => …))`. */
  http(scopes: readonly string[], listener: ProtectedListener): HttpListener;
  /**
   * Responds to requests for the resource metadata (RFC 9728) and ignores all others. Use it as Express middleware, or with
   * `node:http` as a function that returns whether it has responded.
   */
  wellKnown(request: IncomingMessage, response: ServerResponse, next?: () => void): boolean;
  /**
   * The principal of an authorized request.
   * @param request of Express, Fastify or `node:http`
   * @throws Error if the request was not checked, because its route is not protected
   */
  principal(request: object): Principal;
}

export function createAdapters(check: Check, metadata: ResourceMetadata): Adapters {
  const principals = new WeakMap<object, Principal>();

  function admit(grant: Grant, ...requests: object[]): void {
    for (const request of requests) principals.set(request, grant.principal);
  }

  return {
    express(...scopes) {
      return async (request, response, next) => {
        const outcome = await check(toProtected(request, request.originalUrl), ...scopes);
        if (!outcome.granted) return sendErrorResponse(response, outcome);
        admit(outcome, request);
        setHeaders(response, outcome.headers);
        next();
      };
    },
    fastify(...scopes) {
      return async (request, reply) => {
        const outcome = await check(toProtected(request.raw, request.originalUrl), ...scopes);
        reply.headers({ ...outcome.headers });
        if (!outcome.granted) {
          reply.code(outcome.status);
          return reply.send(outcome.body);
        }
        admit(outcome, request, request.raw);
        return undefined;
      };
    },
    http(scopes, listener) {
      return async (request, response) => {
        const outcome = await check(toProtected(request), ...scopes);
        if (!outcome.granted) return sendErrorResponse(response, outcome);
        admit(outcome, request);
        setHeaders(response, outcome.headers);
        await listener(request, response, outcome.principal);
      };
    },
    wellKnown(request, response, next) {
      const isMetadataPath = request.url?.split('?', 1)[0] === metadata.path;
      if (!isMetadataPath || (request.method !== 'GET' && request.method !== 'HEAD')) {
        next?.();
        return false;
      }
      setHeaders(response, metadata.headers);
      response.end(JSON.stringify(metadata.document));
      return true;
    },
    principal(request) {
      const principal = principals.get(request);
      if (principal === undefined) throw new Error('the request was not checked: protect its route');
      return principal;
    },
  };
}

function toProtected(request: IncomingMessage, originalUrl?: string): ProtectedRequest {
  return {
    method: request.method ?? '',
    // A router that is mounted below a path removes that path from `url`, but the proof contains it.
    url: originalUrl ?? request.url ?? '',
    headers: { ...request.headers, authorization: authorizationHeaders(request) },
  };
}

/** All Authorization headers. `request.headers` contains only the first one. */
function authorizationHeaders({ rawHeaders }: IncomingMessage): string[] {
  return rawHeaders.filter(
    (_text, index) => index % 2 === 1 && rawHeaders[index - 1]?.toLowerCase() === 'authorization',
  );
}

function sendErrorResponse(response: ServerResponse, { status, headers, body }: ErrorResponse): void {
  response.statusCode = status;
  setHeaders(response, headers);
  response.end(body);
}

function setHeaders(response: ServerResponse, headers: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
}
