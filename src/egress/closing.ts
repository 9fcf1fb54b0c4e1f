/**
 * Ends of connections to hosts. Who closes a TCP connection first keeps its local port for a minute (`TIME_WAIT`). There are 28,232 for each
 * address of a host by default, and tenants may have hosts at one, or all connections go to a proxy: one tenant whose host leaves the close to
 * its clients would use them up. So the host closes, or the connection is reset.
 *
 *   response → lingering: the host may still read the request, and close → closed by the host
 *                                                                       → reset after two seconds, or when a tunnel needs its place
 *   nothing is wanted any more → reset
 */

import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';

/** Milliseconds for which a host may read the rest of a request to which it has responded. */
const lingerMs = 2_000;
/** Maximum connections of the thread that linger. With more, the oldest is reset. */
const lingeringMax = 2_000;

interface Lingering {
  /** When it is reset. */
  until: number;
  /** Whose connection it is. */
  tenant: string | null;
}

/** In the order in which they are reset. */
const lingering = new Map<Socket, Lingering>();
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
export function closeAfterResponse(socket: Socket, respondedAt: number, tenant: string | null): void {
  const now = performance.now();
  // A system that has ended may still read what it has not been sent yet.
  const hasEnded = socket.readableEnded && socket.writableLength === 0;
  if (socket.destroyed || hasEnded || now - respondedAt >= lingerMs) {
    closeAtOnce(socket);
    return;
  }
  lingering.set(socket, { until: now + lingerMs, tenant });
  socket.once('close', () => lingering.delete(socket)).unref();
  const [[oldest] = []] = lingering;
  if (lingering.size > lingeringMax && oldest !== undefined) closeAtOnce(oldest);
  if (!isTimed) resetAfter(lingerMs);
}

export function lingeringCount(): number {
  return lingering.size;
}

/** Resets the connection that has lingered for longest. @param tenant whose; null for anybody's @returns whether there was one */
export function resetLingering(tenant: string | null): boolean {
  for (const [socket, each] of lingering) {
    if (tenant !== null && each.tenant !== tenant) continue;
    closeAtOnce(socket);
    return true;
  }
  return false;
}

function resetAfter(ms: number): void {
  isTimed = true;
  setTimeout(resetOld, ms).unref();
}

function resetOld(): void {
  isTimed = false;
  const now = performance.now();
  for (const [socket, { until }] of lingering) {
    if (until > now) {
      resetAfter(Math.ceil(until - now));
      return;
    }
    closeAtOnce(socket);
  }
}
