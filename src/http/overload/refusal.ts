/**
 * The response to a request that a node refuses because it is overloaded: 503 with `Retry-After`. It is written without Fastify's
 * later stages and from prepared text, because refusals must cost little while a node is overloaded: a problem document, an error of OAuth at its endpoints,
 * or a page for browsers.
 */

import type { FastifyReply, FastifyRequest } from 'fastify';
import type { ProblemPage } from '../errors.ts';
import { Problem } from '../problem.ts';

/** Clients that were refused together should not return together. */
const retrySecondsMax = 5;
const detail = 'This server is overloaded. Nothing was changed. Try again after the seconds in Retry-After.';

const retryAfter = () => String(1 + Math.floor(Math.random() * retrySecondsMax));

export function overloaded(): Problem {
  return new Problem(503, detail, { code: 'overloaded', headers: { 'retry-after': retryAfter() } });
}

const text = {
  oauth: JSON.stringify({
    error: 'temporarily_unavailable',
    error_description: 'the server is overloaded, try again later',
  }),
  /** With a place for the request's id. */
  problem: JSON.stringify(overloaded().toBody('urn:uuid:@')).split('@') as [string, string],
};

/** Sends the response. The body of the request is not read. */
export function refuse(request: FastifyRequest, reply: FastifyReply, page: ProblemPage): void {
  const { accept = '', 'transfer-encoding': encoding } = request.headers;
  if (accept.includes('text/html') && /^text\/html\b/.test(accept)) {
    page(overloaded(), request, reply);
    return;
  }
  const isOAuth = request.routeOptions.url?.startsWith('/oauth/') === true;
  const body = isOAuth ? text.oauth : text.problem.join(request.id);
  const { raw } = reply;
  const headers = reply.getHeaders() as Record<string, string>;
  reply.hijack();
  raw.writeHead(503, {
    ...headers,
    'retry-after': retryAfter(),
    'content-type': isOAuth ? 'application/json' : 'application/problem+json',
    // All of it is ASCII.
    'content-length': body.length,
    'cache-control': 'no-store',
    'access-control-allow-origin': '*',
    'access-control-expose-headers': 'Request-Id, Retry-After',
    // Node.js would read on: a chunked body has no end that is known.
    ...(encoding === undefined ? {} : { connection: 'close' }),
  });
  raw.end(body, 'latin1');
}
