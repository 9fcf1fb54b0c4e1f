/** The platform's declaration, where no setting names it: `nuncio.config.ts` of the current directory. */

import { existsSync } from 'node:fs';
import { resolve } from 'node:path';

const names = ['nuncio.config.ts', 'nuncio.config.mts', 'nuncio.config.js', 'nuncio.config.mjs'];

/** @returns the absolute path, or null where there is none */
export function findConfigFile(folder: string): string | null {
  return names.map((name) => resolve(folder, name)).find((path) => existsSync(path)) ?? null;
}
