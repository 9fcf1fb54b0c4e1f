/**
 * Python for tests: a virtual environment with the pinned packages of a requirements file, created on first
 * use in `node_modules/.cache`. When Python or its packages are unavailable, the reason is returned and the
 * test is skipped.
 */

import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { access, mkdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const run = promisify(execFile);
const cache = fileURLToPath(new URL('../../../node_modules/.cache/', import.meta.url));

/** Timeout for installing the packages. An unreachable registry must not delay the suite. */
const installMs = 300_000;

export type Python = { bin: (program: string) => string } | { missing: string };

/** @param requirements a file with one pinned package on each line */
export async function preparePython(requirements: string): Promise<Python> {
  const digest = createHash('sha256')
    .update(await readFile(requirements))
    .digest('hex');
  const folder = join(cache, `python-${digest.slice(0, 16)}`);
  const bin = (program: string) => join(folder, 'bin', program);
  const done = join(folder, 'complete');
  try {
    await access(done);
    return { bin };
  } catch {}
  try {
    await run('python3', ['-c', 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))']);
  } catch (error) {
    return { missing: `no Python 3.10 with venv: ${firstLine(error)}` };
  }
  await rm(folder, { recursive: true, force: true });
  await mkdir(cache, { recursive: true });
  try {
    await run('python3', ['-m', 'venv', folder]);
    const options = ['--quiet', '--disable-pip-version-check', '--retries', '1', '--timeout', '15'];
    await run(bin('pip'), ['install', ...options, '--requirement', requirements], { timeout: installMs });
  } catch (error) {
    return { missing: `the Python packages cannot be installed: ${firstLine(error)}` };
  }
  await writeFile(done, '');
  return { bin };
}

function firstLine(error: unknown): string {
  const { stderr = '', message } = error as { stderr?: string; message: string };
  return (stderr.trim().split('\n').at(-1) || message).slice(0, 300);
}
