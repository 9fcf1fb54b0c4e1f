/**
 * Listens on several sockets of one port. A turn of the event loop accepts one connection of each socket (`uv__server_io` of libuv). With one socket, a thousand
 * new connections waited for seconds beside others that are busy, and so did all that came after them: they wait in the kernel, which has no shares.
 *
 * Only Linux divides the connections to a port among sockets of one process. There, another process of the same user could join them without an error, so
 * one that has the port already is looked for just before. Workers of `node:cluster` share the socket of their primary.
 */

import cluster from 'node:cluster';
import { once } from 'node:events';
import { type AddressInfo, createServer, type ListenOptions, type Server, type ServerOpts } from 'node:net';
import type { FastifyInstance } from 'fastify';

const socketsMax = 8;
/**
 * Connections that wait to be accepted at each of several sockets, and at the only one. With Node.js's 511, a burst of new connections overflows the queue of a busy
 * node, and the clients repeat their SYN after 1, 3, 7 and more seconds. Linux limits it to `net.core.somaxconn`, 4,096 by default.
 */
const backlogs = { each: 1_024, only: 4_096 };

/**
 * Opens the port, before which hooks can be added. Closing the application closes it.
 * @throws the system's error if the port is in use
 */
export async function listen(app: FastifyInstance, host: string, port: number): Promise<void> {
  if (process.platform !== 'linux' || cluster.isWorker) {
    await app.listen({ host, port, backlog: backlogs.only });
    return;
  }
  const others = Array.from({ length: socketsMax - 1 }, () => createServer(optionsOf(app)));
  closeWith(app, others);
  await app.ready();
  if (port !== 0) await checkFree({ host, port });
  const options = { host, backlog: backlogs.each, reusePort: true };
  await app.listen({ ...options, port });
  const { address, port: own } = app.server.address() as AddressInfo;
  for (const other of others) {
    other.on('connection', (socket) => app.server.emit('connection', socket));
    await open(other, { ...options, host: address, port: own });
  }
}

async function checkFree(options: ListenOptions): Promise<void> {
  const server = createServer();
  await open(server, options);
  server.close();
  await once(server, 'close');
}

async function open(server: Server, options: ListenOptions): Promise<void> {
  server.listen(options);
  await once(server, 'listening');
}

/** As those of the application's own socket. Node.js keeps them there, but its types do not have them. */
function optionsOf({ server }: FastifyInstance): ServerOpts {
  const { allowHalfOpen, noDelay, highWaterMark } = server as ServerOpts;
  return { allowHalfOpen, noDelay, highWaterMark };
}

function closeWith(app: FastifyInstance, others: readonly Server[]): void {
  let closed: Promise<void>[] = [];
  app.addHook('preClose', async () => {
    closed = others.map((other) => new Promise((resolve) => other.close(() => resolve())));
  });
  // The application's own server closes their idle connections, too.
  app.addHook('onClose', async () => {
    await Promise.all(closed);
  });
}
