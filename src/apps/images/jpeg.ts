/** JPEG (ITU-T T.81): segments that begin with a marker, and compressed data after each start of scan. */

import type { CleanImage } from './clean_image.ts';

const endOfImage = 0xd9;
const startOfScan = 0xda;
/** Quantization tables, Huffman tables, restart interval. */
const tables = new Set([0xdb, 0xc4, 0xdd]);
/** Baseline, extended sequential and progressive: the frame types that browsers support. */
const frames = new Set([0xc0, 0xc1, 0xc2]);
/** The `Adobe` segment, which specifies the color transform. */
const adobe = 0xee;
const adobeBytes = 14;
const comment = 0xfe;

/** Each scan decodes the whole image, so a small file with many scans is expensive. Encoders write 10 or fewer. */
const scansMax = 64;

/** @returns the image without metadata, or the error to follow "The JPEG image …" */
export function cleanJpeg(bytes: Buffer): CleanImage | string {
  const parts = [bytes.subarray(0, 2)];
  let size: { width: number; height: number } | undefined;
  let scans = 0;
  for (let offset = 2; ; ) {
    const marker = readMarker(bytes, offset);
    if (marker === undefined) return 'is cut off';
    offset = marker.end;
    if (marker.code === endOfImage) {
      if (size === undefined || scans === 0) return 'contains no image data';
      return { ...size, content: Buffer.concat([...parts, Buffer.from([0xff, endOfImage])]) };
    }
    const segment = readSegment(bytes, marker);
    if (typeof segment === 'string') return segment;
    offset += segment.length - 2;
    if (frames.has(marker.code)) {
      if (size !== undefined) return 'has more than one header';
      if (segment.length < 10) return 'is damaged';
      size = { height: segment.readUInt16BE(5), width: segment.readUInt16BE(7) };
    } else if (marker.code === startOfScan) {
      if (size === undefined) return 'has no header';
      scans += 1;
      if (scans > scansMax) return `has more than ${scansMax} scans`;
      const end = endOfData(bytes, offset);
      parts.push(segment, bytes.subarray(offset, end));
      offset = end;
      continue;
    } else if (!isKnown(marker.code)) return 'uses an encoding that browsers do not support';
    if (isKept(marker.code, segment)) parts.push(segment);
  }
}

interface Marker {
  code: number;
  end: number;
}

/** A marker is 0xff, repeated any number of times, and a code. */
function readMarker(bytes: Buffer, offset: number): Marker | undefined {
  if (bytes[offset] !== 0xff) return undefined;
  let at = offset;
  while (bytes[at] === 0xff) at += 1;
  const code = bytes[at];
  return code === undefined ? undefined : { code, end: at + 1 };
}

/** The segment including its marker. Its length field counts its own two bytes. */
function readSegment(bytes: Buffer, { code, end }: Marker): Buffer | string {
  if (code === 0 || code === 1 || (code >= 0xd0 && code <= 0xd8)) return 'is damaged';
  if (end + 2 > bytes.length) return 'is cut off';
  const length = bytes.readUInt16BE(end);
  if (length < 2) return 'is damaged';
  if (end + length > bytes.length) return 'is cut off';
  return bytes.subarray(end - 2, end + length);
}

/** Scan data ends at a marker that is neither a restart marker nor an escaped 0xff. */
function endOfData(bytes: Buffer, start: number): number {
  for (let at = start; ; at += 1) {
    at = bytes.indexOf(0xff, at);
    const next = bytes[at + 1];
    if (at < 0 || next === undefined) return bytes.length;
    if (next !== 0 && next !== 0xff && !(next >= 0xd0 && next <= 0xd7)) return at;
  }
}

function isKnown(code: number): boolean {
  return tables.has(code) || (code >= 0xe0 && code <= 0xef) || code === comment;
}

function isKept(code: number, segment: Buffer): boolean {
  if (code === adobe) {
    return segment.length === adobeBytes + 2 && segment.toString('latin1', 4, 9) === 'Adobe';
  }
  return tables.has(code) || frames.has(code);
}
