/**
 * Stops reading request bodies that are unread or too long. After the response, Node.js would continue to read such a body
 * without limit. A connection stays open if a small Content-Length bounds its body.
 */

import type { IncomingMessage } from 'node:http';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { withoutPlace } from './overload/request_place.ts';
import { Problem } from './problem.ts';

/**
 * How long a connection stays open after the response, without being read. Closing it at once would reset it, and the client
 * might lose the response.
 */
const lingerMs = 1_000;

/**
 * Closes connections whose request body is not read completely.
 * @param bytesMax a body with a Content-Length up to this is still read after the response
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
 * Reads a body that Fastify does not parse.
 * @throws Problem 413 above the limit, 400 when the client disconnects, 503 if the node is overloaded when it has arrived
 */
export async function readBody(request: FastifyRequest, bytesMax: number): Promise<Buffer> {
  if (request.raw.complete) return readNow(request, bytesMax);
  return withoutPlace(request, () => readNow(request, bytesMax));
}

async function readNow({ raw }: FastifyRequest, bytesMax: number): Promise<Buffer> {
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
    throw new Problem(400, 'The body is incomplete.', { code: 'incomplete-body', cause: error });
  }
  return Buffer.concat(chunks, received);
}

function bodyTooLarge(): Problem {
  return new Problem(413, 'The body is too large for this resource.', {
    code: 'body-too-large',
    headers: { connection: 'close' },
  });
}
