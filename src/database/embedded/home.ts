/**
 * Where PostgreSQL lives: its data directory, the user it runs as, the programs it runs from.
 *
 *   <dataDir>/postgres           the data directory, mode 0700, with the socket and the password in it
 *   <dataDir>/postgres.log       its log
 *   <dataDir>/postgres.place     only where another user must run it and cannot reach <dataDir>: the folder used instead
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
  /** PostgreSQL's data directory; may not exist yet. */
  cluster: string;
  /** Folder with `bin`, `lib` and `share`. */
  native: string;
  /** For the log. */
  description: string;
}

/** The data directory, wherever it is; may not exist yet. */
export async function clusterOf(dataDir: string): Promise<string> {
  const place = await readFile(join(dataDir, 'postgres.place'), 'utf8').catch(() => '');
  return join(place.trim() || dataDir, 'postgres');
}

/** What the processes of this data directory carry in their command lines, to be told from all others. */
export function clusterName(cluster: string): string {
  return `nuncio-${digestOf(cluster)}`;
}

/**
 * Decides how PostgreSQL runs for this data directory. To be called while it does not run: it may change owners.
 * @throws EmbeddedError
 */
export async function settle(dataDir: string, binaries: Binaries): Promise<Home> {
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
      `uid ${uid} has no name on this machine and user namespaces are refused, so PostgreSQL cannot run: set DATABASE_URL.`,
    );
  }
  return settleForOther(dataDir, cluster, owner, binaries);
}

/** Root, and user namespaces do not do: another user, with data and programs where it can reach them. */
async function settleForOther(
  dataDir: string,
  cluster: string,
  owner: number | undefined,
  binaries: Binaries,
): Promise<Home> {
  const identity = owner ? await identityOf(owner) : await fallbackIdentity();
  if (identity?.other === undefined) {
    throw new EmbeddedError(
      'PostgreSQL does not run as root, user namespaces are refused and there is no user postgres or nobody: run as an ordinary user, or set DATABASE_URL.',
    );
  }
  const { uid, gid } = identity.other;
  const place = await placeFor(identity, dataDir, owner === undefined ? undefined : join(cluster, '..'));
  // Written by root in a namespace, before namespaces were refused.
  if (owner === 0) await changeOwner(cluster, uid, gid);

  const native = (await canRun(identity, join(binaries.native, 'bin', 'postgres')))
    ? binaries.native
    : await copyNative(binaries, place);
  const where = `data in ${join(place, 'postgres')}${native === binaries.native ? '' : ', programs copied beside it'}`;
  const why = owner ? 'to whom the data belong' : 'because root may not use a user namespace here';
  return {
    identity,
    cluster: join(place, 'postgres'),
    native,
    description: `${identity.description}, ${why} (${where})`,
  };
}

/** A folder that the other user can enter: the one in use, or the data directory, or one of its own elsewhere. */
async function placeFor(identity: Identity, dataDir: string, inUse: string | undefined): Promise<string> {
  if (inUse !== undefined) {
    await letThrough(inUse);
    if (await canEnter(identity, inUse)) return inUse;
    throw new EmbeddedError(
      `The data in ${inUse} cannot be reached ${identity.description}, and user namespaces are refused: choose another data directory, or set DATABASE_URL.`,
    );
  }
  const before = await statOf(dataDir);
  await letThrough(dataDir);
  if (await canEnter(identity, dataDir)) return dataDir;
  if (before !== undefined) await chmod(dataDir, before.mode & 0o7777);

  for (const parent of ['/var/lib', tmpdir()]) {
    const place = join(parent, `nuncio-${digestOf(dataDir)}`);
    try {
      await ownFolder(place, 0o711, 0);
    } catch (error) {
      if (error instanceof EmbeddedError) throw error;
      continue;
    }
    if (!(await canEnter(identity, place))) continue;
    await writeFile(join(dataDir, 'postgres.place'), `${place}\n`, { mode: 0o600, flush: true });
    return place;
  }
  throw new EmbeddedError(
    `No folder was found that PostgreSQL can reach ${identity.description}: run as an ordinary user, or set DATABASE_URL.`,
  );
}

/** Others may pass through a folder of root's, not list it: what is in it has modes of its own. */
async function letThrough(folder: string): Promise<void> {
  const { uid, mode } = await stat(folder);
  const wanted = (mode & 0o7777) | constants.S_IXOTH | constants.S_IXGRP;
  if (uid === 0 && wanted !== (mode & 0o7777)) await chmod(folder, wanted);
}

/**
 * Makes a folder, or checks that one of this name is what we would have made: its parent is open to everybody.
 * @throws EmbeddedError when it is somebody else's or too open
 */
export async function ownFolder(path: string, mode: number, uid: number, gid?: number): Promise<void> {
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
      `${path} is not the folder that Nuncio made (owner ${found.uid}, mode ${(found.mode & 0o777).toString(8)}): remove it.`,
    );
  }
}

/** The programs, copied as a whole into the place, readable by everybody. */
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

/** The top folder last, so that a change that was cut off is taken up again. */
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
