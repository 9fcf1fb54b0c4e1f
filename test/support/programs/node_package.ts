/**
 * npm packages that a single test needs and that are too large for everybody's `npm ci`: installed on first use in
 * `node_modules/.cache`. When the registry is unavailable, the reason is returned and the test is skipped.
 */

import { access, mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { fileLock } from '../../../src/database/embedded/file_lock.ts';
import { npm } from './installed_package.ts';

const cache = fileURLToPath(new URL('../../../node_modules/.cache/', import.meta.url));
/** Timeout for another test file that is installing the same package. */
const otherInstallMs = 600_000;

/** @returns the folder of the package, or the reason why it is unavailable */
export async function prepareNodePackage(
  name: string,
  version: string,
): Promise<{ folder: string } | { missing: string }> {
  const home = join(cache, `${name.replaceAll('/', '-')}-${version}`);
  const folder = join(home, 'node_modules', name);
  const done = join(home, 'complete');
  await mkdir(cache, { recursive: true });
  const lock = await fileLock(`${home}.lock`, otherInstallMs);
  try {
    await access(done).catch(async () => {
      await rm(home, { recursive: true, force: true });
      await mkdir(home);
      // Otherwise npm installs into the folder of the project above.
      await writeFile(join(home, 'package.json'), '{}');
      await npm(['install', '--ignore-scripts', `${name}@${version}`], home);
      await writeFile(done, '');
    });
    return { folder };
  } catch (error) {
    return { missing: `npm has no ${name} ${version}: ${(error as Error).message.split('\n', 1)[0]}` };
  } finally {
    lock.release();
  }
}
