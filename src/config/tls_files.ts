/** The settings that name PEM files: of the server's TLS, and of the certificate with which deliveries authenticate. */

import { resolve } from 'node:path';
import type { Environment } from './environment.ts';

/** Absolute paths of PEM files. */
export interface ClientCertificateFiles {
  readonly certFile: string;
  readonly keyFile: string;
}

/** Absolute paths of PEM files. */
export interface TlsFiles {
  readonly certFile: string;
  readonly keyFile: string;
  /** CAs whose client certificates are trusted. */
  readonly clientCaFile: string | null;
}

export function readTls(environment: Environment, folder: string, problems: string[]): TlsFiles | null {
  const {
    NUNCIO_TLS_CERT_FILE: cert,
    NUNCIO_TLS_KEY_FILE: key,
    NUNCIO_TLS_CLIENT_CA_FILE: clientCa,
  } = environment;
  if (cert !== undefined && key !== undefined) {
    const clientCaFile = clientCa === undefined ? null : resolve(folder, clientCa);
    return Object.freeze({ certFile: resolve(folder, cert), keyFile: resolve(folder, key), clientCaFile });
  }
  const given = Object.entries({ cert, key, clientCa }).some(([, path]) => path !== undefined);
  if (given && cert === undefined) {
    problems.push('NUNCIO_TLS_CERT_FILE is not set: it is required with the other TLS settings');
  }
  if (given && key === undefined) {
    problems.push('NUNCIO_TLS_KEY_FILE is not set: it is required with the other TLS settings');
  }
  return null;
}

export function readClientFiles(
  { NUNCIO_CLIENT_CERT_FILE: cert, NUNCIO_CLIENT_KEY_FILE: key }: Environment,
  folder: string,
  problems: string[],
): ClientCertificateFiles | null {
  if (cert !== undefined && key !== undefined)
    return Object.freeze({ certFile: resolve(folder, cert), keyFile: resolve(folder, key) });
  if (cert !== undefined)
    problems.push('NUNCIO_CLIENT_KEY_FILE is not set: it is required with NUNCIO_CLIENT_CERT_FILE');
  if (key !== undefined)
    problems.push('NUNCIO_CLIENT_CERT_FILE is not set: it is required with NUNCIO_CLIENT_KEY_FILE');
  return null;
}
