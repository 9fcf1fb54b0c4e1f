/**
 * The check in the shapes that Express, Fastify and bare `node:http` call: each sends a refusal and goes on with
 * the rest. Their types are written out here, so that none of them has to be installed.
 */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Check, Grant } from './check.ts';
import type { Principal } from './claims.ts';
import type { ProtectedRequest } from './credentials.ts';
import type { Refusal } from './refusal.ts';
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
   * Answers the address of the metadata (RFC 9728) and leaves every other request alone: middleware for Express, and
   * for `node:http` a function that says whether it has answered.
   */
  wellKnown(request: IncomingMessage, response: ServerResponse, next?: () => void): boolean;
  /**
   * Who a request speaks for, once it was let through.
   * @param request of Express, of Fastify or of `node:http`
   * @throws Error for a request that was not checked: its route is not protected
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
        if (!outcome.granted) return sendRefusal(response, outcome);
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
        if (!outcome.granted) return sendRefusal(response, outcome);
        admit(outcome, request);
        setHeaders(response, outcome.headers);
        await listener(request, response, outcome.principal);
      };
    },
    wellKnown(request, response, next) {
      const isAsked = request.url?.split('?', 1)[0] === metadata.path;
      if (!isAsked || (request.method !== 'GET' && request.method !== 'HEAD')) {
        next?.();
        return false;
      }
      setHeaders(response, metadata.headers);
      response.end(JSON.stringify(metadata.document));
      return true;
    },
    principal(request) {
      const principal = principals.get(request);
      if (principal === undefined) throw new Error('this request was not checked: protect its route first');
      return principal;
    },
  };
}

function toProtected(request: IncomingMessage, originalUrl?: string): ProtectedRequest {
  return {
    method: request.method ?? '',
    // What a router mounted below a path has cut off belongs to the URL that a proof names.
    url: originalUrl ?? request.url ?? '',
    headers: { ...request.headers, authorization: authorizationsOf(request) },
  };
}

/** Node keeps the first Authorization header and drops every other: two are to be seen as two. */
function authorizationsOf({ rawHeaders }: IncomingMessage): string[] {
  return rawHeaders.filter(
    (_text, index) => index % 2 === 1 && rawHeaders[index - 1]?.toLowerCase() === 'authorization',
  );
}

function sendRefusal(response: ServerResponse, { status, headers, body }: Refusal): void {
  response.statusCode = status;
  setHeaders(response, headers);
  response.end(body);
}

function setHeaders(response: ServerResponse, headers: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
}
