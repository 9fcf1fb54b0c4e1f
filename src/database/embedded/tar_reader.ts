/**
 * Reads the tar archive that PostgreSQL sends for a base backup (`src/common/tar.c` there): ustar headers with names of up to
 * 99 bytes and without extensions. Nothing else is read with this, and every file is compared with PostgreSQL's manifest afterwards.
 *
 *   header (512 bytes) → content, padded to 512 bytes → header → … → two blocks of zeros
 */
import { EmbeddedError } from './error.ts';

export interface TarEntry {
  /** Relative, without `.` and `..`. */
  path: string;
  isFolder: boolean;
  /** Bytes. */
  size: number;
}

export interface TarReceiver {
  entry(entry: TarEntry): void;
  content(chunk: Buffer): void;
}

const blockBytes = 512;
const typeOfFolder = '5';
const typesOfFile: ReadonlySet<string> = new Set(['0', '\0']);

/** Receives an archive in chunks of any size. */
export class TarReader {
  readonly #receiver: TarReceiver;
  #header = Buffer.alloc(0);
  /** Bytes of the current file that have not arrived yet, and the padding after them. */
  #left = 0;
  #padding = 0;

  constructor(receiver: TarReceiver) {
    this.#receiver = receiver;
  }

  /** @throws EmbeddedError if the archive has an entry that a data directory without tablespaces does not have */
  push(chunk: Buffer): void {
    let rest = chunk;
    while (rest.length > 0) {
      if (this.#left > 0) {
        const content = rest.subarray(0, this.#left);
        this.#receiver.content(content);
        this.#left -= content.length;
        rest = rest.subarray(content.length);
      } else if (this.#padding > 0) {
        const skipped = Math.min(this.#padding, rest.length);
        this.#padding -= skipped;
        rest = rest.subarray(skipped);
      } else {
        const part = rest.subarray(0, blockBytes - this.#header.length);
        this.#header = Buffer.concat([this.#header, part]);
        rest = rest.subarray(part.length);
        if (this.#header.length === blockBytes) this.#begin();
      }
    }
  }

  /** @throws EmbeddedError if the archive ended within an entry */
  end(): void {
    if (this.#left > 0 || this.#header.length > 0)
      throw new EmbeddedError('PostgreSQL ended the backup in the middle of a file.');
  }

  #begin(): void {
    const header = this.#header;
    this.#header = Buffer.alloc(0);
    // The end of the archive.
    if (header.every((byte) => byte === 0)) return;
    const type = String.fromCharCode(header[156] as number);
    const path = textAt(header, 0, 100).replace(/^\.\//, '').replace(/\/$/, '');
    const size = sizeOf(header);
    const isFolder = type === typeOfFolder;
    if (!isFolder && !typesOfFile.has(type)) {
      throw new EmbeddedError(
        `The data directory has a link at ${path}: a backup of tablespaces and links is not supported; use pg_basebackup.`,
      );
    }
    if (!isSafePath(path)) throw new EmbeddedError(`PostgreSQL sent the file name ${JSON.stringify(path)}.`);
    this.#left = isFolder ? 0 : size;
    this.#padding = isFolder ? 0 : (blockBytes - (size % blockBytes)) % blockBytes;
    this.#receiver.entry({ path, isFolder, size: this.#left });
  }
}

/** Whether a path names something below the folder that it is relative to. */
export function isSafePath(path: string): boolean {
  if (path.includes('\0') || path.includes('\\')) return false;
  return path.split('/').every((part) => part !== '' && part !== '.' && part !== '..');
}

function textAt(header: Buffer, start: number, length: number): string {
  const field = header.subarray(start, start + length);
  const end = field.indexOf(0);
  return field.toString('utf8', 0, end < 0 ? length : end);
}

/** Octal digits or, from 8 GiB, a number in base 256 that begins with a set bit. */
function sizeOf(header: Buffer): number {
  const field = header.subarray(124, 136);
  if (((field[0] as number) & 0x80) === 0) return Number.parseInt(textAt(header, 124, 12).trim() || '0', 8);
  return Number(field.readBigUInt64BE(4));
}
