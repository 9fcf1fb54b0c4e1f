/** Test images: PNGs generated here, and small files written by a browser, each with a color profile. */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { crc32, deflateSync } from 'node:zlib';

const read = (name: string) => readFileSync(join(import.meta.dirname, 'images', name));

/** 24 by 16 pixels, as written by a browser. */
export const jpeg = read('disc.jpg');
export const webp = read('disc.webp');
export const transparentWebp = read('disc_transparent.webp');
export const losslessWebp = read('disc_lossless.webp');

export function pngChunk(name: string, content: Buffer = Buffer.alloc(0)): Buffer {
  const body = Buffer.concat([Buffer.from(name, 'latin1'), content]);
  const chunk = Buffer.alloc(body.length + 8);
  chunk.writeUInt32BE(content.length, 0);
  body.copy(chunk, 4);
  chunk.writeUInt32BE(crc32(body), body.length + 4);
  return chunk;
}

export const pngSignature = Buffer.from('\x89PNG\r\n\x1a\n', 'latin1');

export function pngHeader(width: number, height: number): Buffer {
  const content = Buffer.from([0, 0, 0, 0, 0, 0, 0, 0, 8, 2, 0, 0, 0]);
  content.writeUInt32BE(width, 0);
  content.writeUInt32BE(height, 4);
  return pngChunk('IHDR', content);
}

/** Creates a PNG of a single color. @param before chunks between the header and the image data */
export function png(
  width = 64,
  height = 64,
  color: readonly [red: number, green: number, blue: number] = [57, 73, 198],
  before: readonly Buffer[] = [],
): Buffer {
  const row = Buffer.from([0, ...Array.from({ length: width }, () => color).flat()]);
  const picture = deflateSync(Buffer.concat(Array.from({ length: height }, () => row)));
  return Buffer.concat([
    pngSignature,
    pngHeader(width, height),
    ...before,
    pngChunk('IDAT', picture),
    pngChunk('IEND'),
  ]);
}
