/**
 * The egress proxy, an optional setting of the operator (proxy environment variables are ignored). Every connection, also
 * for `http`, is a tunnel (`CONNECT`, RFC 9110 section 9.3.6). The proxy gets a checked address, never a host name, so that
 * its own name resolution cannot lead elsewhere. The address that the proxy really connects to cannot be verified.
 */

import { connect, isIPv6, type Socket } from 'node:net';
import { closeAtOnce } from './closing.ts';
import { EgressError } from './error.ts';

/** Maximum size of the proxy's response to `CONNECT`, in bytes. */
const responseBytesMax = 16_384;

/** Address and credentials of the proxy. */
export interface EgressProxy {
  host: string;
  port: number;
  /** The value of `Proxy-Authorization`; null for none. */
  authorization: string | null;
  /** Connections that may be open at once. */
  connectionsMax: number;
}

/** @param url `http://host:port`, optionally with credentials; validated by config.ts @param connectionsMax that may be open at once */
export function readEgressProxy(url: string, connectionsMax: number): EgressProxy {
  const { hostname, port, username, password } = new URL(url);
  const credentials = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`;
  return {
    host: hostname.startsWith('[') ? hostname.slice(1, -1) : hostname,
    port: Number(port) || 80,
    authorization: username === '' ? null : `Basic ${Buffer.from(credentials).toString('base64')}`,
    connectionsMax,
  };
}

/**
 * Opens a connection through the proxy to the first reachable address, IPv4 first.
 * @param addresses checked addresses
 * @param timeoutMs total timeout
 * @throws EgressError `connect_error` or `connect_timeout`, with the proxy's response as its `cause`
 */
export async function openTunnel(
  proxy: EgressProxy,
  addresses: readonly string[],
  port: number,
  timeoutMs: number,
): Promise<{ socket: Socket; address: string }> {
  const deadline = performance.now() + timeoutMs;
  const ordered = [...addresses].sort((a, b) => Number(isIPv6(a)) - Number(isIPv6(b)));
  let lastError: EgressError | undefined;
  for (const address of ordered) {
    try {
      return { socket: await requestTunnel(proxy, address, port, deadline - performance.now()), address };
    } catch (error) {
      lastError = error as EgressError;
      if (lastError.code === 'connect_timeout') break;
    }
  }
  throw lastError ?? new EgressError('connect_error');
}

function requestTunnel(
  proxy: EgressProxy,
  address: string,
  port: number,
  timeoutMs: number,
): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>();
  const socket = connect({ host: proxy.host, port: proxy.port, noDelay: true, keepAlive: true });
  const fail = (code: 'connect_error' | 'connect_timeout', cause?: Error) => {
    clearTimeout(timer);
    closeAtOnce(socket);
    reject(new EgressError(code, { cause }));
  };
  const timer = setTimeout(() => fail('connect_timeout'), Math.max(timeoutMs, 0));
  const onError = (error: Error) => fail('connect_error', error);
  const onClose = () => fail('connect_error', new Error('the proxy closed the connection'));
  const target = `${isIPv6(address) ? `[${address}]` : address}:${port}`;
  const head = [`CONNECT ${target} HTTP/1.1`, `Host: ${target}`];
  if (proxy.authorization !== null) head.push(`Proxy-Authorization: ${proxy.authorization}`);
  socket.once('connect', () => socket.write(`${head.join('\r\n')}\r\n\r\n`));
  let response = Buffer.alloc(0);
  const onData = (chunk: Buffer) => {
    response = Buffer.concat([response, chunk]);
    const end = response.indexOf('\r\n\r\n');
    if (end < 0) {
      if (response.length > responseBytesMax) onError(new Error('the response of the proxy is too long'));
      return;
    }
    const [line = ''] = response.toString('latin1', 0, end).split('\r\n', 1);
    if (!/^HTTP\/1\.[01] 2\d\d(?: |$)/.test(line)) return onError(new Error(`the proxy responded: ${line}`));
    clearTimeout(timer);
    socket.pause();
    // An error before the next owner adds its listener must not be unhandled.
    socket.off('data', onData).off('close', onClose).off('error', onError);
    socket.on('error', () => {});
    const rest = response.subarray(end + 4);
    if (rest.length > 0) socket.unshift(rest);
    resolve(socket);
  };
  socket.on('data', onData).once('error', onError).once('close', onClose);
  return promise;
}
