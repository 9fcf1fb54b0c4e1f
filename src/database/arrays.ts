/**
 * Encodes arrays in PostgreSQL's binary format, for statements that take thousands of rows in one parameter. Neither side
 * quotes, escapes or parses text. The statement must name the type (`${textArray(names)}::text[]`).
 */

const boolOid = 16;
const byteaOid = 17;
const charOid = 18;
const int8Oid = 20;
const int2Oid = 21;
const int4Oid = 23;
const textOid = 25;
const float4Oid = 700;
const float8Oid = 701;
const dateOid = 1082;
const uuidOid = 2950;
const uuidBytes = 16;
const dayMs = 86_400_000;
/** PostgreSQL counts days from this date. */
const firstDay = Date.UTC(2000, 0, 1);
const headerBytes = 20;

export function textArray(values: readonly (string | Buffer | null)[]): Buffer {
  return variableArray(textOid, values);
}

export function byteaArray(values: readonly (Buffer | null)[]): Buffer {
  return variableArray(byteaOid, values);
}

/** Takes safe integers only. */
export function bigintArray(values: readonly (number | null)[]): Buffer {
  return fixedArray(int8Oid, 8, values, (buffer, value, offset) => {
    buffer.writeInt32BE(Math.floor(value / 0x1_0000_0000), offset);
    buffer.writeUInt32BE(value >>> 0, offset + 4);
  });
}

export function integerArray(values: readonly (number | null)[]): Buffer {
  return fixedArray(int4Oid, 4, values, (buffer, value, offset) => buffer.writeInt32BE(value, offset));
}

export function smallintArray(values: readonly (number | null)[]): Buffer {
  return fixedArray(int2Oid, 2, values, (buffer, value, offset) => buffer.writeInt16BE(value, offset));
}

export function booleanArray(values: readonly boolean[]): Buffer {
  return fixedArray(boolOid, 1, values, (buffer, value, offset) => buffer.writeInt8(value ? 1 : 0, offset));
}

/** PostgreSQL's `"char"`: one ASCII character per value. */
export function charArray(values: readonly string[]): Buffer {
  return fixedArray(charOid, 1, values, (buffer, value, offset) =>
    buffer.writeInt8(value.charCodeAt(0), offset),
  );
}

export function doubleArray(values: readonly (number | null)[]): Buffer {
  return fixedArray(float8Oid, 8, values, (buffer, value, offset) => buffer.writeDoubleBE(value, offset));
}

export function realArray(values: readonly (number | null)[]): Buffer {
  return fixedArray(float4Oid, 4, values, (buffer, value, offset) => buffer.writeFloatBE(value, offset));
}

/** Days in the form `2026-11-21`. */
export function dateArray(values: readonly string[]): Buffer {
  let last = '';
  let count = 0;
  return fixedArray(dateOid, 4, values, (buffer, value, offset) => {
    // Usually all values are the same day.
    if (value !== last) {
      last = value;
      count = (Date.parse(`${value}T00:00:00Z`) - firstDay) / dayMs;
    }
    buffer.writeInt32BE(count, offset);
  });
}

/** Takes UUIDs as text with hyphens. */
export function uuidArray(values: readonly string[]): Buffer {
  const buffer = Buffer.allocUnsafe(headerBytes + values.length * (4 + uuidBytes));
  let offset = writeHeader(buffer, uuidOid, values.length);
  for (const value of values) {
    offset = buffer.writeInt32BE(uuidBytes, offset);
    const written = buffer.write(value.replaceAll('-', ''), offset, uuidBytes, 'hex');
    if (written !== uuidBytes) throw new Error(`not a UUID: ${value}`);
    offset += uuidBytes;
  }
  return buffer.subarray(0, offset);
}

function fixedArray<T>(
  oid: number,
  bytes: number,
  values: readonly (T | null)[],
  write: (buffer: Buffer, value: T, offset: number) => void,
): Buffer {
  const buffer = Buffer.allocUnsafe(headerBytes + values.length * (4 + bytes));
  let offset = writeHeader(buffer, oid, values.length);
  // A `for … of` loop over `entries()` would allocate an array per value.
  for (let index = 0; index < values.length; index += 1) {
    const value = values[index] as T | null;
    if (value === null) {
      offset = buffer.writeInt32BE(-1, offset);
    } else {
      offset = buffer.writeInt32BE(bytes, offset);
      write(buffer, value, offset);
      offset += bytes;
    }
  }
  return buffer.subarray(0, offset);
}

function variableArray(oid: number, values: readonly (string | Buffer | null)[]): Buffer {
  let bytes = headerBytes + values.length * 4;
  // UTF-8 needs at most three bytes for one UTF-16 code unit.
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

/** Writes the number of dimensions, the null flag, the element type, and the length and lower bound of the dimension. */
function writeHeader(buffer: Buffer, oid: number, length: number): number {
  buffer.writeInt32BE(length === 0 ? 0 : 1, 0);
  buffer.writeInt32BE(1, 4);
  buffer.writeInt32BE(oid, 8);
  if (length === 0) return 12;
  buffer.writeInt32BE(length, 12);
  buffer.writeInt32BE(1, 16);
  return headerBytes;
}
