/**
 * Backups of the embedded database, while it runs.
 *
 *   <folder>.partial-<random> (files → manifest → description → everything read again and compared) → renamed to <folder>
 *
 * A backup that fails or is killed leaves at most the partial folder, which nothing takes for a backup.
 */
import { randomBytes } from 'node:crypto';
import {
  copyFile,
  mkdir,
  open,
  readdir,
  readFile,
  realpath,
  rename,
  rm,
  statfs,
  writeFile,
} from 'node:fs/promises';
import { basename, dirname, join, relative } from 'node:path';
import pg from 'pg';
import {
  type BackupDescription,
  checkFile,
  clusterFolder,
  describeFile,
  descriptionName,
  readManifest,
  secretName,
} from './backup_folder.ts';
import { manifestName, receiveBaseBackup } from './base_backup.ts';
import { syncFolder } from './cluster.ts';
import { EmbeddedError, errorCode, explainFileError } from './error.ts';
import { clusterOf } from './home.ts';

export interface Backup {
  /** Absolute. */
  folder: string;
  /** Bytes. */
  size: number;
  files: number;
}

export interface BackupOptions {
  /** Of the embedded PostgreSQL, which runs. */
  connectionString: string;
  dataDir: string;
  /** Absolute path. Absent or empty. */
  folder: string;
  /** Version of Nuncio, for the description. */
  version: string;
}

/**
 * Writes a backup and verifies it.
 * @throws EmbeddedError if the folder has content, the disk is too small, or what was written differs from what PostgreSQL sent
 */
export async function takeBackup(options: BackupOptions): Promise<Backup> {
  const { dataDir, folder } = options;
  await requireEmpty(folder);
  const parent = dirname(folder);
  await mkdir(parent, { recursive: true });
  requireOutside(await realpath(parent), await realpath(clusterOf(dataDir)));
  await requireSpace(options.connectionString, parent);
  const partial = join(parent, `${basename(folder)}.partial-${randomBytes(6).toString('hex')}`);
  try {
    await mkdir(join(partial, clusterFolder), { recursive: true, mode: 0o700 });
    const backup = await writeBackup(partial, options);
    await rename(partial, folder);
    await syncFolder(parent);
    return { ...backup, folder };
  } catch (error) {
    await rm(partial, { recursive: true, force: true });
    throw explainFileError(error, 'The backup cannot be written');
  }
}

async function writeBackup(
  partial: string,
  { connectionString, dataDir, version }: BackupOptions,
): Promise<Omit<Backup, 'folder'>> {
  const cluster = join(partial, clusterFolder);
  const { folders, walFiles } = await receiveBaseBackup(connectionString, cluster);
  const hasSecret = await copySecret(dataDir, partial);
  const listed = await readManifest(partial, manifestName);
  const listedPaths = new Set(listed.map(({ path }) => path));
  const others = [
    ...walFiles.map((path) => `${clusterFolder}/${path}`).filter((path) => !listedPaths.has(path)),
    ...(hasSecret ? [secretName] : []),
  ];
  const description: BackupDescription = {
    format: 1,
    created_at: new Date().toISOString(),
    nuncio: version,
    postgresql: Number.parseInt(await readFile(join(cluster, 'PG_VERSION'), 'utf8'), 10),
    folders,
    files: await Promise.all(others.map((path) => describeFile(partial, path))),
  };
  const text = `${JSON.stringify(description, null, 2)}\n`;
  await writeFile(join(partial, descriptionName), text, { mode: 0o600, flush: true });
  const files = [...listed, ...description.files];
  for (const file of files) {
    await syncFile(join(partial, file.path));
    await checkFile(partial, file);
  }
  for (const path of ['', clusterFolder, ...folders.map((path) => join(clusterFolder, path))])
    await syncFolder(join(partial, path));
  return { files: files.length, size: files.reduce((sum, { size }) => sum + size, 0) };
}

/** @returns whether there is a generated secret; with NUNCIO_SECRET there is none */
async function copySecret(dataDir: string, target: string): Promise<boolean> {
  try {
    await copyFile(join(dataDir, secretName), join(target, secretName));
    return true;
  } catch (error) {
    if (errorCode(error) === 'ENOENT') return false;
    throw error;
  }
}

/** @throws EmbeddedError if the folder has content, or is no folder */
export async function requireEmpty(folder: string, ignored = /^$/): Promise<void> {
  const names = await readdir(folder).catch((error: unknown) => {
    if (errorCode(error) === 'ENOENT') return [];
    if (errorCode(error) === 'ENOTDIR') throw new EmbeddedError(`${folder} is not a folder.`);
    throw error;
  });
  const found = names.filter((name) => !ignored.test(name));
  if (found.length > 0)
    throw new EmbeddedError(`${folder} is not empty (it contains ${found[0]}): choose a new folder.`);
}

/** A backup within the data directory would contain itself. */
function requireOutside(parent: string, cluster: string): void {
  const path = relative(cluster, parent);
  if (path === '' || !/^\.\.(\/|$)/.test(path))
    throw new EmbeddedError(
      `The backup must not be in the data directory ${cluster}: choose a folder elsewhere.`,
    );
}

/** A backup that fills the disk of the database would stop the server. */
async function requireSpace(connectionString: string, folder: string): Promise<void> {
  const client = new pg.Client({ connectionString });
  client.on('error', () => undefined);
  await client.connect();
  try {
    const { rows } = await client.query<{ bytes: string }>(
      `select (select sum(pg_database_size(oid)) from pg_database) + (select sum(size) from pg_ls_waldir()) as bytes`,
    );
    const needed = Number(rows[0]?.bytes);
    const { bavail, bsize } = await statfs(folder);
    if (bavail * bsize > needed) return;
    const mib = (bytes: number) => `${Math.ceil(bytes / 1_048_576)} MiB`;
    throw new EmbeddedError(
      `The disk of ${folder} has ${mib(bavail * bsize)} free, but the backup may need ${mib(needed)}: choose another disk.`,
    );
  } finally {
    await client.end();
  }
}

async function syncFile(path: string): Promise<void> {
  const file = await open(path, 'r');
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}
