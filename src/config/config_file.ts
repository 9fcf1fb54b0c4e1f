/** The platform's declaration, where no setting names it: `nuncio.config.*` of the current directory. */

import { existsSync } from 'node:fs';
import { resolve } from 'node:path';

const names = ['nuncio.config.ts', 'nuncio.config.mts', 'nuncio.config.js', 'nuncio.config.mjs'];

/** @returns the absolute path, or null where there is none */
export function findConfigFile(folder: string): string | null {
  return names.map((name) => resolve(folder, name)).find((path) => existsSync(path)) ?? null;
}

/** The problem of a command that must not fall back to the example platform. */
export function missingConfigFile(folder: string): string {
  const [first, ...others] = names;
  return `NUNCIO_CONFIG is not set: it must name the file that declares the platform, because there is no ${resolve(folder, first as string)} (nor ${others.join(', ')} beside it)`;
}
