/**
 * The deployment's secret: key material for cookies and for encryption at rest. Comes from `NUNCIO_SECRET`, or is generated
 * once and stored in the data directory in a file that only its owner may read.
 */

import { randomBytes } from 'node:crypto';
import { linkSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Config, ConfigError, secretBytesMin } from './config.ts';

/**
 * @returns the key material, 32 bytes or more
 * @throws ConfigError if the data directory is not accessible, or its secret is incomplete
 */
export function loadSecret(config: Config): Buffer {
  if (config.secret !== null) return Buffer.from(config.secret);
  const file = join(config.dataDir, 'secret');
  try {
    const secret = readSecret(file) ?? makeSecret(config.dataDir, file);
    // A truncated file must not be used: an empty key is known to everyone.
    if (secret.length < secretBytesMin) {
      throw new Error(
        `${file} has ${secret.length} bytes but must have ${secretBytesMin} or more: restore it, or delete it together with all data encrypted with it`,
      );
    }
    return secret;
  } catch (error) {
    const { message } = error as Error;
    throw new ConfigError(
      [`NUNCIO_DATA_DIR is ${JSON.stringify(config.dataDir)}: it must be a writable folder (${message})`],
      { cause: error },
    );
  }
}

function readSecret(file: string): Buffer | undefined {
  try {
    return Buffer.from(readFileSync(file, 'utf8').trim());
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
    throw error;
  }
}

function makeSecret(dataDir: string, file: string): Buffer {
  mkdirSync(dataDir, { recursive: true, mode: 0o700 });
  const draft = `${file}.${process.pid}`;
  // In a folder that others can write, the name may be their file, which they could read, or a link to another file.
  rmSync(draft, { force: true });
  const secret = `${randomBytes(32).toString('base64url')}\n`;
  writeFileSync(draft, secret, { mode: 0o600, flush: true, flag: 'wx' });
  try {
    // link(2) fails if the name exists, so that of two processes starting concurrently both use the same secret.
    linkSync(draft, file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  } finally {
    rmSync(draft, { force: true });
  }
  return readSecret(file) as Buffer;
}
