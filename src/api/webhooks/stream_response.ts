/** Begins a response with server-sent events. */

import type { FastifyReply } from 'fastify';

/** Takes over the response and sends its head. */
export function beginStream(reply: FastifyReply): void {
  const headers = reply.getHeaders();
  reply.hijack();
  reply.raw.writeHead(200, {
    ...(headers as Record<string, string>),
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'private, no-store',
    // For proxies that would buffer the response.
    'x-accel-buffering': 'no',
  });
  // Node.js would send the head with the first event.
  reply.raw.flushHeaders();
}
