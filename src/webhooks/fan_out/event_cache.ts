/**
 * Events in memory, by their position: those just published, as they came, and those read lately, so that an event
 * for many subscriptions is read once and one that was just published not at all. Both are bounded by bytes. Where
 * more is published than the fan-out can follow, the newest are left out and read later: they are needed last.
 *
 *   published: kept → taken by the fan-out, or too old → kept while there is room
 */

import { LRUCache } from 'lru-cache';
import type { EventContent } from '../sending/delivery_request.ts';
import { findPosition, type PublishedBatch, unpackEvent } from './published_batch.ts';

/** Bytes kept at most: of events that were read, of those published, and of these once the fan-out has taken them. */
const readBytesMax = 8_388_608;
const publishedBytesMax = 67_108_864;
const takenBytesMax = 25_165_824;
/** What is left of those when they are too many: the oldest go together, not one for each that comes. */
const takenBytesLeft = 20_971_520;
/** Bytes that an event takes beside its body, about, and those published together. */
const eventBytes = 400;
const batchBytes = 1_000;
/**
 * Events of a batch up to which each is unpacked at once. A batch has three buffers of its own: tens of thousands of them,
 * left behind by single events, make garbage collections long.
 */
const smallBatchMax = 8;
/** Neighbouring positions that are found by one number: among what was published one by one nothing is searched for. */
const blockLength = 64;
/** Milliseconds after which nobody here is going to take a published one: another node fans out. */
const publishedMsMax = 10_000;

interface Published {
  /** Ascending. */
  positions: ArrayLike<number>;
  /** Undefined where all were unpacked. */
  batch: PublishedBatch | undefined;
  /** Those in use, each made once. */
  contents: (EventContent | undefined)[];
  bytes: number;
  /** How many of it the fan-out has not taken. */
  left: number;
  at: number;
}

export class EventCache {
  readonly #read = new LRUCache<number, EventContent>({
    maxSize: readBytesMax,
    sizeCalculation: (event) => event.body.length + eventBytes,
  });
  /** Those that the fan-out has not taken, in the order in which they came. */
  readonly #waiting = new Set<Published>();
  /** Those that it has taken, or that are too old for it. */
  readonly #taken = new Set<Published>();
  /** Both by the blocks of positions that they have some of. */
  readonly #byBlock = new Map<number, Published[]>();
  #publishedBytes = 0;

  get(position: number): EventContent | undefined {
    const published = this.#find(position);
    if (published === undefined) return this.#read.get(position);
    const index = findPosition(published.positions, position);
    if (published.batch !== undefined) published.contents[index] ??= unpackEvent(published.batch, index);
    return published.contents[index];
  }

  /** Keeps one that was read. */
  put(position: number, event: EventContent): void {
    this.#read.set(position, event);
  }

  /** Keeps those that were just published, where there is room. */
  putPublished(batch: PublishedBatch): void {
    const now = performance.now();
    for (const published of this.#waiting) {
      if (now - published.at < publishedMsMax) break;
      this.#markTaken(published);
    }
    const published = toPublished(batch, now);
    this.#makeRoom(publishedBytesMax - published.bytes);
    if (this.#publishedBytes + published.bytes > publishedBytesMax) return;
    this.#waiting.add(published);
    this.#publishedBytes += published.bytes;
    for (const block of blocksOf(published)) {
      const others = this.#byBlock.get(block);
      if (others === undefined) this.#byBlock.set(block, [published]);
      else others.push(published);
    }
  }

  /** The fan-out has dealt with these: whoever is to have them has them. */
  release(positions: readonly number[]): void {
    for (const position of positions) {
      const published = this.#find(position);
      if (published === undefined) continue;
      published.left -= 1;
      if (published.left === 0) this.#markTaken(published);
    }
    if (this.#publishedBytes > takenBytesMax) this.#makeRoom(takenBytesLeft);
  }

  /** An event's body was erased. */
  drop(position: number): void {
    this.#read.delete(position);
    const published = this.#find(position);
    if (published !== undefined) this.#remove(published);
  }

  #find(position: number): Published | undefined {
    const near = this.#byBlock.get(Math.floor(position / blockLength));
    return near?.find(({ positions }) => findPosition(positions, position) >= 0);
  }

  #markTaken(published: Published): void {
    if (!this.#waiting.delete(published)) return;
    this.#taken.add(published);
    if (published.batch !== undefined) published.contents = [];
  }

  /** Lets go of what the fan-out has taken, the oldest first, down to so many bytes. */
  #makeRoom(bytesMax: number): void {
    for (const published of this.#taken) {
      if (this.#publishedBytes <= bytesMax) return;
      this.#remove(published);
    }
  }

  #remove(published: Published): void {
    this.#waiting.delete(published);
    this.#taken.delete(published);
    this.#publishedBytes -= published.bytes;
    for (const block of blocksOf(published)) {
      const others = this.#byBlock.get(block)?.filter((other) => other !== published) ?? [];
      if (others.length === 0) this.#byBlock.delete(block);
      else this.#byBlock.set(block, others);
    }
  }
}

function toPublished(batch: PublishedBatch, at: number): Published {
  const count = batch.ids.length;
  const isSmall = count <= smallBatchMax;
  return {
    positions: isSmall ? [...batch.positions] : batch.positions,
    batch: isSmall ? undefined : batch,
    contents: isSmall ? batch.ids.map((_id, index) => unpackEvent(batch, index)) : [],
    bytes: batch.bodies.length + count * eventBytes + batchBytes,
    left: count,
    at,
  };
}

/** Each once. */
function blocksOf({ positions }: Published): number[] {
  const blocks: number[] = [];
  for (let index = 0; index < positions.length; index += 1) {
    const block = Math.floor((positions[index] as number) / blockLength);
    if (block !== blocks.at(-1)) blocks.push(block);
  }
  return blocks;
}
