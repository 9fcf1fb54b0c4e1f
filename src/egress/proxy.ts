/**
 * The egress proxy: what the operator sends outgoing connections through, where a setting names one (the proxy variables
 * of the environment are never looked at). Every connection is a tunnel (`CONNECT`, RFC 9110 section 9.3.6), for `http`
 * too. The proxy is asked for an address that was judged here, never for a name: it resolves nothing, so that no answer
 * of its own name servers leads elsewhere. Who the proxy really connects to cannot be seen from here.
 */

import { connect, isIPv6, type Socket } from 'node:net';
import { EgressError } from './error.ts';

/** Bytes of the proxy's answer to `CONNECT`. */
const answerBytesMax = 16_384;

/** Where the proxy is, as the connector needs it. */
export interface EgressProxy {
  host: string;
  port: number;
  /** The value of `Proxy-Authorization`; null for none. */
  authorization: string | null;
}

/** @param url `http://host:port`, with credentials or without; checked by the configuration */
export function readEgressProxy(url: string): EgressProxy {
  const { hostname, port, username, password } = new URL(url);
  const credentials = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`;
  return {
    host: hostname.startsWith('[') ? hostname.slice(1, -1) : hostname,
    port: Number(port) || 80,
    authorization: username === '' ? null : `Basic ${Buffer.from(credentials).toString('base64')}`,
  };
}

/**
 * A connection to one of the addresses, through the proxy: the first that it can reach, IPv4 first.
 * @param addresses judged
 * @param timeoutMs for all of it
 * @throws EgressError `connect_error` or `connect_timeout`; what the proxy said is its `cause`
 */
export async function openTunnel(
  proxy: EgressProxy,
  addresses: readonly string[],
  port: number,
  timeoutMs: number,
): Promise<{ socket: Socket; address: string }> {
  const giveUpAt = performance.now() + timeoutMs;
  const ordered = [...addresses].sort((a, b) => Number(isIPv6(a)) - Number(isIPv6(b)));
  let refused: EgressError | undefined;
  for (const address of ordered) {
    try {
      return { socket: await askFor(proxy, address, port, giveUpAt - performance.now()), address };
    } catch (error) {
      refused = error as EgressError;
      if (refused.code === 'connect_timeout') break;
    }
  }
  throw refused ?? new EgressError('connect_error');
}

function askFor(proxy: EgressProxy, address: string, port: number, timeoutMs: number): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>();
  const socket = connect({ host: proxy.host, port: proxy.port, noDelay: true, keepAlive: true });
  const fail = (code: 'connect_error' | 'connect_timeout', cause?: Error) => {
    clearTimeout(timer);
    socket.destroy();
    reject(new EgressError(code, { cause }));
  };
  const timer = setTimeout(() => fail('connect_timeout'), Math.max(timeoutMs, 0));
  const onError = (error: Error) => fail('connect_error', error);
  const onClose = () => fail('connect_error', new Error('the proxy closed the connection'));
  const target = `${isIPv6(address) ? `[${address}]` : address}:${port}`;
  const head = [`CONNECT ${target} HTTP/1.1`, `Host: ${target}`];
  if (proxy.authorization !== null) head.push(`Proxy-Authorization: ${proxy.authorization}`);
  socket.once('connect', () => socket.write(`${head.join('\r\n')}\r\n\r\n`));
  let answer = Buffer.alloc(0);
  const onData = (chunk: Buffer) => {
    answer = Buffer.concat([answer, chunk]);
    const end = answer.indexOf('\r\n\r\n');
    if (end < 0) {
      if (answer.length > answerBytesMax) onError(new Error('the proxy gave no answer that ends'));
      return;
    }
    const [line = ''] = answer.toString('latin1', 0, end).split('\r\n', 1);
    if (!/^HTTP\/1\.[01] 2\d\d(?: |$)/.test(line)) return onError(new Error(`the proxy said: ${line}`));
    clearTimeout(timer);
    socket.pause();
    // Between this and the next owner's own listener an error must find somebody.
    socket.off('data', onData).off('close', onClose).off('error', onError);
    socket.on('error', () => {});
    const rest = answer.subarray(end + 4);
    if (rest.length > 0) socket.unshift(rest);
    resolve(socket);
  };
  socket.on('data', onData).once('error', onError).once('close', onClose);
  return promise;
}
