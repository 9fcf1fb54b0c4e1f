/**
 * TLS over a connection to a host that a third party chose. What the host sends goes through the check of certificates first
 * (certificate_check.ts), unless the operator named the host.
 */

import { constants } from 'node:crypto';
import { isIP, type Socket } from 'node:net';
import {
  connect as connectTls,
  createSecureContext,
  DEFAULT_CIPHERS,
  getCACertificates,
  type SecureContext,
  type TLSSocket,
} from 'node:tls';
import { CheckedStream } from './checked_stream.ts';
import { EgressError } from './error.ts';
import { waitForEvent } from './socket_event.ts';
import { tlsGroups } from './tls_groups.ts';
import type { PeerOfTenant } from './tls_turns.ts';

/** Timeout of the handshake in milliseconds, without the time for which the host's certificates wait for their turn. */
const tlsTimeoutMs = 5_000;

/** In PEM. */
export interface ClientCertificate {
  cert: string;
  key: string;
}

export interface TlsOptions {
  /** CAs in addition to the system's, in PEM: for tests and private installations. */
  extraCa?: string | string[];
  /** Presented to servers that ask for one. */
  clientCertificate?: ClientCertificate;
  /** Whether the operator named the hosts: what they send is not limited. */
  isNamedByOperator?: boolean;
}

/**
 * Not Diffie-Hellman over finite fields: the peer chooses the prime, so that one handshake can take 170 ms of this thread (RFC 9325
 * section 4.1 discourages it).
 */
const ciphers = `${DEFAULT_CIPHERS}:!DHE`;

/** For all connections with the same options. */
const contexts = new WeakMap<TlsOptions, SecureContext>();

function contextOf(options: TlsOptions): SecureContext {
  const known = contexts.get(options);
  if (known !== undefined) return known;
  const { clientCertificate, extraCa } = options;
  const context = createSecureContext({
    minVersion: 'TLSv1.2',
    ciphers,
    ecdhCurve: tlsGroups,
    // The certificates of a new handshake on the same connection would not be checked.
    secureOptions: constants.SSL_OP_NO_RENEGOTIATION,
    ...clientCertificate,
    ...(extraCa === undefined ? {} : { ca: [...getCACertificates('default'), extraCa].flat() }),
  });
  contexts.set(options, context);
  return context;
}

/**
 * @param options the same object for connections that may share their settings
 * @param isOver whether nobody wants the connection any more
 * @throws EgressError `tls_error`
 */
export async function startTls(
  tcp: Socket,
  peer: PeerOfTenant,
  servername: string,
  options: TlsOptions,
  isOver: () => boolean,
): Promise<TLSSocket> {
  const stream = options.isNamedByOperator ? null : new CheckedStream(tcp, peer, isOver);
  const socket = connectTls({
    socket: stream ?? tcp,
    // RFC 6066 section 3: SNI must not contain an IP address. The certificate is verified against it nevertheless.
    ...(isIP(servername) > 0 ? {} : { servername }),
    host: servername,
    // A hostile peer has many ways to use up the memory and time of an HTTP/2 client.
    ALPNProtocols: ['http/1.1'],
    rejectUnauthorized: true,
    secureContext: contextOf(options),
  });
  if (stream !== null) {
    socket
      .on('keylog', (line) => stream.takeKeys(line))
      .on('session', () => stream.takeTicket())
      .once('secureConnect', () => stream.endHandshake());
  }
  const toError = (error?: Error) => {
    if (error instanceof EgressError) return error;
    return new EgressError('tls_error', {
      cause: error,
      reason: error === undefined ? 'the handshake timed out' : describeHandshakeError(error),
    });
  };
  return waitForEvent(socket, 'secureConnect', tlsTimeoutMs, toError, () => stream?.waitedMs ?? 0);
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
