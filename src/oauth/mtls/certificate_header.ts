/**
 * Reads the client certificate from the header of a reverse proxy that terminates TLS (RFC 8705, RFC 9440). Only the
 * proxies in `NUNCIO_TRUST_PROXY` are trusted: any other peer can send the header with any content.
 */

import { X509Certificate } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { canonicalAddress } from '../../egress/address.ts';
import { addressMatcher } from '../../http/network.ts';
import type { MtlsSettings } from '../settings.ts';
import { type CertificateReader, type ClientCertificate, toClientCertificate } from './certificate.ts';

/** Maximum length of the header in characters. */
const headerLengthMax = 16_384;

/**
 * @param trustProxy addresses or CIDR ranges of the reverse proxies
 */
export function createCertificateReader(
  mtls: MtlsSettings,
  trustProxy: readonly string[],
): CertificateReader {
  const { certificateHeader, verifiedHeader } = mtls;
  const isTrusted = addressMatcher(trustProxy);
  const known = new WeakMap<IncomingMessage, ClientCertificate | null>();

  return (request) => {
    let found = known.get(request);
    if (found === undefined) {
      found = isProxy(request) ? read(request) : null;
      known.set(request, found);
    }
    return found;
  };

  /** Checks the peer of the connection itself, because `X-Forwarded-For` names the peers behind it. */
  function isProxy({ socket }: IncomingMessage): boolean {
    const peer = canonicalAddress(socket.remoteAddress ?? '');
    return peer !== '' && isTrusted(peer);
  }

  function read({ headers }: IncomingMessage): ClientCertificate | null {
    const value = headers[certificateHeader];
    if (typeof value !== 'string') return null;
    const certificate = parseCertificateHeader(value);
    if (certificate === null) return null;
    const isVerified = verifiedHeader !== null && headers[verifiedHeader] === 'SUCCESS';
    return toClientCertificate(certificate, isVerified);
  }
}

/** Parses RFC 9440 (`:base64 of DER:`), or PEM with percent encoding (nginx `$ssl_client_escaped_cert`). */
export function parseCertificateHeader(value: string): X509Certificate | null {
  if (value.length > headerLengthMax) return null;
  try {
    const bytes = /^:([A-Za-z0-9+/]+={0,2}):$/.exec(value)?.[1];
    if (bytes !== undefined) return new X509Certificate(Buffer.from(bytes, 'base64'));
    const pem = decodeURIComponent(value);
    return /^-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----\s*$/.test(pem)
      ? new X509Certificate(pem)
      : null;
  } catch {
    return null;
  }
}
