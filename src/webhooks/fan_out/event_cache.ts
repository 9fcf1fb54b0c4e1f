/**
 * Events in memory, by their position: those just published, as they came, and those read lately, so that an event
 * for many subscriptions is read once and one that was just published not at all. Both are bounded by bytes. Where
 * more is published than the fan-out can follow, the newest are left out and read later: they are needed last.
 *
 *   published: kept → taken by the fan-out, or too old → kept while there is room
 */

import { LRUCache } from 'lru-cache';
import type { EventContent } from '../sending/delivery_request.ts';
import { findInBatch, type PublishedBatch, unpackEvent } from './published_batch.ts';

/** Bytes kept at most: of events that were read, of those published, and of these once the fan-out has taken them. */
const readBytesMax = 8_388_608;
const publishedBytesMax = 67_108_864;
const takenBytesMax = 25_165_824;
/** Bytes that an event takes beside its body, about. */
const eventBytes = 400;
/** Neighbouring positions that are found by one number: among what was published one by one nothing is searched for. */
const stretchLength = 64;
/** Milliseconds after which nobody here is going to take a published one: another node fans out. */
const publishedMsMax = 10_000;

interface Published {
  batch: PublishedBatch;
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
  /** In the order in which they came. */
  readonly #published = new Set<Published>();
  /** The same by the stretches of positions that they have some of. */
  readonly #byStretch = new Map<number, Published[]>();
  #publishedBytes = 0;

  get(position: number): EventContent | undefined {
    const published = this.#find(position);
    if (published === undefined) return this.#read.get(position);
    const index = findInBatch(published.batch, position);
    published.contents[index] ??= unpackEvent(published.batch, index);
    return published.contents[index];
  }

  /** Keeps one that was read. */
  put(position: number, event: EventContent): void {
    this.#read.set(position, event);
  }

  /** Keeps those that were just published, where there is room. */
  putPublished(batch: PublishedBatch): void {
    const now = performance.now();
    const bytes = batch.bodies.length + batch.ids.length * eventBytes;
    for (const published of this.#published) {
      if (now - published.at < publishedMsMax) break;
      published.left = 0;
    }
    this.#makeRoom(publishedBytesMax - bytes);
    if (this.#publishedBytes + bytes > publishedBytesMax) return;
    const published: Published = { batch, contents: [], bytes, left: batch.ids.length, at: now };
    this.#published.add(published);
    this.#publishedBytes += bytes;
    for (const stretch of stretchesOf(batch)) {
      const others = this.#byStretch.get(stretch);
      if (others === undefined) this.#byStretch.set(stretch, [published]);
      else others.push(published);
    }
  }

  /** The fan-out has dealt with these: whoever is to have them has them. */
  release(positions: readonly number[]): void {
    for (const position of positions) {
      const published = this.#find(position);
      if (published === undefined) continue;
      published.left -= 1;
      if (published.left === 0) published.contents = [];
    }
    this.#makeRoom(takenBytesMax);
  }

  /** An event's body was erased. */
  drop(position: number): void {
    this.#read.delete(position);
    const published = this.#find(position);
    if (published !== undefined) this.#remove(published);
  }

  #find(position: number): Published | undefined {
    const near = this.#byStretch.get(Math.floor(position / stretchLength));
    return near?.find(({ batch }) => findInBatch(batch, position) >= 0);
  }

  /** Lets go of what the fan-out has taken, the oldest first, down to so many bytes. */
  #makeRoom(bytesMax: number): void {
    for (const published of this.#published) {
      if (this.#publishedBytes <= bytesMax) return;
      if (published.left <= 0) this.#remove(published);
    }
  }

  #remove(published: Published): void {
    this.#published.delete(published);
    this.#publishedBytes -= published.bytes;
    for (const stretch of stretchesOf(published.batch)) {
      const others = this.#byStretch.get(stretch)?.filter((other) => other !== published) ?? [];
      if (others.length === 0) this.#byStretch.delete(stretch);
      else this.#byStretch.set(stretch, others);
    }
  }
}

/** Of ascending positions, so that each is told once. */
function stretchesOf({ positions }: PublishedBatch): number[] {
  const stretches: number[] = [];
  for (const position of positions) {
    const stretch = Math.floor(position / stretchLength);
    if (stretch !== stretches.at(-1)) stretches.push(stretch);
  }
  return stretches;
}
