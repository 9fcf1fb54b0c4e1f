/**
 * Bodies that nobody reads, or that are longer than anybody reads. Node goes on reading a body after the response, for
 * as long as it comes: here it stops. A connection whose body is bounded by a small Content-Length is kept.
 */

import type { IncomingMessage } from 'node:http';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { Problem } from './problem.ts';

/**
 * Milliseconds for which a connection stays open, unread, after the response to a body that was not read: closed at
 * once, it would be reset, and the client might not see the response.
 */
const lingerMs = 1_000;

/**
 * Closes connections whose request is not read to its end.
 * @param bytesMax what may still be read after the response, where Content-Length says that it is no more
 */
export function closeUnreadBodies(app: FastifyInstance, bytesMax: number): void {
  app.addHook('onRequest', (request, reply, done) => {
    const { raw } = request;
    if (mayBeLong(raw, bytesMax)) reply.raw.once('finish', () => stopReading(raw));
    done();
  });
  app.addHook('onSend', (request, reply, _payload, done) => {
    if (mayBeLong(request.raw, bytesMax) && !request.raw.complete) reply.header('connection', 'close');
    done();
  });
}

function mayBeLong({ headers }: IncomingMessage, bytesMax: number): boolean {
  return headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > bytesMax;
}

function stopReading(raw: IncomingMessage): void {
  const { socket } = raw;
  if (raw.complete || socket.destroyed) return;
  socket.pause();
  socket.end();
  setTimeout(() => socket.destroy(), lingerMs).unref();
}

/**
 * Reads a body that is not the framework's to read.
 * @throws Problem 413 past the limit, 400 where the client went away
 */
export async function readBody({ raw }: FastifyRequest, bytesMax: number): Promise<Buffer> {
  if (Number(raw.headers['content-length'] ?? 0) > bytesMax) throw bodyTooLarge();
  const chunks: Buffer[] = [];
  let received = 0;
  try {
    for await (const chunk of raw.iterator({ destroyOnReturn: false })) {
      received += (chunk as Buffer).length;
      if (received > bytesMax) throw bodyTooLarge();
      chunks.push(chunk as Buffer);
    }
  } catch (error) {
    if (error instanceof Problem) throw error;
    throw new Problem(400, 'The body did not come as a whole.', { code: 'incomplete-body', cause: error });
  }
  return Buffer.concat(chunks, received);
}

function bodyTooLarge(): Problem {
  return new Problem(413, 'The body is larger than this resource takes.', {
    code: 'body-too-large',
    headers: { connection: 'close' },
  });
}
