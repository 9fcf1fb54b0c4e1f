/**
 * Programs written in Go, built on first use in `node_modules/.cache`. When Go or the sources are unavailable, the reason is returned
 * and the test is skipped.
 */

import { execFile } from 'node:child_process';
import { access, mkdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { fileLock } from '../../../src/database/embedded/file_lock.ts';

const run = promisify(execFile);
const cache = fileURLToPath(new URL('../../../node_modules/.cache/', import.meta.url));
/** A large program takes some minutes to build. */
const buildMs = 1_200_000;

/**
 * @param path of the program's package, such as `helm.sh/helm/v3/cmd/helm`
 * @param version such as `v3.20.0`
 * @param tags build tags: what the program leaves out, so that building takes less time
 * @returns the path of the program, or the reason why it is unavailable
 */
export async function prepareGoTool(
  path: string,
  version: string,
  tags: readonly string[] = [],
): Promise<{ program: string } | { missing: string }> {
  const name = basename(path);
  const folder = join(cache, `${name}-${version}`);
  const program = join(folder, name);
  await mkdir(folder, { recursive: true });
  const lock = await fileLock(`${folder}.lock`, buildMs);
  try {
    await access(program).catch(() =>
      run('go', ['install', `-tags=${tags.join()}`, `${path}@${version}`], {
        env: { ...process.env, GOBIN: folder, GOFLAGS: '' },
        timeout: buildMs,
        maxBuffer: 16 * 1024 * 1024,
      }),
    );
    return { program };
  } catch (error) {
    return { missing: `${name} cannot be built: ${(error as Error).message.split('\n', 1)[0]}` };
  } finally {
    lock.release();
  }
}
