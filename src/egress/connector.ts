/**
 * The guarded connector opens connections to URLs that a third party chose. It checks the resolved addresses at connect time,
 * connects to checked addresses only, and compares the address of the connected peer before it writes a byte. It ignores proxy
 * environment variables. If the operator configured an egress proxy, the connector requests the checked address from the
 * proxy (proxy.ts).
 *
 *   resolving → all addresses checked → connecting → peer compared → TLS (tls.ts) → ready
 *                                     → tunnel through the proxy   ↗
 */

import { connect as connectTcp, isIP, type Socket } from 'node:net';
import type { TLSSocket } from 'node:tls';
import type { buildConnector } from 'undici';
import { canonicalAddress } from './address.ts';
import { closeAtOnce } from './closing.ts';
import { EgressError } from './error.ts';
import { type EgressProxy, openTunnel } from './proxy.ts';
import { type EgressPolicy, type NameUser, resolveVetted } from './resolve.ts';
import { waitForEvent } from './socket_event.ts';
import { startTls, type TlsOptions } from './tls.ts';
import { type ConnectionUser, takeBeginningTurn } from './tls_turns.ts';
import { openTunnelInTurn } from './tunnel_turns.ts';

/** Timeout of the TCP connection, in milliseconds. */
const connectTimeoutMs = 5_000;

/** Duration of each step, in milliseconds. */
export interface ConnectTimings {
  dnsMs: number;
  connectMs: number;
  tlsMs: number | null;
  family: 4 | 6;
}

export interface ConnectorOptions extends EgressPolicy, TlsOptions {
  /** The egress proxy. Default: connect directly. */
  proxy?: EgressProxy;
}

/** An open connection with its timings. */
export interface GuardedConnection {
  socket: Socket;
  timings: ConnectTimings;
  /** The address of the peer; with a proxy, the address that was requested from it. */
  address: string;
  /** Whose turns what the peer sends takes: to be set with each use. */
  user: ConnectionUser;
}

/** Who wants a connection. */
export interface ConnectionRequest extends NameUser {
  /** Called with the checked addresses before a connection is opened. @throws Error to prevent it */
  admit?: (addresses: readonly string[]) => Promise<void>;
  /** Whether nobody wants the connection any more: it is given up before it costs more. */
  isOver?: () => boolean;
}

type Connect = buildConnector.connector;

/** Creates the `connect` option of an `undici` client. */
export function createGuardedConnector(options: ConnectorOptions): Connect {
  return ({ hostname, protocol, port, servername }, callback) => {
    open(hostname, port, protocol === 'https:' ? servername || withoutBrackets(hostname) : null, options, {
      tenant: null,
    }).then(
      ({ socket }) => callback(null, socket as Socket & TLSSocket),
      (error: Error) => callback(error, null),
    );
  };
}

/**
 * Opens one connection to an origin.
 * @throws EgressError, or NoTurnError if it was not the tenant's turn in time: nothing was done
 */
export function connectGuarded(
  origin: URL,
  options: ConnectorOptions,
  request: ConnectionRequest,
): Promise<GuardedConnection> {
  const { hostname, port, protocol } = origin;
  const servername = protocol === 'https:' ? withoutBrackets(hostname) : null;
  return open(hostname, port, servername, options, request);
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
  { tenant, onTurn, admit, isOver = () => false }: ConnectionRequest,
): Promise<GuardedConnection> {
  const host = withoutBrackets(hostname);
  const port = Number(portText) || (servername === null ? 80 : 443);
  let startedAt = performance.now();
  const user: NameUser = {
    tenant,
    onTurn: (waitedMs) => {
      startedAt += waitedMs;
      onTurn?.(waitedMs);
    },
  };
  const addresses = await resolveVetted(host, options, servername === null, user);
  const resolvedAt = performance.now();
  await admit?.(addresses);
  let admittedAt = performance.now();
  const { socket: tcp, address } = await openTcpTo(host, addresses, port, options, {
    tenant,
    onTurn: (waitedMs) => {
      admittedAt += waitedMs;
      onTurn?.(waitedMs);
    },
  });
  const connectedAt = performance.now();
  const connectionUser: ConnectionUser = { tenant };
  const peer = { address, port: tcp.remotePort ?? 0, user: connectionUser };
  assertWanted(tcp, isOver);
  const socket = servername === null ? tcp : await takeTls(tcp, peer, servername, options, isOver);
  const timings: ConnectTimings = {
    dnsMs: resolvedAt - startedAt,
    connectMs: connectedAt - admittedAt,
    tlsMs: servername === null ? null : performance.now() - connectedAt,
    family: isIP(address) === 6 ? 6 : 4,
  };
  return { socket, timings, address, user: connectionUser };
}

function assertWanted(tcp: Socket, isOver: () => boolean): void {
  if (!isOver() && !tcp.destroyed) return;
  closeAtOnce(tcp);
  throw new EgressError('connect_error');
}

/** Begins TLS in its turn. */
function takeTls(...[tcp, peer, servername, options, isOver]: Parameters<typeof startTls>): Promise<Socket> {
  if (options.isNamedByOperator) return startTls(tcp, peer, servername, options, isOver);
  const begin = async () => {
    assertWanted(tcp, isOver);
    return await startTls(tcp, peer, servername, options, isOver);
  };
  return new Promise((resolve) => takeBeginningTurn(peer, () => resolve(begin())));
}

function openTcpTo(
  host: string,
  addresses: string[],
  port: number,
  { proxy }: ConnectorOptions,
  { tenant, onTurn }: Required<NameUser>,
): Promise<{ socket: Socket; address: string }> {
  if (proxy === undefined) return openDirectly(host, port, addresses);
  // Those of the server itself do not wait behind anybody's.
  if (tenant === null) return openTunnel(proxy, addresses, port, connectTimeoutMs);
  return openTunnelInTurn(proxy, { addresses, port, timeoutMs: connectTimeoutMs, tenant, onTurn });
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
  closeAtOnce(socket);
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
