/** The deployment's client certificate, with which it authenticates to subscribers that ask for one (RFC 8446 section 4.4.2). */

import { X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createSecureContext } from 'node:tls';
import { ConfigError } from '../config/config.ts';
import type { ClientCertificateFiles } from '../config/tls_files.ts';
import type { ClientCertificate } from './tls.ts';

/** What subscribers may know of it. */
export interface PublishedCertificate {
  /** The certificate with its chain, in PEM. */
  pem: string;
  /** SHA-256 of the certificate, in lower-case hexadecimal digits. */
  sha256: string;
  validUntil: Date;
}

export interface OwnCertificate extends ClientCertificate {
  published: PublishedCertificate;
}

/** @throws ConfigError with the name of the unusable file */
export function readClientCertificate({ certFile, keyFile }: ClientCertificateFiles): OwnCertificate {
  const cert = read('NUNCIO_CLIENT_CERT_FILE', certFile);
  const key = read('NUNCIO_CLIENT_KEY_FILE', keyFile);
  const use = (name: string, path: string, part: { cert: string; key?: string }, content: string) => {
    try {
      createSecureContext(part);
    } catch (cause) {
      throw new ConfigError([`${name} is "${path}": it must be a PEM file with ${content}`], { cause });
    }
  };
  use('NUNCIO_CLIENT_CERT_FILE', certFile, { cert }, 'certificates');
  use('NUNCIO_CLIENT_KEY_FILE', keyFile, { cert, key }, 'the key of the certificate');
  const { fingerprint256, validTo } = new X509Certificate(cert);
  const sha256 = fingerprint256.replaceAll(':', '').toLowerCase();
  // A file may also hold the key, which must not be published.
  const pem = cert.match(/-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----\n?/g)?.join('') ?? '';
  return { cert, key, published: { pem, sha256, validUntil: new Date(validTo) } };
}

function read(name: string, path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (cause) {
    throw new ConfigError([`${name} is "${path}": it must be a file that this user can read`], { cause });
  }
}
