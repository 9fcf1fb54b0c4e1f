/**
 * Builds the console into `build/console`: hashed files, each beside its compressed forms. It runs after `npm ci` (the
 * script `prepare`) and does nothing where the build is up to date, or where what builds is not installed.
 */

import { execFileSync } from 'node:child_process';
import { createHash, randomUUID } from 'node:crypto';
import { existsSync, globSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { brotliCompressSync, constants, gzipSync } from 'node:zlib';

const root = join(import.meta.dirname, '..');
const target = join(root, 'build', 'console');
const vite = join(root, 'node_modules', 'vite', 'bin', 'vite.js');

/** Milliseconds that another build may take. */
const otherBuildMs = 600_000;

/** @returns whether there is a build in the end */
export async function buildConsole(): Promise<boolean> {
  if (!existsSync(vite)) return existsSync(target);
  const { writeConsoleApi } = await import('./console_api.ts');
  const { fileLock } = await import('../src/database/embedded/file_lock.ts');
  mkdirSync(join(root, 'build'), { recursive: true });
  // Tests ask for it in several processes at once: one builds, the others wait.
  const lock = await fileLock(join(root, 'build', 'console.lock'), otherBuildMs);
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
  // Under a name of its own first: a server that starts meanwhile never sees half of it.
  const draft = join(root, 'build', `console-${randomUUID()}`);
  const parameters = [vite, 'build', join(root, 'src', 'console'), '--outDir', draft, '--logLevel', 'error'];
  // Whatever it is called from: a build for tests is the one that is served.
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
