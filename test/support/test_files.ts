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

/** Returns the test files of the rooms and files named, or all test files when nothing is named. */
export async function findTestFiles(names: readonly string[]): Promise<string[]> {
  if (names.length === 0) return (await Array.fromAsync(glob('test/**/*.test.ts'))).sort();
  const files: string[] = [];
  for (const name of names) {
    const path = /^test(\/|$)/.test(name) ? name : join('test', name);
    const found = path.endsWith('.ts') ? [path] : await Array.fromAsync(glob(`${path}/**/*.test.ts`));
    if (found.length === 0 || !existsSync(path)) throw new Error(`No tests at ${path}`);
    files.push(...found.sort());
  }
  return files;
}
