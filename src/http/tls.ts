/**
 * TLS of the server. Reloads certificate and key when their files change and on SIGHUP, without closing connections.
 */

import { constants } from 'node:crypto';
import { readFileSync, unwatchFile, watchFile } from 'node:fs';
import type { Server, ServerOptions } from 'node:https';
import { createSecureContext, type SecureContextOptions } from 'node:tls';
import { ConfigError } from '../config/config.ts';
import type { TlsFiles } from '../config/tls_files.ts';
import { tlsGroups } from '../egress/tls_groups.ts';

/** Interval between checks of the files. */
const pollMs = 5_000;

/**
 * Only suites with forward secrecy and authenticated encryption (RFC 9325 section 4.2): no static RSA and no CBC in TLS 1.2.
 * The first three are the suites of TLS 1.3.
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
 * @param requestCertificate whether to request a client certificate (RFC 8705); clients may decline
 * @throws ConfigError with the name of the unusable file
 */
export function tlsOptions(files: TlsFiles, requestCertificate: boolean): ServerOptions {
  return {
    ...contextOptions(files, requestCertificate),
    requestCert: requestCertificate,
    // The client's registration decides which certificate is valid.
    rejectUnauthorized: false,
  };
}

function contextOptions(files: TlsFiles, requestCertificate: boolean): SecureContextOptions {
  return {
    ...readMaterial(files),
    minVersion: 'TLSv1.2',
    ciphers: cipherSuites,
    ecdhCurve: tlsGroups,
    // Without session tickets, a client certificate is valid only for the connection that presented it. Another handshake in the same connection would
    // have certificates that nothing has checked (overload/encrypted_pieces.ts).
    ...(requestCertificate
      ? { secureOptions: constants.SSL_OP_NO_TICKET | constants.SSL_OP_NO_RENEGOTIATION }
      : {}),
  };
}

/**
 * Watches the files and reloads them.
 * @param onReload called after each reload; with an error if the new files are unusable, in which case the old ones stay
 * @returns a function that stops watching
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
  // Poll, because file system events do not follow the symbolic links that certificate tools replace.
  for (const path of paths) watchFile(path, { interval: pollMs, persistent: false }, reload);
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
      const content = name === 'NUNCIO_TLS_KEY_FILE' ? 'the key of the certificate' : 'certificates';
      throw new ConfigError([`${name} is "${path}": it must be a PEM file with ${content}`], { cause });
    }
  }
  return material;
}

function read(name: string, path: string): Buffer {
  try {
    return readFileSync(path);
  } catch (cause) {
    throw new ConfigError([`${name} is "${path}": it must be a file that this user can read`], { cause });
  }
}
