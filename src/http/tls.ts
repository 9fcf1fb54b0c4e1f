/**
 * TLS of the server itself: its certificate and key from files, read again when they change (whoever renews
 * certificates replaces the files) and on SIGHUP, without a connection being closed.
 */

import { constants } from 'node:crypto';
import { readFileSync, unwatchFile, watchFile } from 'node:fs';
import type { Server, ServerOptions } from 'node:https';
import { createSecureContext, type SecureContextOptions } from 'node:tls';
import { ConfigError, type TlsFiles } from '../config/config.ts';

/** Milliseconds between two looks at the files. */
const lookMs = 5_000;

/**
 * Forward secrecy and authenticated encryption alone (RFC 9325 section 4.2): neither static RSA nor CBC in TLS 1.2.
 * The first three are those of TLS 1.3.
 */
const cipherSuites = [
  'TLS_AES_256_GCM_SHA384',
  'TLS_CHACHA20_POLY1305_SHA256',
  'TLS_AES_128_GCM_SHA256',
  'ECDHE-ECDSA-AES128-GCM-SHA256',
  'ECDHE-RSA-AES128-GCM-SHA256',
  'ECDHE-ECDSA-AES256-GCM-SHA384',
  'ECDHE-RSA-AES256-GCM-SHA384',
  'ECDHE-ECDSA-CHACHA20-POLY1305',
  'ECDHE-RSA-CHACHA20-POLY1305',
].join(':');

interface TlsMaterial {
  cert: Buffer;
  key: Buffer;
  ca?: Buffer;
}

/**
 * @param requestCertificate whether clients are asked for a certificate (RFC 8705); none is still a connection
 * @throws ConfigError naming the file that cannot be used
 */
export function tlsOptions(files: TlsFiles, requestCertificate: boolean): ServerOptions {
  return {
    ...contextOptions(files, requestCertificate),
    requestCert: requestCertificate,
    // What a certificate is good for is decided by each client's registration.
    rejectUnauthorized: false,
  };
}

function contextOptions(files: TlsFiles, requestCertificate: boolean): SecureContextOptions {
  return {
    ...readMaterial(files),
    minVersion: 'TLSv1.2',
    ciphers: cipherSuites,
    // Nothing that was found out of a client's certificate outlives the connection it was shown on.
    ...(requestCertificate ? { secureOptions: constants.SSL_OP_NO_TICKET } : {}),
  };
}

/**
 * @param onReload told of each reading: with the reason where what is there now cannot be used, and what was before stays
 * @returns a function that ends it
 */
export function watchTls(
  server: Server,
  files: TlsFiles,
  requestCertificate: boolean,
  onReload: (error?: unknown) => void,
): () => void {
  const reload = () => {
    try {
      server.setSecureContext(contextOptions(files, requestCertificate));
      onReload();
    } catch (error) {
      onReload(error);
    }
  };
  const paths = [files.certFile, files.keyFile, ...(files.clientCaFile === null ? [] : [files.clientCaFile])];
  // By looking instead of by the system's notices: those do not follow the links that renewing tools exchange.
  for (const path of paths) watchFile(path, { interval: lookMs, persistent: false }, reload);
  process.on('SIGHUP', reload);
  return () => {
    for (const path of paths) unwatchFile(path, reload);
    process.removeListener('SIGHUP', reload);
  };
}

function readMaterial({ certFile, keyFile, clientCaFile }: TlsFiles): TlsMaterial {
  const material: TlsMaterial = {
    cert: read('NUNCIO_TLS_CERT_FILE', certFile),
    key: read('NUNCIO_TLS_KEY_FILE', keyFile),
    ...(clientCaFile === null ? {} : { ca: read('NUNCIO_TLS_CLIENT_CA_FILE', clientCaFile) }),
  };
  for (const [name, path, part] of [
    ['NUNCIO_TLS_CERT_FILE', certFile, { cert: material.cert }],
    ['NUNCIO_TLS_KEY_FILE', keyFile, { cert: material.cert, key: material.key }],
    ['NUNCIO_TLS_CLIENT_CA_FILE', clientCaFile, { ca: material.ca }],
  ] as const) {
    try {
      createSecureContext(part);
    } catch (cause) {
      const mayBe = name === 'NUNCIO_TLS_KEY_FILE' ? 'the key of the certificate' : 'certificates';
      throw new ConfigError([`${name} is "${path}": it may be a file with ${mayBe}, as PEM`], { cause });
    }
  }
  return material;
}

function read(name: string, path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw new ConfigError([`${name} is "${path}": it may be a file that this user can read`], { cause });
  }
}
