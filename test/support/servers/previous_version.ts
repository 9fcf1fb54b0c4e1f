/**
 * The version before this one, for tests of an upgrade: its sources, from the history of this repository. A release replaces the
 * commit by its tag.
 */

import { execFile, execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { dataFolder } from '../runner/data_folder.ts';

/** A commit or tag. Databases of this version can be upgraded. */
export const previousVersion = 'f581a43';

/**
 * Refusals that the previous version cannot avoid: a statement that it has prepared no longer fits a table with new columns, and fails
 * once if it is part of a transaction (docs/upgrading.md). This version does not prepare such statements, so the next one has none.
 */
export const knownRefusal = /^(POST|PATCH|DELETE) \/subscriptions\S* at an old node: \{"status":500,/;

/** Why the sources are not there; null if they are. */
export function missingHistory(): string | null {
  const found = spawnSync('git', ['rev-parse', '--verify', '--quiet', `${previousVersion}^{commit}`]);
  if (found.status === 0) return null;
  return `the history of this checkout does not have ${previousVersion}: git fetch --unshallow`;
}

/** Returns a file of the previous version. @param path such as `migrations/0001_foundation.sql` */
export function readPrevious(path: string): string {
  return execFileSync('git', ['show', `${previousVersion}:${path}`], { encoding: 'utf8' });
}

/** Returns the names of the previous version's migrations. */
export function previousMigrations(): string[] {
  const listed = execFileSync('git', ['ls-tree', '--name-only', previousVersion, 'migrations/'], {
    encoding: 'utf8',
  });
  return listed
    .split('\n')
    .filter((path) => path.endsWith('.sql'))
    .map((path) => path.slice('migrations/'.length));
}

export interface PreviousVersion {
  folder: string;
  /** Its command line, for `startProcess`. */
  cli: string;
  /** Runs a command until it ends. @throws Error if it fails */
  run: (words: string[], settings: Record<string, string | undefined>) => Promise<string>;
  remove: () => void;
}

/** Extracts the sources into a temporary folder. They run on the packages of this version. */
export function extractPrevious(): PreviousVersion {
  const folder = mkdtempSync(join(dataFolder(), 'nuncio-previous-'));
  const archive = execFileSync('git', ['archive', '--format=tar', previousVersion], {
    maxBuffer: 256 * 1024 * 1024,
  });
  execFileSync('tar', ['-x', '-C', folder], { input: archive });
  symlinkSync(resolve('node_modules'), join(folder, 'node_modules'));
  // The console as it is built: its nodes need some files, and the test none of them.
  if (existsSync('build')) symlinkSync(resolve('build'), join(folder, 'build'));
  const cli = join(folder, 'src/cli.ts');
  return {
    folder,
    cli,
    run: async (words, settings) => {
      const { PATH, HOME } = process.env;
      const options = { cwd: folder, env: { PATH, HOME, ...settings } };
      return (await promisify(execFile)(process.execPath, [cli, ...words], options)).stdout;
    },
    remove: () => rmSync(folder, { recursive: true, force: true }),
  };
}
