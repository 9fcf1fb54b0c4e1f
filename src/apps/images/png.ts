/** PNG (W3C PNG, third edition): a signature and chunks, each with its length, name, content and checksum. */

import { crc32 } from 'node:zlib';
import type { CleanImage } from './clean_image.ts';

const signatureBytes = 8;

/** Chunks that decide about the picture. */
const kept = new Set(['IHDR', 'PLTE', 'tRNS', 'IDAT', 'IEND']);
/** Chunks about color, kept where they have the length that they must have. */
const keptByLength: Readonly<Record<string, number>> = { sRGB: 1, gAMA: 4, cHRM: 32 };
const animated = new Set(['acTL', 'fcTL', 'fdAT']);

interface Chunk {
  name: string;
  content: Buffer;
  /** All of it, from the length to the checksum. */
  whole: Buffer;
}

/** @returns the image without what is not part of the picture, or what is wrong with it */
export function cleanPng(given: Buffer): CleanImage | string {
  const parts = [given.subarray(0, signatureBytes)];
  let size: { width: number; height: number } | undefined;
  let hasData = false;
  for (let offset = signatureBytes; ; ) {
    const chunk = readChunk(given, offset);
    if (typeof chunk === 'string') return chunk;
    const { name, content, whole } = chunk;
    offset += whole.length;
    if ((name === 'IHDR') !== (size === undefined)) return 'does not begin with one header';
    if (name === 'IHDR') {
      if (content.length !== 13) return 'has a header of a wrong length';
      size = { width: content.readUInt32BE(0), height: content.readUInt32BE(4) };
    }
    if (animated.has(name)) return 'is animated';
    if (name === 'IDAT') hasData = true;
    if (kept.has(name) || keptByLength[name] === content.length) parts.push(whole);
    if (name !== 'IEND') continue;
    if (size === undefined || !hasData) return 'has no picture in it';
    return { ...size, content: Buffer.concat(parts) };
  }
}

function readChunk(given: Buffer, offset: number): Chunk | string {
  if (offset + 12 > given.length) return 'is cut off';
  const length = given.readUInt32BE(offset);
  const end = offset + 12 + length;
  if (end > given.length) return 'is cut off';
  const name = given.toString('latin1', offset + 4, offset + 8);
  if (crc32(given.subarray(offset + 4, end - 4)) !== given.readUInt32BE(end - 4)) return 'is damaged';
  return { name, content: given.subarray(offset + 8, end - 4), whole: given.subarray(offset, end) };
}
