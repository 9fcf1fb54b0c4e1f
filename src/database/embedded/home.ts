/**
 * Decides where and how PostgreSQL runs: its data directory, its user and its programs.
 *
 *   <dataDir>/postgres           the data directory, mode 0700, with the socket and the password
 *   <dataDir>/postgres.log       the log
 */
import { createHash } from 'node:crypto';
import type { Stats } from 'node:fs';
import { chmod, lchown, lstat, mkdir, readdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { EmbeddedError, errorCode } from './error.ts';
import { type Identity, ownIdentity, run, unprivilegedIdentity } from './identity.ts';

export interface Home {
  identity: Identity;
  /** The data directory. It may not exist yet. */
  cluster: string;
  /** Directory with `bin`, `lib` and `share`. */
  native: string;
}

/** Returns the path of the data directory, which may not exist yet. */
export function clusterOf(dataDir: string): string {
  return join(dataDir, 'postgres');
}

/** Identifies the processes of this data directory by their command lines. */
export function clusterName(cluster: string): string {
  return `nuncio-${createHash('sha256').update(cluster).digest('hex').slice(0, 16)}`;
}

/**
 * Decides how PostgreSQL runs for this data directory. Call it only while PostgreSQL is stopped: it may change file owners.
 * @param native directory with `bin`, `lib` and `share`
 * @throws EmbeddedError
 */
export async function resolveHome(dataDir: string, native: string): Promise<Home> {
  const cluster = clusterOf(dataDir);
  const found = await statOf(cluster);
  const own = ownIdentity();
  if (own.uid === 0) return resolveForRoot(cluster, found, native);
  if (found !== undefined && found.uid !== own.uid) {
    throw new EmbeddedError(
      `${cluster} belongs to uid ${found.uid}, not to uid ${own.uid}: run as that user, or choose another data directory.`,
    );
  }
  return { identity: own, cluster, native };
}

async function resolveForRoot(cluster: string, found: Stats | undefined, native: string): Promise<Home> {
  const identity = unprivilegedIdentity(found ?? { uid: 0, gid: 0 });
  if (identity === undefined) {
    throw new EmbeddedError(
      'PostgreSQL does not run as root, and there is no user postgres or nobody: run as an ordinary user, or set DATABASE_URL.',
    );
  }
  const { code, output } = await run(identity, join(native, 'bin', 'postgres'), ['--version']);
  if (code !== 0) {
    throw new EmbeddedError(
      `PostgreSQL does not run as root, and cannot be run ${identity.description} (${output.trim()}): run as an ordinary user, or set DATABASE_URL.`,
    );
  }
  // A backup that root restored, for example.
  if (found?.uid === 0) await changeOwner(cluster, identity);
  return { identity, cluster, native };
}

/**
 * Creates a directory of mode 0700. If it exists, checks its owner and mode, because another user may have created it.
 * @throws EmbeddedError when another user owns it, or its mode differs
 */
export async function createPrivateDirectory(path: string, { uid, gid }: Identity): Promise<void> {
  try {
    await mkdir(path, { mode: 0o700 });
    await chmod(path, 0o700);
    if (uid !== process.getuid?.()) await lchown(path, uid, gid);
  } catch (error) {
    if (errorCode(error) !== 'EEXIST') throw error;
  }
  const found = await lstat(path);
  if (!found.isDirectory() || found.uid !== uid || (found.mode & 0o777) !== 0o700) {
    throw new EmbeddedError(
      `${path} is not the directory that Nuncio created (owner ${found.uid}, mode ${(found.mode & 0o777).toString(8)}): remove it.`,
    );
  }
}

/** Changes the top directory last, so that the next start repeats an interrupted change. */
export async function changeOwner(path: string, identity: Identity): Promise<void> {
  if ((await lstat(path)).isDirectory()) {
    for (const name of await readdir(path)) await changeOwner(join(path, name), identity);
  }
  await lchown(path, identity.uid, identity.gid);
}

async function statOf(path: string): Promise<Stats | undefined> {
  return stat(path).catch((error: unknown) => {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  });
}
