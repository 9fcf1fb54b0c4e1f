/** A handler's response, before it is sent or stored for an idempotency key. */

import type { FastifyReply } from 'fastify';

export interface JsonResponse {
  status: number;
  headers: Record<string, string>;
  /** JSON text, or null for none. */
  body: string | null;
}

export function sendResponse(reply: FastifyReply, { status, headers, body }: JsonResponse): FastifyReply {
  reply.code(status).headers(headers);
  if (body === null) return reply.send();
  return reply.type('application/json').send(body);
}
