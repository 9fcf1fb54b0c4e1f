/**
 * A base backup over PostgreSQL's replication protocol: what `pg_basebackup --wal-method=fetch` does. The npm package of the embedded
 * PostgreSQL does not contain that program, and one of another version cannot read this server. The server does the work:
 * it begins and ends the backup, reads the files, adds the WAL, and writes a manifest with a SHA-256 of every file.
 *
 *   slot (keeps the WAL until the connection ends) → BASE_BACKUP → archive → manifest → end
 *
 * https://www.postgresql.org/docs/18/protocol-replication.html#PROTOCOL-REPLICATION-BASE-BACKUP
 */
import { randomBytes } from 'node:crypto';
import { closeSync, mkdirSync, openSync, writeFileSync, writeSync } from 'node:fs';
import { dirname, join } from 'node:path';
import pg from 'pg';
import { EmbeddedError } from './error.ts';
import { type TarEntry, TarReader, type TarReceiver } from './tar_reader.ts';

export const manifestName = 'backup_manifest';

/** What the manifest does not list: the folders, some of which are empty, and the WAL. Paths are relative to the data directory. */
export interface ReceivedBackup {
  folders: string[];
  walFiles: string[];
}

/** The first byte of each message of the copy stream. */
const messages = { archive: 0x6e, manifest: 0x6d, content: 0x64 };

/**
 * Copies a running data directory.
 * @param connectionString of a user who may replicate
 * @param target an empty folder, which gets the files and PostgreSQL's manifest
 * @throws EmbeddedError, or PostgreSQL's error
 */
export async function receiveBaseBackup(connectionString: string, target: string): Promise<ReceivedBackup> {
  const client = new pg.Client({ connectionString, replication: 'true' } as pg.ClientConfig);
  client.on('error', () => undefined);
  await client.connect();
  try {
    // Without the slot, the server may remove WAL that a long backup needs at its end. It is dropped with the connection.
    await client.query(
      `CREATE_REPLICATION_SLOT nuncio_backup_${randomBytes(6).toString('hex')} TEMPORARY PHYSICAL RESERVE_WAL`,
    );
    const files = new FileWriter(target);
    const query = new CopyQuery(
      `BASE_BACKUP (LABEL 'nuncio', CHECKPOINT 'fast', WAL true, MANIFEST 'yes', MANIFEST_CHECKSUMS 'SHA256')`,
      files,
    );
    await query.run(client);
    return { folders: files.folders, walFiles: files.walFiles };
  } finally {
    await client.end().catch(() => undefined);
  }
}

/** Writes the archive and the manifest. Synchronous, so that no more arrives than was written. */
class FileWriter implements TarReceiver {
  readonly folders: string[] = [];
  readonly walFiles: string[] = [];
  readonly #target: string;
  readonly #archive = new TarReader(this);
  readonly #manifest: Buffer[] = [];
  #part: 'archive' | 'manifest' | undefined;
  #file: number | undefined;

  constructor(target: string) {
    this.#target = target;
  }

  /** One message of the copy stream. */
  message(chunk: Buffer): void {
    const [type] = chunk;
    const content = chunk.subarray(1);
    if (type === messages.archive) {
      if (this.#part !== undefined)
        throw new EmbeddedError(
          'The database has tablespaces, which nuncio backup does not support: use pg_basebackup.',
        );
      this.#part = 'archive';
    } else if (type === messages.manifest) {
      this.#archive.end();
      this.#part = 'manifest';
    } else if (type === messages.content) {
      if (this.#part === 'archive') this.#archive.push(content);
      else this.#manifest.push(Buffer.from(content));
    }
  }

  entry({ path, isFolder, size }: TarEntry): void {
    this.close();
    const place = join(this.#target, path);
    if (isFolder) {
      mkdirSync(place, { recursive: true, mode: 0o700 });
      this.folders.push(path);
      return;
    }
    mkdirSync(dirname(place), { recursive: true, mode: 0o700 });
    if (path.startsWith('pg_wal/')) this.walFiles.push(path);
    const file = openSync(place, 'wx', 0o600);
    if (size === 0) closeSync(file);
    else this.#file = file;
  }

  content(chunk: Buffer): void {
    for (let written = 0; written < chunk.length; )
      written += writeSync(this.#file as number, chunk, written);
  }

  close(): void {
    if (this.#file !== undefined) closeSync(this.#file);
    this.#file = undefined;
  }

  /** @throws EmbeddedError if the server sent no manifest */
  finish(): void {
    this.close();
    if (this.#manifest.length === 0)
      throw new EmbeddedError('PostgreSQL ended the backup without a manifest.');
    writeFileSync(join(this.#target, manifestName), Buffer.concat(this.#manifest), {
      mode: 0o600,
      flag: 'wx',
    });
  }
}

/** A query of the driver that passes on what the server copies. The results before and after the copy are not needed. */
class CopyQuery extends pg.Query {
  readonly #files: FileWriter;
  #failure: Error | undefined;

  constructor(text: string, files: FileWriter) {
    super(text);
    this.#files = files;
  }

  /** @throws the error of a write, or PostgreSQL's */
  async run(client: pg.Client): Promise<void> {
    try {
      await new Promise<void>((resolve, reject) => {
        this.on('error', reject);
        this.on('end', () => resolve());
        client.query(this);
      });
      if (this.#failure !== undefined) throw this.#failure;
      this.#files.finish();
    } catch (error) {
      // The error of a write ends the connection, which the driver then reports.
      throw this.#failure ?? error;
    } finally {
      this.#files.close();
    }
  }

  /** Called by the driver for each message. An exception here would end the process. */
  handleCopyData({ chunk }: { chunk: Buffer }, connection: { stream: { destroy(): void } }): void {
    if (this.#failure !== undefined) return;
    try {
      this.#files.message(chunk);
    } catch (error) {
      this.#failure = error as Error;
      connection.stream.destroy();
    }
  }
}
