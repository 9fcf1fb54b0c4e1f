/**
 * The guarded connector: what `undici` opens connections with when the URL is somebody else's. The address is judged
 * at the moment of connecting, whatever DNS said before; only judged addresses are connected to; and the peer that
 * the system really connected to is compared once more before a byte is written. Proxy variables of the environment
 * are not looked at, redirects are not followed (that is the caller's dispatcher: `undici` follows none by itself). Where the operator names an egress proxy the judged
 * address is asked for there instead (see proxy.ts).
 *
 *   resolving → (every address judged) → connecting → (peer compared) → TLS → ready
 *                                      → tunnel through the proxy     ↗
 */

import { connect as connectTcp, isIP, type Socket } from 'node:net';
import { connect as connectTls, getCACertificates, type TLSSocket } from 'node:tls';
import type { buildConnector } from 'undici';
import { canonicalAddress } from './address.ts';
import { EgressError } from './error.ts';
import { type EgressProxy, openTunnel } from './proxy.ts';
import { type EgressPolicy, resolveVetted } from './resolve.ts';

/** Milliseconds for the TCP connection, and again for the TLS handshake. */
const connectTimeoutMs = 5_000;
const tlsTimeoutMs = 5_000;

/** How long each step took, in milliseconds. */
export interface ConnectTimings {
  dnsMs: number;
  connectMs: number;
  tlsMs: number | null;
  family: 4 | 6;
}

export interface ConnectorOptions extends EgressPolicy {
  /** Certificate authorities beside the system's, in PEM: for tests and private installations. */
  extraCa?: string | string[];
  /** What connections go through; directly where left out. */
  proxy?: EgressProxy;
}

/** A connection that is ready, and what it took. */
export interface GuardedConnection {
  socket: Socket;
  timings: ConnectTimings;
  /** Whom it is connected to (behind a proxy, whom the proxy was asked for). */
  address: string;
}

/** Told of the judged addresses before any of them is connected to. @throws Error where none is to be */
export type Admit = (addresses: readonly string[]) => Promise<void>;

type Connect = buildConnector.connector;

/** Gives the function that an `undici` client takes as its `connect` option. */
export function createGuardedConnector(options: ConnectorOptions): Connect {
  return ({ hostname, protocol, port, servername }, callback) => {
    open(hostname, port, protocol === 'https:' ? servername || bare(hostname) : null, options).then(
      ({ socket }) => callback(null, socket as Socket & TLSSocket),
      (error: Error) => callback(error, null),
    );
  };
}

/**
 * Opens one connection to an origin.
 * @throws EgressError
 */
export function connectGuarded(
  origin: URL,
  options: ConnectorOptions,
  admit?: Admit,
): Promise<GuardedConnection> {
  const { hostname, port, protocol } = origin;
  return open(hostname, port, protocol === 'https:' ? bare(hostname) : null, options, admit);
}

/** A literal IPv6 address without its brackets. */
function bare(hostname: string): string {
  return hostname.startsWith('[') ? hostname.slice(1, -1) : hostname;
}

async function open(
  hostname: string,
  portText: string,
  servername: string | null,
  options: ConnectorOptions,
  admit?: Admit,
): Promise<GuardedConnection> {
  const host = bare(hostname);
  const port = Number(portText) || (servername === null ? 80 : 443);
  const startedAt = performance.now();
  const addresses = await resolveVetted(host, options);
  const resolvedAt = performance.now();
  await admit?.(addresses);
  const admittedAt = performance.now();
  const { socket: tcp, address } =
    options.proxy === undefined
      ? await openDirectly(host, port, addresses)
      : await openTunnel(options.proxy, addresses, port, connectTimeoutMs);
  const connectedAt = performance.now();
  const socket = servername === null ? tcp : await startTls(tcp, servername, options);
  const timings: ConnectTimings = {
    dnsMs: resolvedAt - startedAt,
    connectMs: connectedAt - admittedAt,
    tlsMs: servername === null ? null : performance.now() - connectedAt,
    family: isIP(address) === 6 ? 6 : 4,
  };
  return { socket, timings, address };
}

async function openDirectly(
  host: string,
  port: number,
  addresses: string[],
): Promise<{ socket: Socket; address: string }> {
  const socket = await openTcp(host, port, addresses);
  return { socket, address: comparePeer(socket, addresses) };
}

/**
 * The system's word for whom we are connected to is the last one.
 * @returns the peer's address
 * @throws EgressError `address_refused` when it is none of those that were judged; the socket is closed then
 */
export function comparePeer(socket: Socket, addresses: readonly string[]): string {
  const { remoteAddress } = socket;
  const address = remoteAddress === undefined ? undefined : canonicalAddress(remoteAddress);
  if (address !== undefined && addresses.includes(address)) return address;
  socket.destroy();
  throw new EgressError('address_refused');
}

function openTcp(host: string, port: number, addresses: string[]): Promise<Socket> {
  const socket = connectTcp({
    host,
    port,
    noDelay: true,
    keepAlive: true,
    keepAliveInitialDelay: 60_000,
    autoSelectFamily: true,
    lookup: vettedLookup(addresses),
  });
  return settle(socket, 'connect', connectTimeoutMs, (error) => {
    return new EgressError(error === undefined ? 'connect_timeout' : 'connect_error', { cause: error });
  });
}

type LookupFunction = NonNullable<import('node:net').TcpNetConnectOpts['lookup']>;

/** A `lookup` that knows the judged addresses only, in both of its forms (`all` is what Happy Eyeballs asks). */
export function vettedLookup(addresses: string[]): LookupFunction {
  const entries = addresses.map((address) => ({ address, family: isIP(address) }));
  return (_hostname, { all }, callback) => {
    const first = entries[0] as { address: string; family: number };
    if (all) callback(null, entries);
    else callback(null, first.address, first.family);
  };
}

async function startTls(tcp: Socket, servername: string, options: ConnectorOptions): Promise<TLSSocket> {
  const socket = connectTls({
    socket: tcp,
    // RFC 6066 section 3: no literal addresses in SNI; the certificate is still compared with the address.
    ...(isIP(servername) > 0 ? {} : { servername }),
    host: servername,
    ALPNProtocols: ['http/1.1', 'h2'],
    minVersion: 'TLSv1.2',
    rejectUnauthorized: true,
    ...(options.extraCa === undefined
      ? {}
      : { ca: [...getCACertificates('default'), options.extraCa].flat() }),
  });
  return settle(socket, 'secureConnect', tlsTimeoutMs, (error) => {
    return new EgressError('tls_error', {
      cause: error,
      reason: error === undefined ? 'the handshake took too long' : handshakeFault(error),
    });
  });
}

/** Characters of what is told of a handshake: a certificate may say anything, at any length. */
const faultCharactersMax = 300;

/** What was wrong with a handshake, in one line for whoever runs the other side. */
export function handshakeFault(error: Error): string {
  const { code = '', reason } = error as NodeJS.ErrnoException & { reason?: unknown };
  if (code === 'ECONNRESET' || code === 'EPIPE') return 'the connection was closed during the handshake';
  // OpenSSL's errors have its words apart from where in its source they are from; Node's have advice for us behind them.
  const isOpenssl = code.startsWith('ERR_SSL_') && typeof reason === 'string';
  const text = isOpenssl
    ? (reason as string)
    : error.message.replace(/; if the root CA is installed .*$/s, '');
  return text
    .replaceAll(/[\p{Cc}\s]+/gu, ' ')
    .trim()
    .slice(0, faultCharactersMax);
}

/** Waits for an event of the socket; destroys it where an error or the time comes first. */
function settle<S extends Socket>(
  socket: S,
  event: 'connect' | 'secureConnect',
  timeoutMs: number,
  toError: (error?: Error) => Error,
): Promise<S> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => fail(), timeoutMs);
    const fail = (error?: Error) => {
      clearTimeout(timer);
      socket.destroy();
      reject(toError(error));
    };
    const onClose = () => fail(new Error('the connection was closed'));
    socket.once('error', fail).once('close', onClose);
    socket.once(event, () => {
      clearTimeout(timer);
      // Between this and the next owner's own listener an error must find somebody.
      socket
        .on('error', () => {})
        .off('error', fail)
        .off('close', onClose);
      resolve(socket);
    });
  });
}
