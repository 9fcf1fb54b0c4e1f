/**
 * The deployment's secret: key material for cookies and for what is sealed at rest. From `NUNCIO_SECRET`, or
 * made once and kept beside the embedded database in a file that only its owner may read.
 */

import { randomBytes } from 'node:crypto';
import { linkSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Config, ConfigError, secretBytesMin } from './config.ts';

/**
 * @returns the key material, 32 bytes or more
 * @throws ConfigError when the data directory cannot be read or written, or its secret is not whole
 */
export function loadSecret(config: Config): Buffer {
  if (config.secret !== null) return Buffer.from(config.secret);
  const file = join(config.dataDir, 'secret');
  try {
    const secret = readSecret(file) ?? makeSecret(config.dataDir, file);
    // An empty file would be a key that everybody knows.
    if (secret.length < secretBytesMin) {
      throw new Error(
        `${file} has ${secret.length} bytes and must have ${secretBytesMin} or more: put back what it was, or remove it with all that it sealed`,
      );
    }
    return secret;
  } catch (error) {
    const { message } = error as Error;
    throw new ConfigError(
      [
        `NUNCIO_DATA_DIR is ${JSON.stringify(config.dataDir)}: it may be a folder that can be written (${message})`,
      ],
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
  writeFileSync(draft, `${randomBytes(32).toString('base64url')}\n`, { mode: 0o600, flush: true });
  try {
    // A link fails where the name exists: of two processes that start at once, one secret wins for both.
    linkSync(draft, file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  } finally {
    rmSync(draft, { force: true });
  }
  return readSecret(file) as Buffer;
}
