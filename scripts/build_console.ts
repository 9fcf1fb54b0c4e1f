/**
 * Builds the console into `build/console`: files with hashed names, each with its compressed forms. It runs after `npm ci`
 * (script `prepare`). It does nothing if the build is up to date, or if Vite is not installed.
 */

import { execFileSync } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { existsSync, globSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { brotliCompressSync, constants, gzipSync } from 'node:zlib';

const root = join(import.meta.dirname, '..');
const target = join(root, 'build', 'console');
const vite = join(root, 'node_modules', 'vite', 'bin', 'vite.js');

/** How long to wait for another process that builds. */
const lockTimeoutMs = 600_000;

/** @returns whether a build exists */
export async function buildConsole(): Promise<boolean> {
  if (!existsSync(vite)) return existsSync(target);
  const { writeConsoleApi } = await import('./console_api.ts');
  const { fileLock } = await import('../src/database/embedded/file_lock.ts');
  mkdirSync(join(root, 'build'), { recursive: true });
  // Several test processes may call this at once. One builds, the others wait.
  const lock = await fileLock(join(root, 'build', 'console.lock'), lockTimeoutMs);
  try {
    await writeConsoleApi();
    const digest = digestOfSources();
    if (readDigest() !== digest) build(digest);
  } finally {
    lock.release();
  }
  return true;
}

function build(digest: string): void {
  // Build into a temporary directory, so that a starting server never sees a partial build.
  const draft = join(root, 'build', `console-${randomUUID()}`);
  const parameters = [vite, 'build', join(root, 'src', 'console'), '--outDir', draft, '--logLevel', 'error'];
  // Always build for production, also when called from tests.
  const env = { ...process.env, NODE_ENV: 'production' };
  execFileSync(process.execPath, parameters, { cwd: root, stdio: 'inherit', env });
  for (const path of globSync('**/*.{js,css,svg,html}', { cwd: draft })) compress(join(draft, path));
  writeFileSync(join(draft, 'source.sha256'), digest);
  rmSync(target, { recursive: true, force: true });
  renameSync(draft, target);
}

function compress(path: string): void {
  const content = readFileSync(path);
  writeFileSync(`${path}.gz`, gzipSync(content, { level: 9 }));
  const quality = { [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY };
  writeFileSync(`${path}.br`, brotliCompressSync(content, { params: quality }));
}

function digestOfSources(): string {
  const hash = createHash('sha256');
  const sources = globSync('src/console/**/*.*', { cwd: root }).sort();
  for (const path of ['package-lock.json', 'scripts/build_console.ts', ...sources]) {
    hash.update(`${path}\n`).update(readFileSync(join(root, path)));
  }
  return hash.digest('hex');
}

function readDigest(): string | null {
  const path = join(target, 'source.sha256');
  return existsSync(path) ? readFileSync(path, 'utf8') : null;
}

if (import.meta.main) await buildConsole();
