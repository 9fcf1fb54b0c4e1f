/**
 * The ids of revoked access tokens in flat arrays: 16 to 48 bytes for each, where a `Map` of strings takes 125 and more. An app may revoke
 * hundreds a second, and every node keeps each for an hour or two.
 *
 * An id is kept as 64 bits of a hash. The server chooses ids at random, so the chance that a token is taken for one of four million
 * revoked ones is 2 in 10^13.
 */

import { randomInt } from 'node:crypto';

/** Part of the ids. A part grows and is swept alone, so that neither takes longer than a millisecond with a million ids. */
const partCount = 256;
const capacityMin = 16;
/** Numbers of an entry: two of the hash, and the second until which it is kept; 0 for none. */
const width = 3;

interface Part {
  /** A power of two. */
  capacity: number;
  used: number;
  /** With open addressing. */
  entries: Uint32Array;
}

const newPart = (capacity: number): Part => ({
  capacity,
  used: 0,
  entries: new Uint32Array(capacity * width),
});

const second = (ms: number) => Math.floor(ms / 1_000) + 1;

export class RevokedTokens {
  readonly #parts = Array.from({ length: partCount }, () => newPart(capacityMin));
  readonly #seeds = [randomInt(2 ** 32), randomInt(2 ** 32)] as const;
  /** The part that is swept next. */
  #next = 0;

  /**
   * @param until milliseconds of the monotonic clock at which the id may be forgotten
   * @param now the same now
   */
  add(id: string, until: number, now: number): void {
    const [high, low] = this.#hash(id);
    const index = low % partCount;
    const part = this.#parts[index] as Part;
    const place = placeOf(part, high, low);
    const isNew = part.entries[place + 2] === 0;
    const later = Math.max(part.entries[place + 2] as number, second(until));
    part.entries.set([high, low, later], place);
    if (!isNew) return;
    part.used += 1;
    if (part.used > part.capacity * 0.75) this.#parts[index] = rebuilt(part, now);
  }

  has(id: string): boolean {
    const [high, low] = this.#hash(id);
    const part = this.#parts[low % partCount] as Part;
    return part.used > 0 && part.entries[placeOf(part, high, low) + 2] !== 0;
  }

  /**
   * Forgets ids of the next part whose time has come.
   * @returns whether it was the last part
   */
  sweepPart(now: number): boolean {
    const part = this.#parts[this.#next] as Part;
    if (part.used > 0) this.#parts[this.#next] = rebuilt(part, now);
    this.#next = (this.#next + 1) % partCount;
    return this.#next === 0;
  }

  #hash(id: string): readonly [high: number, low: number] {
    let [high, low] = this.#seeds as readonly [number, number];
    for (let index = 0; index < id.length; index += 1) {
      const code = id.charCodeAt(index);
      high = Math.imul(high ^ code, 0x01000193);
      low = Math.imul(low ^ code, 0x5bd1e995);
      low ^= low >>> 15;
    }
    return [mixed(high), mixed(low)];
  }
}

/** Mixes all bits (the last step of MurmurHash3). */
function mixed(value: number): number {
  let bits = value ^ (value >>> 16);
  bits = Math.imul(bits, 0x85ebca6b);
  bits ^= bits >>> 13;
  bits = Math.imul(bits, 0xc2b2ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}

/** Where an id is in `entries`, or would be. */
function placeOf({ entries, capacity }: Part, high: number, low: number): number {
  let place = (high % capacity) * width;
  while (entries[place + 2] !== 0 && (entries[place] !== high || entries[place + 1] !== low)) {
    place += width;
    if (place === entries.length) place = 0;
  }
  return place;
}

/** The part without ids whose time has come, and with room for as many again. */
function rebuilt({ entries }: Part, now: number): Part {
  const from = second(now);
  let kept = 0;
  for (let place = 0; place < entries.length; place += width) {
    if ((entries[place + 2] as number) >= from) kept += 1;
  }
  let capacity = capacityMin;
  while (kept > capacity * 0.5) capacity *= 2;
  const part = newPart(capacity);
  for (let place = 0; place < entries.length; place += width) {
    if ((entries[place + 2] as number) < from) continue;
    const high = entries[place] as number;
    const low = entries[place + 1] as number;
    part.entries.set([high, low, entries[place + 2] as number], placeOf(part, high, low));
  }
  part.used = kept;
  return part;
}
