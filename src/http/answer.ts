/** An answer: what a handler has to say, before it is sent or kept for an idempotency key. */

import type { FastifyReply } from 'fastify';

export interface Answer {
  status: number;
  headers: Record<string, string>;
  /** JSON text, or null for none. */
  body: string | null;
}

export function sendAnswer(reply: FastifyReply, { status, headers, body }: Answer): FastifyReply {
  reply.code(status).headers(headers);
  if (body === null) return reply.send();
  return reply.type('application/json').send(body);
}
