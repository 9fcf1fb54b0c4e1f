/**
 * Reads request bodies within limits, and stops reading those that are unread or too long. After the response, Node.js would continue to
 * read such a body without limit. A connection stays open if a small Content-Length bounds its body.
 */

import type { IncomingMessage } from 'node:http';
import { Socket } from 'node:net';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { parsedBytesOf } from '../shared/parsed_bytes.ts';
import { serverWork, takeBodyTurn } from './body_turns.ts';
import { overloaded } from './overload/refusal.ts';
import { withoutPlace } from './overload/request_place.ts';
import { Problem } from './problem.ts';

/**
 * How long a connection stays open after the response, without being read. Closing it at once would reset it, and the client
 * might lose the response.
 */
const lingerMs = 1_000;

/**
 * Closes connections whose request body is not read completely. To be called before other hooks that may respond.
 * @param bytesMax a body with a Content-Length up to this is still read after the response
 */
export function closeUnreadBodies(app: FastifyInstance, bytesMax: number): void {
  app.addHook('onRequest', (request, reply, done) => {
    const { raw } = request;
    // The response may close the connection whatever the request asks for.
    if (hasBody(raw)) keepFromReset(raw);
    if (mayBeLong(raw, bytesMax) || !reply.raw.shouldKeepAlive) {
      reply.raw.once('finish', () => stopReading(raw));
    }
    done();
  });
  app.addHook('onSend', (request, reply, _payload, done) => {
    if (mayBeLong(request.raw, bytesMax) && !request.raw.complete) reply.header('connection', 'close');
    done();
  });
}

function hasBody({ headers }: IncomingMessage): boolean {
  return headers['transfer-encoding'] !== undefined || headers['content-length'] !== undefined;
}

function mayBeLong({ headers }: IncomingMessage, bytesMax: number): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > bytesMax;
}

/**
 * Node.js closes the connection with the end of the response. What has arrived and was not read makes that a reset, which can overtake the
 * response: nginx then finds that the node has failed, and sends nobody there for ten seconds.
 */
function keepFromReset(raw: IncomingMessage): void {
  const { socket } = raw;
  socket.destroySoon = () => {
    if (raw.complete) Socket.prototype.destroySoon.call(socket);
    else stopReading(raw);
  };
}

function stopReading(raw: IncomingMessage): void {
  const { socket } = raw;
  if (raw.complete || socket.destroyed) return;
  socket.pause();
  socket.end();
  setTimeout(() => socket.destroy(), lingerMs).unref();
}

/**
 * Reads a body that Fastify does not parse.
 * @throws Problem 413 above the limit, 400 when the client disconnects, 503 if the node is overloaded when it has arrived, or others need its memory
 */
export async function readBody(request: FastifyRequest, bytesMax: number): Promise<Buffer> {
  if (request.raw.complete) return readNow(request, bytesMax);
  return withoutPlace(request, () => readNow(request, bytesMax));
}

/**
 * Makes routes read bodies of a type here instead of in Fastify, which keeps each piece as it came, at some 300 bytes for a chunk of one.
 * @param parse called when the thread has time for it
 */
export function addBodyParser(
  app: FastifyInstance,
  type: string,
  parse: (bytes: Buffer, request: FastifyRequest) => unknown,
): void {
  app.addContentTypeParser(type, async (request: FastifyRequest) => {
    const bytes = await readNow(request, request.routeOptions.bodyLimit ?? 0);
    await bodyTurn(request, bytes.length);
    if (type.endsWith('json')) reserveParsed(request, bytes);
    return parse(bytes, request);
  });
}

/** Usual JSON takes two to five times its text, a list of small objects twelve times, and empty ones more than twenty. */
const parsedBytesPerByteMax = 16;

/**
 * For bodies that have reserved memory.
 * @throws Problem 413 if parsing makes very much of the body, 503 if there is no memory for it
 */
function reserveParsed({ bodyReservation, callerNow }: FastifyRequest, bytes: Buffer): void {
  if (bodyReservation === null || callerNow === null) return;
  const parsedBytes = parsedBytesOf(bytes);
  if (parsedBytes > parsedBytesPerByteMax * bytes.length) throw bodyTooDense();
  if (!bodyReservation.growTo(parsedBytes, callerNow())) throw overloaded();
}

/** Resolves when the thread has time for so many bytes of a request's body. Undefined if they are few. */
export function bodyTurn(request: FastifyRequest, bytes: number): Promise<void> | undefined {
  return takeBodyTurn(request.connectionUser ?? serverWork, bytes);
}

/** A chunk costs some time however short it is. */
const shortPieceBytes = 64;
const shortPiecesMax = 4_096;

/** @throws Problem 413 above the limit, 400 when the client disconnects or sends very many short pieces, 503 if others need its memory */
function readNow({ raw, bodyReservation }: FastifyRequest, bytesMax: number): Promise<Buffer> {
  if (Number(raw.headers['content-length'] ?? 0) > bytesMax) return Promise.reject(bodyTooLarge());
  // It would emit nothing any more.
  if (raw.destroyed) return Promise.reject(bodyIncomplete());
  return new Promise((resolve, reject) => {
    const pieces = new Pieces();
    let shortPieces = 0;
    const end = (error: Problem | null) => {
      raw.off('data', add).off('end', finish).off('error', fail).off('close', fail);
      bodyReservation?.stay();
      if (error === null) return resolve(pieces.joined());
      raw.pause();
      reject(error);
    };
    const add = (piece: Buffer) => {
      pieces.add(piece);
      if (piece.length < shortPieceBytes) shortPieces += 1;
      if (pieces.bytes > bytesMax) end(bodyTooLarge());
      else if (shortPieces > shortPiecesMax) end(tooManyPieces());
    };
    const finish = () => end(null);
    const fail = (cause?: Error) => end(bodyIncomplete(cause));
    raw.on('data', add).on('end', finish).on('error', fail).on('close', fail);
    bodyReservation?.mayBeTakenBack(() => end(overloaded()));
  });
}

/** The pieces of a body. Short ones are copied together, because each is an object of its own; most bodies have one piece. */
class Pieces {
  bytes = 0;
  readonly #parts: Buffer[] = [];
  #block = none;
  #used = 0;

  add(piece: Buffer): void {
    const isFirst = this.bytes === 0;
    this.bytes += piece.length;
    if (isFirst || piece.length >= blockBytes / 2) {
      this.#endBlock();
      this.#parts.push(piece);
      return;
    }
    if (this.#used + piece.length > this.#block.length) {
      this.#endBlock();
      this.#block = Buffer.allocUnsafe(blockBytes);
    }
    this.#used += piece.copy(this.#block, this.#used);
  }

  joined(): Buffer {
    this.#endBlock();
    const [first] = this.#parts;
    return first !== undefined && this.#parts.length === 1 ? first : Buffer.concat(this.#parts, this.bytes);
  }

  #endBlock(): void {
    if (this.#used > 0) this.#parts.push(this.#block.subarray(0, this.#used));
    this.#block = this.#block.subarray(this.#used);
    this.#used = 0;
  }
}

const blockBytes = 8_192;
const none = Buffer.alloc(0);

function bodyIncomplete(cause?: Error): Problem {
  return new Problem(400, 'The body is incomplete.', { code: 'incomplete-body', cause });
}

function tooManyPieces(): Problem {
  return new Problem(400, 'The body is in very many short pieces. Send longer chunks.', {
    code: 'incomplete-body',
    headers: { connection: 'close' },
  });
}

function bodyTooDense(): Problem {
  return new Problem(413, 'The body has too many values for its length.', {
    code: 'body-too-large',
  });
}

/** The connection stays open for what `closeUnreadBodies` still reads: nginx takes a close while it sends for a failure of the node. */
function bodyTooLarge(): Problem {
  return new Problem(413, 'The body is too large for this resource.', { code: 'body-too-large' });
}
