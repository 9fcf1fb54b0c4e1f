import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';

/**
 * Closes a connection of which nothing is wanted any more, by a reset unless the host has closed it first. Otherwise the system would keep its
 * local port for a minute (`TIME_WAIT`), or until a host that does not read has got everything. There are 28,232 for each address of a host by default,
 * and tenants may have hosts at one, or all connections go to a proxy: one tenant whose host leaves the close to its clients would use
 * them up.
 */
export function closeAtOnce(socket: Socket): void {
  const isPlain = !(socket instanceof TLSSocket);
  if (isPlain && !socket.destroyed && !socket.connecting && !socket.readableEnded) {
    const isWriting = socket.writableLength > 0;
    socket.resetAndDestroy();
    // It waits for what is to be written, which a host may never read.
    if (!isWriting) return;
  }
  socket.destroy();
}
