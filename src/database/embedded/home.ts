/**
 * Decides where and how PostgreSQL runs: its data directory, its user and its programs.
 *
 *   <dataDir>/postgres           the data directory, mode 0700, with the socket and the password
 *   <dataDir>/postgres.log       the log
 *   <dataDir>/postgres.place     names the directory used instead, if PostgreSQL's user cannot reach <dataDir>
 */
import { createHash, randomBytes } from 'node:crypto';
import { constants, existsSync, type Stats } from 'node:fs';
import {
  chmod,
  cp,
  lchown,
  lstat,
  mkdir,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Binaries } from './binaries.ts';
import { EmbeddedError, errorCode } from './error.ts';
import {
  canEnter,
  canRun,
  fallbackIdentity,
  type Identity,
  identityOf,
  namespaceIdentity,
  ownIdentity,
} from './identity.ts';

export interface Home {
  identity: Identity;
  /** The data directory. It may not exist yet. */
  cluster: string;
  /** Directory with `bin`, `lib` and `share`. */
  native: string;
  /** For the log. */
  description: string;
}

/** Returns the path of the data directory, which may not exist yet. */
export async function clusterOf(dataDir: string): Promise<string> {
  const place = await readFile(join(dataDir, 'postgres.place'), 'utf8').catch(() => '');
  return join(place.trim() || dataDir, 'postgres');
}

/** Identifies the processes of this data directory by their command lines. */
export function clusterName(cluster: string): string {
  return `nuncio-${digestOf(cluster)}`;
}

/**
 * Decides how PostgreSQL runs for this data directory. Call it only while PostgreSQL is stopped: it may change file owners.
 * @throws EmbeddedError
 */
export async function resolveHome(dataDir: string, binaries: Binaries): Promise<Home> {
  const cluster = await clusterOf(dataDir);
  const owner = (await statOf(cluster))?.uid;
  const uid = process.getuid?.() ?? 0;
  if (uid !== 0 && owner !== undefined && owner !== uid) {
    throw new EmbeddedError(
      `${cluster} belongs to uid ${owner}, not to uid ${uid}: run as that user, or choose another data directory.`,
    );
  }
  const { native } = binaries;
  const postgres = join(native, 'bin', 'postgres');
  const own = ownIdentity();
  if (own !== undefined) return { identity: own, cluster, native, description: own.description };

  if (owner === undefined || owner === uid) {
    const directory = owner === undefined ? dataDir : cluster;
    const identity = await namespaceIdentity(postgres, directory);
    if (identity !== undefined) return { identity, cluster, native, description: identity.description };
  }
  if (uid !== 0) {
    throw new EmbeddedError(
      `uid ${uid} has no name on this machine and user namespaces are not permitted, so PostgreSQL cannot run: set DATABASE_URL.`,
    );
  }
  return resolveForOtherUser(dataDir, cluster, owner, binaries);
}

/** For root without user namespaces: another user, with the data and the programs where that user can reach them. */
async function resolveForOtherUser(
  dataDir: string,
  cluster: string,
  owner: number | undefined,
  binaries: Binaries,
): Promise<Home> {
  const identity = owner ? await identityOf(owner) : await fallbackIdentity();
  if (identity?.other === undefined) {
    throw new EmbeddedError(
      'PostgreSQL does not run as root, user namespaces are not permitted and there is no user postgres or nobody: run as an ordinary user, or set DATABASE_URL.',
    );
  }
  const { uid, gid } = identity.other;
  const place = await placeFor(identity, dataDir, owner === undefined ? undefined : join(cluster, '..'));
  // Root created the data in a namespace, when namespaces were still permitted.
  if (owner === 0) await changeOwner(cluster, uid, gid);

  const native = (await canRun(identity, join(binaries.native, 'bin', 'postgres')))
    ? binaries.native
    : await copyNative(binaries, place);
  const where = `data in ${join(place, 'postgres')}${native === binaries.native ? '' : ', programs copied beside it'}`;
  const why = owner ? 'who owns the data' : 'because root may not use a user namespace here';
  return {
    identity,
    cluster: join(place, 'postgres'),
    native,
    description: `${identity.description}, ${why} (${where})`,
  };
}

/** Returns a directory that the other user can enter: the one in use, the data directory, or a new one elsewhere. */
async function placeFor(identity: Identity, dataDir: string, inUse: string | undefined): Promise<string> {
  if (inUse !== undefined) {
    await letThrough(inUse);
    if (await canEnter(identity, inUse)) return inUse;
    throw new EmbeddedError(
      `The data in ${inUse} cannot be reached ${identity.description}, and user namespaces are not permitted: choose another data directory, or set DATABASE_URL.`,
    );
  }
  const before = await statOf(dataDir);
  await letThrough(dataDir);
  if (await canEnter(identity, dataDir)) return dataDir;
  if (before !== undefined) await chmod(dataDir, before.mode & 0o7777);

  for (const parent of ['/var/lib', tmpdir()]) {
    const place = join(parent, `nuncio-${digestOf(dataDir)}`);
    try {
      await createPrivateDirectory(place, 0o711, 0);
    } catch (error) {
      if (error instanceof EmbeddedError) throw error;
      continue;
    }
    if (!(await canEnter(identity, place))) continue;
    await writeFile(join(dataDir, 'postgres.place'), `${place}\n`, { mode: 0o600, flush: true });
    return place;
  }
  throw new EmbeddedError(
    `No directory was found that PostgreSQL can reach ${identity.description}: run as an ordinary user, or set DATABASE_URL.`,
  );
}

/** Lets other users pass through a directory of root, without listing it. The entries keep their own modes. */
async function letThrough(folder: string): Promise<void> {
  const { uid, mode } = await stat(folder);
  const wanted = (mode & 0o7777) | constants.S_IXOTH | constants.S_IXGRP;
  if (uid === 0 && wanted !== (mode & 0o7777)) await chmod(folder, wanted);
}

/**
 * Creates a directory in a place that is open to all users. If it exists, checks its owner and mode.
 * @throws EmbeddedError when another user owns it, or its mode differs
 */
export async function createPrivateDirectory(
  path: string,
  mode: number,
  uid: number,
  gid?: number,
): Promise<void> {
  try {
    await mkdir(path, { mode });
    await chmod(path, mode);
    if (gid !== undefined) await lchown(path, uid, gid);
  } catch (error) {
    if (errorCode(error) !== 'EEXIST') throw error;
  }
  const found = await lstat(path);
  if (!found.isDirectory() || found.uid !== uid || (found.mode & 0o777) !== mode) {
    throw new EmbeddedError(
      `${path} is not the directory that Nuncio created (owner ${found.uid}, mode ${(found.mode & 0o777).toString(8)}): remove it.`,
    );
  }
}

/** Copies the programs into `place`, readable by all users. */
async function copyNative(binaries: Binaries, place: string): Promise<string> {
  const target = join(place, `postgres.native-${binaries.version}`);
  if (existsSync(target)) return target;
  const staging = `${target}.${randomBytes(6).toString('hex')}`;
  try {
    await cp(binaries.native, staging, { recursive: true, verbatimSymlinks: true });
    await eachEntry(staging, (path, entry) => (entry.isSymbolicLink() ? undefined : chmod(path, 0o755)));
    await rename(staging, target);
  } finally {
    await rm(staging, { recursive: true, force: true });
  }
  return target;
}

/** Changes the top directory last, so that the next start repeats an interrupted change. */
async function changeOwner(folder: string, uid: number, gid: number): Promise<void> {
  await eachEntry(folder, (path) => lchown(path, uid, gid));
}

async function eachEntry(path: string, visit: (path: string, entry: Stats) => unknown): Promise<void> {
  const entry = await lstat(path);
  if (entry.isDirectory()) {
    for (const name of await readdir(path)) await eachEntry(join(path, name), visit);
  }
  await visit(path, entry);
}

async function statOf(path: string): Promise<Stats | undefined> {
  return stat(path).catch((error: unknown) => {
    if (errorCode(error) === 'ENOENT') return undefined;
    throw error;
  });
}

function digestOf(path: string): string {
  return createHash('sha256').update(path).digest('hex').slice(0, 16);
}
