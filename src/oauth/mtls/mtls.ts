/**
 * Mutual TLS (RFC 8705): clients that authenticate by a certificate, and access tokens that are bound to one.
 */

import type { Configuration, KoaContextWithOIDC } from 'oidc-provider';
import { type Config, ConfigError } from '../../config/config.ts';
import type { OAuthSettings } from '../settings.ts';
import { type CertificateReader, createDirectReader } from './certificate.ts';
import { createCertificateReader } from './certificate_header.ts';
import { certificateNames, type SubjectProperty } from './subject.ts';

/** @throws ConfigError where certificates are declared and nobody may hand them on */
export function openCertificateReader({ mtls }: OAuthSettings, config: Config): CertificateReader {
  if (mtls === null) return () => null;
  if (mtls === 'direct') {
    if (config.tls !== null) return createDirectReader(config.tls.clientCaFile !== null);
    throw new ConfigError([
      'NUNCIO_TLS_CERT_FILE is not set: with oauth.mtls "direct" the server itself must speak TLS',
    ]);
  }
  if (config.trustProxy.length === 0) {
    throw new ConfigError([
      'NUNCIO_TRUST_PROXY is not set: with oauth.mtls it must name the reverse proxies that check certificates',
    ]);
  }
  return createCertificateReader(mtls, config.trustProxy);
}

/** Whether anybody says of a certificate that an authority issued it. */
function knowsAuthorities({ mtls }: OAuthSettings, { tls }: Config): boolean {
  if (mtls === 'direct') return tls !== null && tls.clientCaFile !== null;
  return mtls !== null && mtls.verifiedHeader !== null;
}

/** Methods of client authentication that this brings. */
export function mtlsAuthMethods(settings: OAuthSettings, config: Config) {
  if (settings.mtls === null) return [];
  const methods = ['self_signed_tls_client_auth'] as const;
  return knowsAuthorities(settings, config) ? ([...methods, 'tls_client_auth'] as const) : methods;
}

export function mtlsFeature(settings: OAuthSettings, config: Config, readCertificate: CertificateReader) {
  const read = (ctx: KoaContextWithOIDC) => readCertificate(ctx.req);
  return {
    mTLS: {
      enabled: settings.mtls !== null,
      certificateBoundAccessTokens: true,
      selfSignedTlsClientAuth: true,
      tlsClientAuth: knowsAuthorities(settings, config),
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
