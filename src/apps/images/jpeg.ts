/** JPEG (ITU-T T.81): segments that begin with a marker, and after each start of scan the compressed data. */

import type { CleanImage } from './clean_image.ts';

const endOfImage = 0xd9;
const startOfScan = 0xda;
/** Tables of quantization, Huffman codes, the restart interval. */
const tables = new Set([0xdb, 0xc4, 0xdd]);
/** Baseline, extended sequential and progressive: the frames that browsers show. */
const frames = new Set([0xc0, 0xc1, 0xc2]);
/** `Adobe`: says how colors are to be read. */
const adobe = 0xee;
const adobeBytes = 14;
const comment = 0xfe;

/** Each scan goes over the whole picture again: a few bytes that cost much. Encoders write 10 or fewer. */
const scansMax = 64;

/** @returns the image without what is not part of the picture, or what is wrong with it */
export function cleanJpeg(given: Buffer): CleanImage | string {
  const parts = [given.subarray(0, 2)];
  let size: { width: number; height: number } | undefined;
  let scans = 0;
  for (let offset = 2; ; ) {
    const marker = readMarker(given, offset);
    if (marker === undefined) return 'is cut off';
    offset = marker.end;
    if (marker.code === endOfImage) {
      if (size === undefined || scans === 0) return 'has no picture in it';
      return { ...size, content: Buffer.concat([...parts, Buffer.from([0xff, endOfImage])]) };
    }
    const segment = readSegment(given, marker);
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
      const end = endOfData(given, offset);
      parts.push(segment, given.subarray(offset, end));
      offset = end;
      continue;
    } else if (!isKnown(marker.code)) return 'is of a kind that browsers do not show';
    if (isKept(marker.code, segment)) parts.push(segment);
  }
}

interface Marker {
  code: number;
  end: number;
}

/** A marker is 0xff, any number of times, and its code. */
function readMarker(given: Buffer, offset: number): Marker | undefined {
  if (given[offset] !== 0xff) return undefined;
  let at = offset;
  while (given[at] === 0xff) at += 1;
  const code = given[at];
  return code === undefined ? undefined : { code, end: at + 1 };
}

/** The segment with its marker; the length in it counts its own two bytes. */
function readSegment(given: Buffer, { code, end }: Marker): Buffer | string {
  if (code === 0 || code === 1 || (code >= 0xd0 && code <= 0xd8)) return 'is damaged';
  if (end + 2 > given.length) return 'is cut off';
  const length = given.readUInt16BE(end);
  if (length < 2) return 'is damaged';
  if (end + length > given.length) return 'is cut off';
  return given.subarray(end - 2, end + length);
}

/** Data of a scan goes on until a marker that is neither a restart nor an escaped 0xff. */
function endOfData(given: Buffer, start: number): number {
  for (let at = start; ; at += 1) {
    at = given.indexOf(0xff, at);
    const next = given[at + 1];
    if (at < 0 || next === undefined) return given.length;
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
