/**
 * The response to a request that a node refuses because it is overloaded: 503 with `Retry-After`. It is written without Fastify's
 * later stages, because refusals must cost little while a node is overloaded: a problem document, an error of OAuth at its endpoints,
 * or a page for browsers.
 */

import { randomInt } from 'node:crypto';
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { ProblemPage } from '../errors.ts';
import { Problem } from '../problem.ts';

/** Clients that were refused together should not return together. */
const retrySecondsMax = 5;
const detail = 'This server is overloaded. Nothing was changed. Try again after the seconds in Retry-After.';

export function overloaded(): Problem {
  const headers = { 'retry-after': String(randomInt(1, retrySecondsMax + 1)) };
  return new Problem(503, detail, { code: 'overloaded', headers });
}

/** Sends the response. The body of the request is not read. */
export function refuse(request: FastifyRequest, reply: FastifyReply, page: ProblemPage): void {
  const problem = overloaded();
  if (/^text\/html\b/.test(request.headers.accept ?? '')) {
    page(problem, request, reply);
    return;
  }
  const isOAuth = request.routeOptions.url?.startsWith('/oauth/') === true;
  const body = JSON.stringify(
    isOAuth
      ? { error: 'temporarily_unavailable', error_description: 'the server is overloaded, try again later' }
      : problem.toBody(`urn:uuid:${request.id}`),
  );
  const headers = reply.getHeaders();
  reply.hijack();
  const { raw } = reply;
  raw.writeHead(503, {
    ...(headers as Record<string, string>),
    ...problem.headers,
    'content-type': isOAuth ? 'application/json' : 'application/problem+json',
    'content-length': Buffer.byteLength(body),
    'cache-control': 'no-store',
    'access-control-allow-origin': '*',
    'access-control-expose-headers': 'Request-Id, Retry-After',
    // Node.js would read on: a chunked body has no end that is known.
    ...(request.headers['transfer-encoding'] === undefined ? {} : { connection: 'close' }),
  });
  raw.end(body);
}
