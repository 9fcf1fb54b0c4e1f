/**
 * Mutual TLS (RFC 8705): clients that authenticate by a certificate, and access tokens that are bound to one.
 */

import type { Configuration, KoaContextWithOIDC } from 'oidc-provider';
import { type Config, ConfigError } from '../../config/config.ts';
import type { OAuthSettings } from '../settings.ts';
import { type CertificateReader, createCertificateReader } from './certificate_header.ts';
import { certificateNames, type SubjectProperty } from './subject.ts';

/** @throws ConfigError where certificates are declared and nobody may hand them on */
export function openCertificateReader({ mtls }: OAuthSettings, { trustProxy }: Config): CertificateReader {
  if (mtls !== null && trustProxy.length === 0) {
    throw new ConfigError([
      'NUNCIO_TRUST_PROXY is not set: with oauth.mtls it must name the reverse proxies that check certificates',
    ]);
  }
  return createCertificateReader(mtls, trustProxy);
}

/** Methods of client authentication that this brings. */
export function mtlsAuthMethods({ mtls }: OAuthSettings) {
  if (mtls === null) return [];
  const methods = ['self_signed_tls_client_auth'] as const;
  return mtls.verifiedHeader === null ? methods : ([...methods, 'tls_client_auth'] as const);
}

export function mtlsFeature(settings: OAuthSettings, readCertificate: CertificateReader) {
  const read = (ctx: KoaContextWithOIDC) => readCertificate(ctx.req);
  return {
    mTLS: {
      enabled: settings.mtls !== null,
      certificateBoundAccessTokens: true,
      selfSignedTlsClientAuth: true,
      tlsClientAuth: settings.mtls !== null && settings.mtls.verifiedHeader !== null,
      getCertificate: (ctx) => read(ctx)?.certificate,
      certificateAuthorized: (ctx) => read(ctx)?.isVerified === true,
      certificateSubjectMatches(ctx, property, expected) {
        const certificate = read(ctx)?.certificate;
        return (
          certificate !== undefined && certificateNames(certificate, property as SubjectProperty, expected)
        );
      },
    },
  } satisfies Configuration['features'];
}
