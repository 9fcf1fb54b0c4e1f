/**
 * Arrays as parameters in PostgreSQL's binary form, for statements that take thousands of rows at once: nothing is
 * quoted, escaped or parsed. The statement must name the type (`${textArray(names)}::text[]`).
 */

const textOid = 25;
const byteaOid = 17;
const int8Oid = 20;
const float8Oid = 701;
const headerBytes = 20;

export function textArray(values: readonly (string | Buffer | null)[]): Buffer {
  return variableArray(textOid, values);
}

export function byteaArray(values: readonly (Buffer | null)[]): Buffer {
  return variableArray(byteaOid, values);
}

/** Whole numbers, exact in JavaScript. */
export function bigintArray(values: readonly (number | null)[]): Buffer {
  return fixedArray(int8Oid, values, (buffer, value, offset) => {
    buffer.writeInt32BE(Math.floor(value / 0x1_0000_0000), offset);
    buffer.writeUInt32BE(value >>> 0, offset + 4);
  });
}

export function doubleArray(values: readonly (number | null)[]): Buffer {
  return fixedArray(float8Oid, values, (buffer, value, offset) => buffer.writeDoubleBE(value, offset));
}

function fixedArray(
  oid: number,
  values: readonly (number | null)[],
  write: (buffer: Buffer, value: number, offset: number) => void,
): Buffer {
  const buffer = Buffer.allocUnsafe(headerBytes + values.length * 12);
  let offset = writeHeader(buffer, oid, values.length);
  // By index: what an iterator hands out would be garbage, thousands of times.
  for (let index = 0; index < values.length; index += 1) {
    const value = values[index] as number | null;
    if (value === null) {
      offset = buffer.writeInt32BE(-1, offset);
    } else {
      write(buffer, value, buffer.writeInt32BE(8, offset));
      offset += 12;
    }
  }
  return buffer.subarray(0, offset);
}

function variableArray(oid: number, values: readonly (string | Buffer | null)[]): Buffer {
  let bytes = headerBytes + values.length * 4;
  // Three bytes for each UTF-16 unit are always enough.
  for (const value of values)
    bytes += value === null ? 0 : typeof value === 'string' ? value.length * 3 : value.length;
  const buffer = Buffer.allocUnsafe(bytes);
  let offset = writeHeader(buffer, oid, values.length);
  for (const value of values) {
    if (value === null) {
      offset = buffer.writeInt32BE(-1, offset);
      continue;
    }
    const length =
      typeof value === 'string' ? buffer.write(value, offset + 4, 'utf8') : value.copy(buffer, offset + 4);
    buffer.writeInt32BE(length, offset);
    offset += 4 + length;
  }
  return buffer.subarray(0, offset);
}

/** Dimensions, a flag for nulls, the element's type, length and lower bound of the one dimension. */
function writeHeader(buffer: Buffer, oid: number, length: number): number {
  buffer.writeInt32BE(length === 0 ? 0 : 1, 0);
  buffer.writeInt32BE(1, 4);
  buffer.writeInt32BE(oid, 8);
  if (length === 0) return 12;
  buffer.writeInt32BE(length, 12);
  buffer.writeInt32BE(1, 16);
  return headerBytes;
}
