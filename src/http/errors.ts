/**
 * What an error becomes on the wire: problem details (RFC 9457), whoever threw it. Only a `Problem` chooses its
 * own words; of anything unexpected the log alone gets to know.
 */

import { type IncomingMessage, STATUS_CODES } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { FastifyError, FastifyInstance, FastifyReply, FastifyRequest, HTTPMethods } from 'fastify';
import { newId } from '../crypto/ids.ts';
import { CollectorFullError } from '../database/collector.ts';
import { isDatabaseUnavailable } from '../database/database.ts';
import { escapePointer } from './json.ts';
import { type BodyFault, Problem } from './problem.ts';

/** More was asked for at once than waits for the database: by the client itself (429), or by all together (503). */
function tooMuchWaits({ isOwn }: CollectorFullError): Problem {
  const headers = { 'retry-after': '1' };
  return isOwn
    ? new Problem(429, 'Too many of your requests wait for the database.', {
        code: 'too-many-waiting',
        headers,
      })
    : new Problem(503, 'Too many requests wait for the database.', { code: 'overloaded', headers });
}

/** Fastify's error handler. */
export function answerError(error: unknown, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  const problem = toProblem(error);
  if (problem.status >= 500) request.log.error({ err: error }, 'request failed');
  return sendProblem(problem, request, reply);
}

/** For what is not HTTP, or has headers beyond all measure: there is no request yet to answer properly. */
export function answerUnreadable(error: UnreadableError, socket: Socket): void {
  // The other side has gone, or an answer is on its way already.
  if (error.code === 'ECONNRESET' || socket.destroyed || !socket.writable) return;
  if (namesUnknownMethod(error)) {
    refuseMethod(socket);
    return;
  }
  const status =
    error.code === 'HPE_HEADER_OVERFLOW' ? 431 : error.code === 'ERR_HTTP_REQUEST_TIMEOUT' ? 408 : 400;
  sendRaw(socket, new Problem(status, 'The request cannot be read.', { code: 'unreadable-request' }));
}

type UnreadableError = Error & { code?: string; rawPacket?: unknown; bytesParsed?: unknown };

/** Node's parser knows a fixed list of methods. A request with another one is HTTP all the same. */
function namesUnknownMethod({ code, rawPacket, bytesParsed }: UnreadableError): boolean {
  if (code !== 'HPE_INVALID_METHOD' || !Buffer.isBuffer(rawPacket)) return false;
  // Past the first word the packet began with a request that was read, and what follows it is not the method there.
  if (!(Number(bytesParsed) <= rawPacket.indexOf(' '))) return false;
  const start = rawPacket.toString('latin1', 0, requestLineMax);
  return /^[!#$%&'*+.^_`|~0-9A-Za-z-]+ \S+ HTTP\/1\.[01]\r?\n/.test(start);
}

/** Bytes looked at for the request line. */
const requestLineMax = 16_384;

/** Milliseconds that whoever asked for a tunnel has to read the refusal. */
const refusalMs = 1_000;

/**
 * CONNECT asks for a tunnel (RFC 9110 section 9.3.6). Node hands over the bare socket and watches it no more: it must
 * not stay open for as long as the other side likes.
 */
export function refuseConnect(_request: IncomingMessage, socket: Duplex): void {
  socket.on('error', () => {});
  socket.resume();
  setTimeout(() => socket.destroy(), refusalMs).unref();
  refuseMethod(socket);
}

/** RFC 9110 section 9.1: a method that no resource here knows. */
function refuseMethod(socket: Duplex): void {
  sendRaw(socket, new Problem(501, 'This server knows no such method.', { code: 'unknown-method' }));
}

/** Answers where there is no reply to answer with, and closes the connection. */
function sendRaw(socket: Duplex, problem: Problem): void {
  const { status } = problem;
  const body = JSON.stringify(problem.toBody(`urn:uuid:${newId()}`));
  socket.end(
    `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\nContent-Type: application/problem+json\r\n` +
      `Content-Length: ${Buffer.byteLength(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n${body}`,
  );
}

/** Answers with a problem. */
export function sendProblem(problem: Problem, request: FastifyRequest, reply: FastifyReply): FastifyReply {
  reply.code(problem.status).headers(problem.headers);
  // A string leaves the route's response schema out of it.
  reply.serializer(String);
  return reply
    .header('cache-control', 'no-store')
    .type('application/problem+json')
    .send(JSON.stringify(problem.toBody(`urn:uuid:${request.id}`)));
}

/** A problem as a page, for a person who looks at it with a browser. */
export type ProblemPage = (problem: Problem, request: FastifyRequest, reply: FastifyReply) => FastifyReply;

/**
 * 404, or 405 with `Allow` where the path exists for another method (RFC 9110 section 15.5.6).
 * @param showPage how a browser is told that there is nothing
 */
export function answerNotFound(
  app: FastifyInstance,
  request: FastifyRequest,
  reply: FastifyReply,
  showPage: ProblemPage | null,
): FastifyReply {
  const allowed = allowedMethods(app, request);
  if (allowed.length === 0) {
    const problem = new Problem(404, 'There is nothing here.');
    const answer = showPage !== null && wantsPage(request) ? showPage : sendProblem;
    return answer(problem, request, reply);
  }
  const problem = new Problem(405, `This resource knows ${allowed.join(', ')}.`, {
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

/** Browsers name HTML first when somebody follows a link; programs do not name it unless they mean it. */
function wantsPage({ method, url, headers }: FastifyRequest): boolean {
  // RFC 8615: what is looked for there is looked for by programs, whatever they accept.
  if (url.startsWith('/.well-known/')) return false;
  return (method === 'GET' || method === 'HEAD') && /^text\/html\b/.test(headers.accept ?? '');
}

/** What an error is on the wire. */
export function toProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (isDatabaseUnavailable(error)) {
    return new Problem(503, 'The database cannot be reached at the moment.', {
      code: 'database-unavailable',
      headers: { 'retry-after': '5' },
      cause: error,
    });
  }
  if (error instanceof CollectorFullError) return tooMuchWaits(error);
  const { code, statusCode, message, validation, validationContext } = error as FastifyError;
  if (validation !== undefined) {
    const errors = validation.map(toBodyFault);
    if (validationContext === 'body') {
      return new Problem(422, 'The body is not valid.', { code: 'invalid-body', errors });
    }
    return new Problem(400, `The ${validationContext ?? 'request'} is not valid.`, {
      code: 'invalid-request',
      errors,
    });
  }
  switch (code) {
    case 'FST_ERR_CTP_INVALID_MEDIA_TYPE':
      return new Problem(415, 'This resource takes application/json.', { code: 'unsupported-media-type' });
    case 'FST_ERR_CTP_BODY_TOO_LARGE':
      return new Problem(413, 'The body is larger than this resource takes.', { code: 'body-too-large' });
    // Longer than any id: nothing has it.
    case 'FST_ERR_MAX_PARAM_LENGTH':
      return new Problem(404, 'There is nothing here.');
    case 'FST_ERR_CTP_EMPTY_JSON_BODY':
    case 'FST_ERR_CTP_INVALID_JSON_BODY':
      return new Problem(400, 'The body is not JSON.', { code: 'not-json' });
  }
  if (statusCode !== undefined && statusCode >= 400 && statusCode < 500) {
    return new Problem(statusCode, message, { code: 'invalid-request' });
  }
  return new Problem(500, 'Something went wrong here. The request’s id helps to find out what.', {
    cause: error,
  });
}

type ValidationFault = NonNullable<FastifyError['validation']>[number];

/** A fault that Ajv found. A missing or unknown property is named by the pointer where it is (or would be). */
export function toBodyFault({ instancePath, params, message, keyword }: ValidationFault): BodyFault {
  const property = params.missingProperty ?? params.additionalProperty ?? params.unevaluatedProperty;
  const pointer =
    property === undefined ? instancePath : `${instancePath}/${escapePointer(String(property))}`;
  if (keyword === 'required') return { pointer, message: 'is required' };
  if (property !== undefined) return { pointer, message: 'is not a known property' };
  return { pointer, message: message ?? 'is not valid' };
}
