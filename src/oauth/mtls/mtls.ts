/**
 * Mutual TLS (RFC 8705): client authentication by certificate, and certificate-bound access tokens.
 */

import type { Configuration, KoaContextWithOIDC } from 'oidc-provider';
import { type Config, ConfigError } from '../../config/config.ts';
import type { OAuthSettings } from '../settings.ts';
import { type CertificateReader, createDirectReader } from './certificate.ts';
import { createCertificateReader } from './certificate_header.ts';
import { certificateMatches, type SubjectProperty } from './certificate_subject.ts';

/** @throws ConfigError if mutual TLS is on, but no source of certificates is configured */
export function openCertificateReader({ mtls }: OAuthSettings, config: Config): CertificateReader {
  if (mtls === null) return () => null;
  if (mtls === 'direct') {
    if (config.tls !== null) return createDirectReader(config.tls.clientCaFile !== null);
    throw new ConfigError([
      'NUNCIO_TLS_CERT_FILE is not set: oauth.mtls "direct" requires that the server itself terminates TLS',
    ]);
  }
  if (config.trustProxy.length === 0) {
    throw new ConfigError([
      'NUNCIO_TRUST_PROXY is not set: oauth.mtls requires the addresses of the reverse proxies that verify certificates',
    ]);
  }
  return createCertificateReader(mtls, config.trustProxy);
}

/** Whether certificates are verified against CAs. */
function verifiesCertificates({ mtls }: OAuthSettings, { tls }: Config): boolean {
  if (mtls === 'direct') return tls !== null && tls.clientCaFile !== null;
  return mtls !== null && mtls.verifiedHeader !== null;
}

/** The client authentication methods that the settings enable. */
export function mtlsAuthMethods(settings: OAuthSettings, config: Config) {
  if (settings.mtls === null) return [];
  const methods = ['self_signed_tls_client_auth'] as const;
  return verifiesCertificates(settings, config) ? ([...methods, 'tls_client_auth'] as const) : methods;
}

export function mtlsFeature(settings: OAuthSettings, config: Config, readCertificate: CertificateReader) {
  const read = (ctx: KoaContextWithOIDC) => readCertificate(ctx.req);
  return {
    mTLS: {
      enabled: settings.mtls !== null,
      certificateBoundAccessTokens: true,
      selfSignedTlsClientAuth: true,
      tlsClientAuth: verifiesCertificates(settings, config),
      getCertificate: (ctx) => read(ctx)?.certificate,
      certificateAuthorized: (ctx) => read(ctx)?.isVerified === true,
      certificateSubjectMatches(ctx, property, expected) {
        const certificate = read(ctx)?.certificate;
        return (
          certificate !== undefined && certificateMatches(certificate, property as SubjectProperty, expected)
        );
      },
    },
  } satisfies Configuration['features'];
}
