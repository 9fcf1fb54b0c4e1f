/**
 * The guarded connector opens connections for `undici` to URLs that a third party chose. It checks the resolved addresses
 * at connect time, connects to checked addresses only, and compares the address of the connected peer before it writes a
 * byte. It ignores proxy environment variables. It does not handle redirects; `undici` follows none by default. If the
 * operator configured an egress proxy, the connector requests the checked address from the proxy (proxy.ts).
 *
 *   resolving → all addresses checked → connecting → peer compared → TLS → ready
 *                                     → tunnel through the proxy   ↗
 */

import { connect as connectTcp, isIP, type Socket } from 'node:net';
import {
  connect as connectTls,
  createSecureContext,
  DEFAULT_CIPHERS,
  getCACertificates,
  type TLSSocket,
} from 'node:tls';
import type { buildConnector } from 'undici';
import { canonicalAddress } from './address.ts';
import { EgressError } from './error.ts';
import { type EgressProxy, openTunnel } from './proxy.ts';
import { type EgressPolicy, resolveVetted } from './resolve.ts';

/** Timeouts of the TCP connection and of the TLS handshake, in milliseconds. */
const connectTimeoutMs = 5_000;
const tlsTimeoutMs = 5_000;

/** Duration of each step, in milliseconds. */
export interface ConnectTimings {
  dnsMs: number;
  connectMs: number;
  tlsMs: number | null;
  family: 4 | 6;
}

/** In PEM. */
export interface ClientCertificate {
  cert: string;
  key: string;
}

export interface ConnectorOptions extends EgressPolicy {
  /** CAs in addition to the system's, in PEM: for tests and private installations. */
  extraCa?: string | string[];
  /** Presented to servers that ask for one. */
  clientCertificate?: ClientCertificate;
  /** The egress proxy. Default: connect directly. */
  proxy?: EgressProxy;
}

/** An open connection with its timings. */
export interface GuardedConnection {
  socket: Socket;
  timings: ConnectTimings;
  /** The address of the peer; with a proxy, the address that was requested from it. */
  address: string;
}

/** Called with the checked addresses before a connection is opened. @throws Error to prevent it */
export type Admit = (addresses: readonly string[]) => Promise<void>;

type Connect = buildConnector.connector;

/** Creates the `connect` option of an `undici` client. */
export function createGuardedConnector(options: ConnectorOptions): Connect {
  return ({ hostname, protocol, port, servername }, callback) => {
    open(
      hostname,
      port,
      protocol === 'https:' ? servername || withoutBrackets(hostname) : null,
      options,
    ).then(
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
  return open(hostname, port, protocol === 'https:' ? withoutBrackets(hostname) : null, options, admit);
}

/** A literal IPv6 address without its brackets. */
function withoutBrackets(hostname: string): string {
  return hostname.startsWith('[') ? hostname.slice(1, -1) : hostname;
}

async function open(
  hostname: string,
  portText: string,
  servername: string | null,
  options: ConnectorOptions,
  admit?: Admit,
): Promise<GuardedConnection> {
  const host = withoutBrackets(hostname);
  const port = Number(portText) || (servername === null ? 80 : 443);
  const startedAt = performance.now();
  const addresses = await resolveVetted(host, options, servername === null);
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
 * Compares the peer that the system reports to the checked addresses.
 * @returns the peer's address
 * @throws EgressError `address_refused` if it is not one of them; the socket is closed
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
  return waitForEvent(socket, 'connect', connectTimeoutMs, (error) => {
    return new EgressError(error === undefined ? 'connect_timeout' : 'connect_error', { cause: error });
  });
}

type LookupFunction = NonNullable<import('node:net').TcpNetConnectOpts['lookup']>;

/** A `lookup` that returns only checked addresses. Happy Eyeballs requests `all` of them. */
export function vettedLookup(addresses: string[]): LookupFunction {
  const entries = addresses.map((address) => ({ address, family: isIP(address) }));
  return (_hostname, { all }, callback) => {
    const first = entries[0] as { address: string; family: number };
    if (all) callback(null, entries);
    else callback(null, first.address, first.family);
  };
}

/**
 * Not Diffie-Hellman over finite fields: the peer chooses the prime, so that one handshake can take 170 ms of this thread (RFC 9325
 * section 4.1 discourages it).
 */
const ciphers = `${DEFAULT_CIPHERS}:!DHE`;
/** Nor groups that are slow. Older versions of Node do not know the first one. */
const ecdhCurve = ['X25519MLKEM768', 'X25519', 'P-256', 'P-384'].filter(isKnownGroup).join(':');

function isKnownGroup(group: string): boolean {
  try {
    createSecureContext({ ecdhCurve: group });
    return true;
  } catch {
    return false;
  }
}

async function startTls(tcp: Socket, servername: string, options: ConnectorOptions): Promise<TLSSocket> {
  const socket = connectTls({
    socket: tcp,
    // RFC 6066 section 3: SNI must not contain an IP address. The certificate is verified against it nevertheless.
    ...(isIP(servername) > 0 ? {} : { servername }),
    host: servername,
    // A hostile peer has many ways to use up the memory and time of an HTTP/2 client.
    ALPNProtocols: ['http/1.1'],
    minVersion: 'TLSv1.2',
    ciphers,
    ecdhCurve,
    rejectUnauthorized: true,
    ...options.clientCertificate,
    ...(options.extraCa === undefined
      ? {}
      : { ca: [...getCACertificates('default'), options.extraCa].flat() }),
  });
  return waitForEvent(socket, 'secureConnect', tlsTimeoutMs, (error) => {
    return new EgressError('tls_error', {
      cause: error,
      reason: error === undefined ? 'the handshake timed out' : describeHandshakeError(error),
    });
  });
}

/** Maximum length of a handshake error in characters. It may contain text from the peer's certificate. */
const errorCharactersMax = 300;

/** Describes a failed handshake in one line, for the operator of the peer. */
function describeHandshakeError(error: Error): string {
  const { code = '', reason } = error as NodeJS.ErrnoException & { reason?: unknown };
  if (code === 'ECONNRESET' || code === 'EPIPE') return 'the connection was closed during the handshake';
  // OpenSSL errors have the reason as a property; Node's messages append advice for the client, which is removed.
  const isOpenssl = code.startsWith('ERR_SSL_') && typeof reason === 'string';
  const text = isOpenssl
    ? (reason as string)
    : error.message.replace(/; if the root CA is installed .*$/s, '');
  return text
    .replaceAll(/[\p{Cc}\s]+/gu, ' ')
    .trim()
    .slice(0, errorCharactersMax);
}

/** Waits for an event of a socket. Destroys the socket on error or timeout. */
function waitForEvent<S extends Socket>(
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
      // An error before the next owner adds its listener must not be unhandled.
      socket
        .on('error', () => {})
        .off('error', fail)
        .off('close', onClose);
      resolve(socket);
    });
  });
}
