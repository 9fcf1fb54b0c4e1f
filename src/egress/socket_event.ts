import type { Socket } from 'node:net';

/** Milliseconds after which a wait that does not count is looked at again, at least. */
const againMs = 50;

/**
 * Waits for an event of a socket. Destroys the socket on error or timeout.
 * @param waitedMs milliseconds that do not count for the timeout
 */
export function waitForEvent<S extends Socket>(
  socket: S,
  event: 'connect' | 'secureConnect',
  timeoutMs: number,
  toError: (error?: Error) => Error,
  waitedMs: () => number = () => 0,
): Promise<S> {
  const startedAt = performance.now();
  return new Promise((resolve, reject) => {
    const expire = () => {
      const leftMs = startedAt + timeoutMs + waitedMs() - performance.now();
      if (leftMs > 0) timer = setTimeout(expire, Math.max(Math.ceil(leftMs), againMs));
      else fail();
    };
    let timer = setTimeout(expire, timeoutMs);
    const fail = (error?: Error) => {
      clearTimeout(timer);
      socket.destroy();
      reject(toError(error));
    };
    const onClose = () => fail(new Error('the connection was closed'));
    // A second error, and one before the next owner adds its listener, must not be unhandled.
    socket.on('error', () => {});
    socket.once('error', fail).once('close', onClose);
    socket.once(event, () => {
      clearTimeout(timer);
      socket.off('error', fail).off('close', onClose);
      resolve(socket);
    });
  });
}
