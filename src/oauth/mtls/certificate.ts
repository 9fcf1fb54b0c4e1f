/**
 * The certificate that a client showed, and how it is found of a request (RFC 8705).
 */

import { hash, type X509Certificate } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { TLSSocket } from 'node:tls';

export interface ClientCertificate {
  readonly certificate: X509Certificate;
  /** RFC 8705 section 3.1: base64url of the SHA-256 of its DER form. */
  readonly thumbprint: string;
  /** Whether an authority that is trusted for it issued it. */
  readonly isVerified: boolean;
}

/** @returns null where the request came with none, or not by somebody who is believed */
export type CertificateReader = (request: IncomingMessage) => ClientCertificate | null;

export function toClientCertificate(certificate: X509Certificate, isVerified: boolean): ClientCertificate {
  return { certificate, thumbprint: hash('sha256', certificate.raw, 'base64url'), isVerified };
}

/**
 * Certificates of connections that end here.
 * @param hasAuthorities whether the operator named authorities: without, those of the system would count
 */
export function createDirectReader(hasAuthorities: boolean): CertificateReader {
  /** Connections carry many requests. */
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
