/** PNG (W3C PNG, third edition): a signature and chunks, each with length, name, content and CRC. */

import { crc32 } from 'node:zlib';
import type { CleanImage } from './clean_image.ts';

const signatureBytes = 8;

/** Chunks that are needed to decode the image. */
const kept = new Set(['IHDR', 'PLTE', 'tRNS', 'IDAT', 'IEND']);
/** Color chunks, kept if they have the specified length. */
const keptByLength: Readonly<Record<string, number>> = { sRGB: 1, gAMA: 4, cHRM: 32 };
const animated = new Set(['acTL', 'fcTL', 'fdAT']);

interface Chunk {
  name: string;
  content: Buffer;
  /** The complete chunk, from the length to the CRC. */
  whole: Buffer;
}

/** @returns the image without metadata, or the error to follow "The PNG image …" */
export function cleanPng(bytes: Buffer): CleanImage | string {
  const parts = [bytes.subarray(0, signatureBytes)];
  let size: { width: number; height: number } | undefined;
  let hasData = false;
  for (let offset = signatureBytes; ; ) {
    const chunk = readChunk(bytes, offset);
    if (typeof chunk === 'string') return chunk;
    const { name, content, whole } = chunk;
    offset += whole.length;
    if ((name === 'IHDR') !== (size === undefined)) return 'does not begin with exactly one header';
    if (name === 'IHDR') {
      if (content.length !== 13) return 'has a header of the wrong length';
      size = { width: content.readUInt32BE(0), height: content.readUInt32BE(4) };
    }
    if (animated.has(name)) return 'is animated';
    if (name === 'IDAT') hasData = true;
    if (kept.has(name) || keptByLength[name] === content.length) parts.push(whole);
    if (name !== 'IEND') continue;
    if (size === undefined || !hasData) return 'contains no image data';
    return { ...size, content: Buffer.concat(parts) };
  }
}

function readChunk(bytes: Buffer, offset: number): Chunk | string {
  if (offset + 12 > bytes.length) return 'is cut off';
  const length = bytes.readUInt32BE(offset);
  const end = offset + 12 + length;
  if (end > bytes.length) return 'is cut off';
  const name = bytes.toString('latin1', offset + 4, offset + 8);
  if (crc32(bytes.subarray(offset + 4, end - 4)) !== bytes.readUInt32BE(end - 4)) return 'is damaged';
  return { name, content: bytes.subarray(offset + 8, end - 4), whole: bytes.subarray(offset, end) };
}
