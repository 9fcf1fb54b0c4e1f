/**
 * Restores a backup into an empty data directory.
 *
 *   files copied and compared → postgres.new-<random> → PostgreSQL recovers there → prepared by the caller → renamed to postgres
 *
 * A restore that fails or is killed leaves no database: the next start or restore removes `postgres.new-…` (cluster.ts).
 */
import { randomBytes } from 'node:crypto';
import { mkdir, open, realpath, rename, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { requireEmpty } from './backup.ts';
import {
  type BackupDescription,
  type BackupFile,
  checkFile,
  clusterFolder,
  readDescription,
  readManifest,
  secretName,
} from './backup_folder.ts';
import { manifestName } from './base_backup.ts';
import { findBinaries } from './binaries.ts';
import { lastLine, passwordOf, removeLeftovers, syncFolder } from './cluster.ts';
import { EmbeddedError, explainFileError } from './error.ts';
import { fileLock } from './file_lock.ts';
import { changeOwner, clusterOf, type Home, resolveHome } from './home.ts';
import { run } from './identity.ts';
import { connectionString, findPostmaster, startPostmaster, stopPostmaster } from './postmaster.ts';

const locksFolder = 'postgres.locks';
/** What an interrupted restore leaves behind, and what every process of Nuncio creates. */
const ignored = /^(?:postgres\.locks|postgres\.log|postgres\.new-.*)$/;
const startLockTimeoutMs = 10_000;

export interface RestoreOptions {
  /** Absent or empty. */
  dataDir: string;
  /** Folder of the backup. */
  folder: string;
  /** Changes the restored database before anything else can use it. If it throws, nothing is restored. */
  prepare: (connectionString: string) => Promise<void>;
}

/**
 * @returns what the backup says of itself
 * @throws EmbeddedError if the data directory has content, or the backup is damaged or of another version of PostgreSQL
 */
export async function restoreBackup(options: RestoreOptions): Promise<BackupDescription> {
  const { folder } = options;
  const binaries = findBinaries();
  const description = await readDescription(folder, binaries.major);
  const files = [...(await readManifest(folder, manifestName)), ...description.files];
  await requireEmpty(options.dataDir, ignored);
  try {
    await mkdir(join(options.dataDir, locksFolder), { recursive: true, mode: 0o700 });
    const dataDir = await realpath(options.dataDir);
    const lock = await fileLock(join(dataDir, locksFolder, 'start'), startLockTimeoutMs);
    try {
      // Another process may have created a database meanwhile.
      await requireEmpty(dataDir, ignored);
      await removeLeftovers(clusterOf(dataDir));
      await restoreInto(dataDir, binaries.native, description, files, options);
      return description;
    } finally {
      lock.release();
    }
  } catch (error) {
    throw explainFileError(error, 'The backup cannot be restored');
  }
}

async function restoreInto(
  dataDir: string,
  native: string,
  description: BackupDescription,
  files: readonly BackupFile[],
  { folder, prepare }: RestoreOptions,
): Promise<void> {
  const home = await resolveHome(dataDir, native);
  const staging = `${home.cluster}.new-${randomBytes(6).toString('hex')}`;
  const secret = join(dataDir, secretName);
  try {
    await mkdir(staging, { mode: 0o700 });
    for (const path of description.folders)
      await mkdir(join(staging, path), { recursive: true, mode: 0o700 });
    for (const file of files.filter(({ path }) => path !== secretName))
      await copyChecked(folder, file, join(staging, withinCluster(file)));
    await changeOwner(staging, home.identity);
    await recover({ ...home, cluster: staging }, join(dataDir, 'postgres.log'), prepare);
    await syncAll({ ...home, cluster: staging });
    for (const file of files.filter(({ path }) => path === secretName))
      await copyChecked(folder, file, secret);
    await rename(staging, home.cluster);
    await syncFolder(dataDir);
  } catch (error) {
    await rm(staging, { recursive: true, force: true });
    await rm(secret, { force: true });
    throw error;
  }
}

/** @throws EmbeddedError if the description names a file elsewhere */
function withinCluster({ path }: BackupFile): string {
  const prefix = `${clusterFolder}/`;
  if (!path.startsWith(prefix)) throw new EmbeddedError(`The backup is damaged: it lists ${path}.`);
  return path.slice(prefix.length);
}

async function copyChecked(folder: string, file: BackupFile, target: string): Promise<void> {
  await mkdir(dirname(target), { recursive: true, mode: 0o700 });
  const copy = await open(target, 'wx', 0o600);
  try {
    await checkFile(folder, file, async (chunk) => {
      await copy.writeFile(chunk);
    });
  } finally {
    await copy.close();
  }
}

/** Starts PostgreSQL, which replays the WAL of the backup and refuses one that ends too early. */
async function recover(home: Home, logFile: string, prepare: RestoreOptions['prepare']): Promise<void> {
  await writeFile(logFile, '', { flag: 'a', mode: 0o600 });
  const client = await startPostmaster(home, logFile);
  try {
    await client.end();
    const postmaster = await findPostmaster(home.cluster);
    const socketDirectory = postmaster?.socketDirectory ?? home.cluster;
    await prepare(connectionString(socketDirectory, await passwordOf(home.cluster), 'nuncio'));
  } finally {
    const postmaster = await findPostmaster(home.cluster);
    if (postmaster !== undefined) await stopPostmaster(postmaster);
  }
}

/** Writes everything to the disk before the data directory gets its name. */
async function syncAll(home: Home): Promise<void> {
  const initdb = join(home.native, 'bin', 'initdb');
  const { code, output } = await run(home.identity, initdb, ['--sync-only', '-D', home.cluster]);
  if (code !== 0)
    throw new EmbeddedError(`The restored data cannot be written to the disk (${lastLine(output)}).`);
}
