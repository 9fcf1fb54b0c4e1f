/**
 * Turns errors into problem documents (RFC 9457). Only a `Problem` chooses its own text. Details of unexpected errors go to
 * the log only.
 */

import { type IncomingMessage, STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { FastifyError, FastifyInstance, FastifyReply, FastifyRequest, HTTPMethods } from 'fastify';
import { newId } from '../crypto/ids.ts';
import { BatcherFullError } from '../database/batcher.ts';
import { isDatabaseUnavailable, isForNewerNodes, isLockFailure } from '../database/database.ts';
import { ConnectionShareError } from '../database/fair_pool.ts';
import { NoTurnError } from '../shared/limited_work.ts';
import { Problem } from './problem.ts';

/** Too many requests are waiting for the database: those of this client (429), or of all clients (503). */
function tooManyWaiting(isOwn: boolean): Problem {
  const headers = { 'retry-after': '1' };
  return isOwn
    ? new Problem(429, 'Too many of your requests are waiting for the database.', {
        code: 'too-many-waiting',
        headers,
      })
    : new Problem(503, 'Too many requests are waiting for the database.', { code: 'overloaded', headers });
}

/** Whether the operator should know. Requests of users make each other `busy`. */
export function isFault({ status, code }: Problem): boolean {
  return status >= 500 && code !== 'busy';
}

export const notFoundDetail = 'Nothing was found at this address.';

/** Fastify's error handler. */
export function handleError(error: unknown, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  const problem = toProblem(error);
  // A node that starts or stops is not ready. Operators alert on errors.
  if (problem.code === 'workers-down') request.log.warn({ reason: problem.message }, 'not ready');
  else if (isFault(problem)) request.log.error({ err: error }, 'request failed');
  return sendProblem(problem, request, reply);
}

/** Handles input that is not valid HTTP or has too large headers. No Fastify request exists yet. */
export function handleClientError(error: UnreadableError, socket: Socket): void {
  // The client disconnected, or a response has begun.
  if (error.code === 'ECONNRESET' || socket.destroyed || !socket.writable) return;
  if (namesUnknownMethod(error)) {
    rejectMethod(socket);
    return;
  }
  const status =
    error.code === 'HPE_HEADER_OVERFLOW' ? 431 : error.code === 'ERR_HTTP_REQUEST_TIMEOUT' ? 408 : 400;
  sendRaw(socket, new Problem(status, 'The request cannot be read.', { code: 'unreadable-request' }));
}

type UnreadableError = Error & { code?: string; rawPacket?: unknown; bytesParsed?: unknown };

/** Node.js's parser accepts a fixed list of methods. A request with another method is still valid HTTP. */
function namesUnknownMethod({ code, rawPacket, bytesParsed }: UnreadableError): boolean {
  if (code !== 'HPE_INVALID_METHOD' || !Buffer.isBuffer(rawPacket)) return false;
  // If parsing got beyond the first word, the packet began with a valid request, and the unknown method is a later one.
  if (!(Number(bytesParsed) <= rawPacket.indexOf(' '))) return false;
  const start = rawPacket.toString('latin1', 0, requestLineMax);
  return /^[!#$%&'*+.^_`|~0-9A-Za-z-]+ \S+ HTTP\/1\.[01]\r?\n/.test(start);
}

/** Bytes searched for the request line. */
const requestLineMax = 16_384;

/** Milliseconds for which a client may read a response that is written to its socket. */
const lingerMs = 2_000;

/** Rejects CONNECT, which asks for a tunnel (RFC 9110 section 9.3.6). Node.js hands over the raw socket. */
export function rejectConnect(_request: IncomingMessage, socket: Duplex): void {
  socket.on('error', () => {});
  socket.resume();
  rejectMethod(socket);
}

/** RFC 9110 section 9.1: 501 for a method that no resource supports. */
function rejectMethod(socket: Duplex): void {
  sendRaw(socket, new Problem(501, 'This server does not support the method.', { code: 'unknown-method' }));
}

/** Writes a response directly to the socket and closes it. Node.js would wait without end for a client that does not close its side. */
function sendRaw(socket: Duplex, problem: Problem): void {
  const { status } = problem;
  setTimeout(() => socket.destroy(), lingerMs).unref();
  const body = JSON.stringify(problem.toBody(`urn:uuid:${newId()}`));
  socket.end(
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nContent-Type: application/problem+json\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n${body}`,
  );
}

function sendProblem(problem: Problem, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  reply.code(problem.status).headers(problem.headers);
  // Bypass the response schema of the route.
  reply.serializer(String);
  return reply
    .header('cache-control', 'no-store')
    .type('application/problem+json')
    .send(JSON.stringify(problem.toBody(`urn:uuid:${request.id}`)));
}

/** Renders a problem as a page for browsers. */
export type ProblemPage = (problem: Problem, request: FastifyRequest, reply: FastifyReply) => FastifyReply;

/**
 * Responds 404, or 405 with `Allow` if the path exists for another method (RFC 9110 section 15.5.6).
 * @param showPage renders 404 for browsers
 */
export function handleNotFound(
  app: FastifyInstance,
  request: FastifyRequest,
  reply: FastifyReply,
  showPage: ProblemPage | null,
): FastifyReply {
  const allowed = allowedMethods(app, request);
  if (allowed.length === 0) {
    const problem = new Problem(404, notFoundDetail);
    const send = showPage !== null && wantsPage(request) ? showPage : sendProblem;
    return send(problem, request, reply);
  }
  const problem = new Problem(405, `This resource supports ${allowed.join(', ')}.`, {
    headers: { allow: allowed.join(', ') },
  });
  return sendProblem(problem, request, reply);
}

function allowedMethods(app: FastifyInstance, request: FastifyRequest): string[] {
  const path = request.url.split('?', 1)[0] ?? '/';
  const methods: HTTPMethods[] = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'];
  return methods.filter(
    (method) => method !== request.method && app.findRoute({ method, url: path }) !== null,
  );
}

/** Browsers put HTML first in `Accept`; programs usually do not name it. */
function wantsPage({ method, url, headers }: FastifyRequest): boolean {
  // RFC 8615: only programs read well-known URIs.
  if (url.startsWith('/.well-known/')) return false;
  return (method === 'GET' || method === 'HEAD') && /^text\/html\b/.test(headers.accept ?? '');
}

export function toProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (isDatabaseUnavailable(error)) {
    return new Problem(503, 'The database is currently unavailable.', {
      code: 'database-unavailable',
      headers: { 'retry-after': '5' },
      cause: error,
    });
  }
  if (error instanceof BatcherFullError) return tooManyWaiting(error.isOwn);
  if (error instanceof ConnectionShareError) return tooManyWaiting(true);
  if (error instanceof NoTurnError) {
    return new Problem(503, 'Other requests of this kind take too long. Try again.', {
      code: 'overloaded',
      headers: { 'retry-after': '5' },
      cause: error,
    });
  }
  if (isLockFailure(error)) {
    return new Problem(503, 'Another request is changing the same. Try again.', {
      code: 'busy',
      headers: { 'retry-after': '1' },
      cause: error,
    });
  }
  if (isForNewerNodes(error)) {
    return new Problem(
      503,
      'A node of an earlier version is still running and cannot serve this subscription. Try again after the upgrade.',
      { code: 'upgrade-running', headers: { 'retry-after': '30' }, cause: error },
    );
  }
  const { code, statusCode, message } = error as FastifyError;
  switch (code) {
    case 'FST_ERR_CTP_INVALID_MEDIA_TYPE':
      return new Problem(415, 'This resource accepts application/json.', { code: 'unsupported-media-type' });
    case 'FST_ERR_CTP_BODY_TOO_LARGE':
      return new Problem(413, 'The body is too large for this resource.', { code: 'body-too-large' });
    // The parameter is longer than any id.
    case 'FST_ERR_MAX_PARAM_LENGTH':
      return new Problem(404, notFoundDetail);
    case 'FST_ERR_CTP_EMPTY_JSON_BODY':
    case 'FST_ERR_CTP_INVALID_JSON_BODY':
      return new Problem(400, 'The body is not JSON.', { code: 'not-json' });
  }
  if (statusCode !== undefined && statusCode >= 400 && statusCode < 500) {
    return new Problem(statusCode, message, { code: 'invalid-request' });
  }
  return new Problem(
    500,
    'An internal error occurred. The server’s log has details under the id of this request.',
    {
      cause: error,
    },
  );
}
