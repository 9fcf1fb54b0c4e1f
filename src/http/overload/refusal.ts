/**
 * The response to a request that a node refuses because it is overloaded: 503 with `Retry-After`. It is written without Fastify's
 * later stages and from prepared text, because refusals must cost little while a node is overloaded: a problem document, an error of OAuth at its endpoints,
 * or a page for browsers.
 */

import type { IncomingMessage, ServerResponse } from 'node:http';
import type { FastifyReply, FastifyRequest } from 'fastify';
import { NoTurnError } from '../../shared/limited_work.ts';
import type { ProblemPage } from '../errors.ts';
import { Problem } from '../problem.ts';

/** Clients that were refused together should not return together. */
const retrySecondsMax = 5;
const detail = 'This server is overloaded. Nothing was changed. Try again after the seconds in Retry-After.';

const retryAfter = () => String(1 + Math.floor(Math.random() * retrySecondsMax));

export function overloaded(): Problem {
  return new Problem(503, detail, { code: 'overloaded', headers: { 'retry-after': retryAfter() } });
}

/** Whether something was not done because this node has too much to do. */
export function isOverloaded(error: unknown): boolean {
  return error instanceof NoTurnError || (error instanceof Problem && error.code === 'overloaded');
}

const text = {
  oauth: JSON.stringify({
    error: 'temporarily_unavailable',
    error_description: 'the server is overloaded, try again later',
  }),
  /** With a place for the request's id. */
  problem: JSON.stringify(overloaded().toBody('urn:uuid:@')).split('@') as [string, string],
};

const sharedHeaders = [
  'cache-control',
  'no-store',
  'access-control-allow-origin',
  '*',
  'access-control-expose-headers',
  'Request-Id, Retry-After',
];
/** Node.js reads so much after the response. */
const bodyBytesMax = 65_536;

/** Sends the response. The body of the request is not read. */
export function refuse(request: FastifyRequest, reply: FastifyReply, page: ProblemPage): void {
  if (wantsPage(request.raw)) {
    page(overloaded(), request, reply);
    return;
  }
  const headers = reply.getHeaders();
  reply.hijack();
  // Node.js would read on: a chunked body has no end that is known.
  if (request.headers['transfer-encoding'] !== undefined) headers.connection = 'close';
  write(request.raw, reply.raw, request.id, Object.entries(headers).flat() as string[]);
}

/**
 * Sends the response to a request before Fastify sees it.
 * @param id of the request @param headers of all responses, as names and values in turn
 */
export function refuseEarly(
  request: IncomingMessage,
  response: ServerResponse,
  id: string,
  headers: readonly string[],
): void {
  write(request, response, id, [...headers, 'request-id', id]);
}

/** Whether Fastify must refuse the request: with a page, or because its body may be too long to be read after the response. */
export function needsFastify(request: IncomingMessage): boolean {
  const { 'transfer-encoding': encoding, 'content-length': length = '0' } = request.headers;
  return encoding !== undefined || Number(length) > bodyBytesMax || wantsPage(request);
}

function wantsPage({ headers: { accept = '' } }: IncomingMessage): boolean {
  return accept.startsWith('text/html');
}

function write(
  { url = '' }: IncomingMessage,
  response: ServerResponse,
  id: string,
  headers: readonly string[],
): void {
  const isOAuth = url.startsWith('/oauth/');
  const body = isOAuth ? text.oauth : text.problem.join(id);
  response.writeHead(503, [
    ...headers,
    ...sharedHeaders,
    'retry-after',
    retryAfter(),
    'content-type',
    isOAuth ? 'application/json' : 'application/problem+json',
    // All of it is ASCII.
    'content-length',
    String(body.length),
  ]);
  response.end(body, 'latin1');
}
