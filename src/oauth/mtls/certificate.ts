/**
 * Client certificates (RFC 8705), and how to read one from a connection.
 */

import { hash, type X509Certificate } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { TLSSocket } from 'node:tls';

export interface ClientCertificate {
  readonly certificate: X509Certificate;
  /** RFC 8705 section 3.1: base64url of the SHA-256 hash of the DER encoding. */
  readonly thumbprint: string;
  /** Whether a trusted CA issued it. */
  readonly isVerified: boolean;
}

/** @returns null if the request has no certificate, or does not come from a trusted proxy */
export type CertificateReader = (request: IncomingMessage) => ClientCertificate | null;

export function toClientCertificate(certificate: X509Certificate, isVerified: boolean): ClientCertificate {
  return { certificate, thumbprint: hash('sha256', certificate.raw, 'base64url'), isVerified };
}

/**
 * Reads certificates from the server's own TLS connections.
 * @param hasAuthorities whether the operator configured CAs; without them Node would trust those of the system
 */
export function createDirectReader(hasAuthorities: boolean): CertificateReader {
  /** One connection carries many requests. */
  const known = new WeakMap<TLSSocket, ClientCertificate | null>();
  return ({ socket }) => {
    if (!(socket instanceof TLSSocket)) return null;
    let found = known.get(socket);
    if (found === undefined) {
      const certificate = socket.getPeerX509Certificate();
      found =
        certificate === undefined
          ? null
          : toClientCertificate(certificate, hasAuthorities && socket.authorized);
      known.set(socket, found);
    }
    return found;
  };
}
