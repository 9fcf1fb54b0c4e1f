/** An HTTP proxy on loopback that handles `CONNECT` and records its requests. */

import { createServer, type IncomingHttpHeaders } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';

export interface ProxyProcess {
  /** `http://127.0.0.1:<port>`. */
  url: string;
  /** Targets and headers of the `CONNECT` requests. */
  asked: { target: string; headers: IncomingHttpHeaders }[];
  /** Number of requests with another method. */
  others: number;
}

interface Scope {
  after: (hook: () => Promise<void>) => unknown;
}

/** @param answer a response to send instead of connecting, if any */
export async function startEgressProxy(
  scope: Scope,
  answer: (target: string) => string | undefined = () => undefined,
): Promise<ProxyProcess> {
  const sockets = new Set<Socket>();
  const keep = (socket: Socket) => {
    sockets.add(socket.on('error', () => {}).on('close', () => sockets.delete(socket)));
  };
  const proxy: ProxyProcess = { url: '', asked: [], others: 0 };
  const server = createServer((_request, response) => {
    proxy.others += 1;
    response.writeHead(501).end();
  });
  server.on('connection', keep);
  server.on('connect', (request, stream) => {
    const inner = stream as Socket;
    const target = request.url ?? '';
    proxy.asked.push({ target, headers: request.headers });
    const said = answer(target);
    if (said !== undefined) {
      inner.write(said);
      return;
    }
    const { hostname, port } = new URL(`http://${target}`);
    const outer = connect(Number(port) || 80, hostname.replace(/^\[|\]$/g, ''));
    keep(outer);
    outer.once('connect', () => {
      inner.write('HTTP/1.1 200 Connection established\r\nVia: 1.1 test\r\n\r\n');
      inner.pipe(outer).pipe(inner);
    });
    outer.once('error', () => inner.end('HTTP/1.1 502 Bad Gateway\r\n\r\n'));
    inner.once('close', () => outer.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  scope.after(async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  });
  proxy.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return proxy;
}
