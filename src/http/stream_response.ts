/** Responses with server-sent events: their head, slow clients, and their end. */

import { setTimeout as sleep } from 'node:timers/promises';
import type { FastifyReply } from 'fastify';

/** More is sent when the client has left no more than this unread. */
const unreadBytesMax = 262_144;
/** A client that takes nothing for so long is disconnected. */
const stalledMsMax = 60_000;
/** Milliseconds for the last words to a slow client. */
const farewellMs = 500;

/**
 * Takes over the response and sends its head.
 * @param stream aborted when the connection closes, also if it is closed already
 */
export function beginStream(reply: FastifyReply, stream: AbortController): void {
  reply.raw.on('close', () => stream.abort());
  if (reply.raw.destroyed) stream.abort();
  const headers = reply.getHeaders();
  reply.hijack();
  // Open streams have limits of their own (stream_slots.ts), and each page takes a place again (`workForStream`).
  reply.request.place?.leave();
  // A stream keeps nothing of its request's body.
  reply.request.bodyReservation?.release();
  reply.raw.writeHead(200, {
    ...(headers as Record<string, string>),
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'private, no-store',
    // A server that stops would otherwise wait for the client to close the connection.
    connection: 'close',
    // For proxies that would buffer the response.
    'x-accel-buffering': 'no',
  });
  // Node.js would send the head with the first event.
  reply.raw.flushHeaders();
}

/** Waits until the client has taken enough. Disconnects it if it takes too long. @returns false if the stream ends */
export async function hasRoom(raw: FastifyReply['raw'], signal: AbortSignal): Promise<boolean> {
  const begunAt = performance.now();
  for (let pauseMs = 1; raw.writableLength > unreadBytesMax && !signal.aborted; ) {
    if (performance.now() - begunAt > stalledMsMax) {
      raw.destroy();
      return false;
    }
    await sleep(pauseMs, undefined, { signal }).catch(() => {});
    pauseMs = Math.min(pauseMs * 2, 100);
  }
  return !signal.aborted;
}

/** Sends the last event. A client that does not take it soon is disconnected. */
export async function endStream(raw: FastifyReply['raw'], text: string): Promise<void> {
  const isTaken = new Promise<void>((resolve) => {
    raw.end(text, resolve);
  });
  const isLate = Symbol('late');
  const cancelled = new AbortController();
  const timeout = sleep(farewellMs, isLate, { signal: cancelled.signal }).catch(() => undefined);
  if ((await Promise.race([isTaken, timeout])) === isLate) raw.destroy();
  cancelled.abort();
}
