/** A TCP proxy in front of the database. Tests use it to interrupt connections. */

import type { AddressInfo } from 'node:net';
import { connect, createServer, type Socket } from 'node:net';
import { Transform } from 'node:stream';

export interface DatabaseProxy {
  /** The connection string that goes through the proxy. */
  url: string;
  /** Closes every connection and refuses new ones. */
  cut(): void;
  /** Keeps every connection open but forwards nothing, as if the host had lost power. */
  freeze(): void;
  /** Forwards connections again. */
  mend(): void;
  /** Forwards at most so many bytes per second of each connection to the client. */
  slow(bytesPerSecond: number): void;
  /** Sends new connections to another PostgreSQL. */
  lead(databaseUrl: string): void;
  close(): Promise<void>;
}

/** @param databaseUrl of a PostgreSQL on a Unix socket (`?host=`) or a TCP port */
export async function startDatabaseProxy(databaseUrl: string): Promise<DatabaseProxy> {
  let target = databaseUrl;
  const sockets = new Set<Socket>();
  let isCut = false;
  let bytesPerSecond = Number.POSITIVE_INFINITY;
  const slowed = () =>
    new Transform({
      transform(chunk: Buffer, _encoding, done) {
        if (bytesPerSecond === Number.POSITIVE_INFINITY) done(null, chunk);
        else setTimeout(done, (1_000 * chunk.length) / bytesPerSecond, null, chunk);
      },
    });
  const server = createServer((inner) => {
    if (isCut) return void inner.destroy();
    const outer = connectTo(target);
    for (const [socket, other] of [
      [inner, outer],
      [outer, inner],
    ] as const) {
      sockets.add(socket);
      socket.on('error', () => other.destroy());
      socket.on('close', () => {
        sockets.delete(socket);
        other.destroy();
      });
    }
    inner.pipe(outer);
    outer.pipe(slowed()).pipe(inner);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const url = new URL(databaseUrl);
  url.hostname = '127.0.0.1';
  url.port = String((server.address() as AddressInfo).port);
  url.searchParams.delete('host');
  const cut = () => {
    isCut = true;
    for (const socket of sockets) socket.destroy();
  };
  return {
    url: url.href,
    cut,
    freeze() {
      for (const socket of sockets) socket.pause();
    },
    mend() {
      isCut = false;
      for (const socket of sockets) socket.resume();
    },
    slow(most) {
      bytesPerSecond = most;
    },
    lead(next) {
      target = next;
    },
    async close() {
      cut();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

function connectTo(databaseUrl: string): Socket {
  const url = new URL(databaseUrl);
  const directory = url.searchParams.get('host');
  const port = Number(url.port || 5432);
  return directory === null ? connect(port, url.hostname) : connect(`${directory}/.s.PGSQL.${port}`);
}
