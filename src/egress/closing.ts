/**
 * Ends of connections to hosts. Who closes a TCP connection first keeps its local port for a minute (`TIME_WAIT`). There are 28,232 for each
 * address of a host by default, and tenants may have hosts at one, or all connections go to a proxy: one tenant whose host leaves the close to
 * its clients would use them up. So the host closes, or the connection is reset.
 *
 *   response → lingering: the host may still read the request, and close → closed by the host
 *                                                                       → reset after two seconds
 *   nothing is wanted any more → reset
 */

import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';

/** Milliseconds for which a host may read the rest of a request to which it has responded. */
const lingerMs = 2_000;
/** Maximum connections of the thread that linger. With more, the oldest is reset. */
const lingeringMax = 2_000;

/** By when they are reset, in this order. */
const lingering = new Map<Socket, number>();
let isTimed = false;

/** Closes a connection of which nothing is wanted any more. */
export function closeAtOnce(socket: Socket): void {
  lingering.delete(socket);
  // That of TLS is below it (checked_stream.ts). A system cannot reset a connection while it shuts it down.
  const isPlain = !(socket instanceof TLSSocket);
  if (isPlain && !socket.destroyed && !socket.connecting && !socket.readableEnded && !socket.writableEnded)
    socket.resetAndDestroy();
  else socket.destroy();
}

/**
 * Closes a connection whose host has responded. The response may be early: what the host has not read yet would be lost with a reset, although the request
 * counts as delivered.
 * @param respondedAt when, in milliseconds of the monotonic clock
 */
export function closeAfterResponse(socket: Socket, respondedAt: number): void {
  const now = performance.now();
  // A system that has ended may still read what it has not been sent yet.
  const hasEnded = socket.readableEnded && socket.writableLength === 0;
  if (socket.destroyed || hasEnded || now - respondedAt >= lingerMs) {
    closeAtOnce(socket);
    return;
  }
  lingering.set(socket, now + lingerMs);
  socket.once('close', () => lingering.delete(socket)).unref();
  const [[oldest] = []] = lingering;
  if (lingering.size > lingeringMax && oldest !== undefined) closeAtOnce(oldest);
  if (!isTimed) resetAfter(lingerMs);
}

function resetAfter(ms: number): void {
  isTimed = true;
  setTimeout(resetOld, ms).unref();
}

function resetOld(): void {
  isTimed = false;
  const now = performance.now();
  for (const [socket, until] of lingering) {
    if (until > now) {
      resetAfter(Math.ceil(until - now));
      return;
    }
    closeAtOnce(socket);
  }
}
