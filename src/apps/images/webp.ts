/** WebP (RFC 9649): a RIFF file of chunks with one image (`VP8 ` or `VP8L`) and an optional alpha channel. */

import type { CleanImage } from './clean_image.ts';

const headBytes = 12;
const animationFlag = 0x02;
const alphaFlag = 0x10;

interface Size {
  width: number;
  height: number;
}

/** @returns the image without metadata, or the error to follow "The WebP image …" */
export function cleanWebp(bytes: Buffer): CleanImage | string {
  const chunks = readChunks(bytes);
  if (typeof chunks === 'string') return chunks;
  const [first] = chunks;
  const pictures = chunks.filter(({ name }) => name === 'VP8 ' || name === 'VP8L');
  const picture = pictures[0];
  const isExtended = first?.name === 'VP8X' && first.content.length >= 10;
  if (chunks.some(({ name }) => name === 'ANIM' || name === 'ANMF')) return 'is animated';
  if (isExtended && ((first.content[0] as number) & animationFlag) !== 0) return 'is animated';
  if (picture === undefined || pictures.length > 1) return 'does not contain exactly one image';
  if (!isExtended && first !== picture) return 'does not begin with its image data';
  const size = picture.name === 'VP8L' ? losslessSize(picture.content) : lossySize(picture.content);
  if (size === undefined) return 'is damaged';
  if (isExtended && !isSame(size, canvasSize(first.content)))
    return 'has a canvas of another size than its image';
  const alpha =
    isExtended && picture.name === 'VP8 ' ? chunks.find(({ name }) => name === 'ALPH') : undefined;
  const kept = alpha === undefined ? [picture] : [extendedHead(size), alpha, picture];
  return { ...size, content: writeFile(kept) };
}

interface Chunk {
  name: string;
  content: Buffer;
}

function readChunks(bytes: Buffer): Chunk[] | string {
  const end = bytes.readUInt32LE(4) + 8;
  if (end > bytes.length) return 'is cut off';
  const chunks: Chunk[] = [];
  for (let offset = headBytes; offset + 8 <= end; ) {
    const length = bytes.readUInt32LE(offset + 4);
    if (offset + 8 + length > end) return 'is cut off';
    const content = bytes.subarray(offset + 8, offset + 8 + length);
    chunks.push({ name: bytes.toString('latin1', offset, offset + 4), content });
    // Chunks are padded to an even length.
    offset += 8 + length + (length % 2);
  }
  return chunks;
}

/** RFC 6386 section 9.1: a frame tag, a start code, and 14 bits each for width and height. */
function lossySize(content: Buffer): Size | undefined {
  if (content.length < 10) return undefined;
  const isKeyFrame = ((content[0] as number) & 1) === 0;
  if (!isKeyFrame || content.toString('hex', 3, 6) !== '9d012a') return undefined;
  return { width: content.readUInt16LE(6) & 0x3fff, height: content.readUInt16LE(8) & 0x3fff };
}

/** RFC 9649 section 3.4: a signature, 14 bits each for width - 1 and height - 1, an alpha bit, and version 0. */
function losslessSize(content: Buffer): Size | undefined {
  if (content.length < 5 || content[0] !== 0x2f) return undefined;
  const bits = content.readUInt32LE(1);
  if (bits >>> 29 !== 0) return undefined;
  return { width: (bits & 0x3fff) + 1, height: ((bits >>> 14) & 0x3fff) + 1 };
}

function canvasSize(content: Buffer): Size {
  return { width: content.readUIntLE(4, 3) + 1, height: content.readUIntLE(7, 3) + 1 };
}

function isSame(one: Size, other: Size): boolean {
  return one.width === other.width && one.height === other.height;
}

function extendedHead({ width, height }: Size): Chunk {
  const content = Buffer.alloc(10);
  content[0] = alphaFlag;
  // readImage rejects a size of 0 later. Here it only has to be encodable.
  content.writeUIntLE(Math.max(width, 1) - 1, 4, 3);
  content.writeUIntLE(Math.max(height, 1) - 1, 7, 3);
  return { name: 'VP8X', content };
}

function writeFile(chunks: readonly Chunk[]): Buffer {
  const parts = chunks.flatMap(({ name, content }) => {
    const head = Buffer.from(`${name}\0\0\0\0`, 'latin1');
    head.writeUInt32LE(content.length, 4);
    return [head, content, Buffer.alloc(content.length % 2)];
  });
  const head = Buffer.from('RIFF\0\0\0\0WEBP', 'latin1');
  head.writeUInt32LE(4 + parts.reduce((sum, { length }) => sum + length, 0), 4);
  return Buffer.concat([head, ...parts]);
}
