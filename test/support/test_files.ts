/** Test files, by the names that people and documents give them. */

import { existsSync } from 'node:fs';
import { glob } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

export const testFolder = fileURLToPath(new URL('../', import.meta.url));

/** Returns the path of a test file below `test/`: documents name it like this. */
export function testFileName(path: string): string {
  return relative(testFolder, path);
}

/**
 * Returns the test files that the names stand for, or all test files when there are no names. A name is a room
 * (`webhooks/lanes`), a test in it (`webhooks/lanes/hosts`) or a file's path.
 */
export async function findTestFiles(names: readonly string[]): Promise<string[]> {
  const paths = names.length === 0 ? ['test'] : names.map(pathOf);
  return (await Promise.all(paths.map(filesAt))).flat();
}

function pathOf(name: string): string {
  const path = /^test(\/|$)/.test(name) ? name : join('test', name);
  return existsSync(`${path}.test.ts`) && !existsSync(path) ? `${path}.test.ts` : path;
}

async function filesAt(path: string): Promise<string[]> {
  const pattern = path.endsWith('.ts') ? path : join(path, '**/*.test.ts');
  const found = await Array.fromAsync(glob(pattern));
  if (found.length === 0) throw new Error(`There are no tests at ${path}.`);
  return found.sort();
}
