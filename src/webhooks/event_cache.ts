/**
 * Events in memory, by their position: those just published, as they came, and those read lately, so that an event
 * for many subscriptions is read once and one that was just published not at all. Both are bounded by bytes. Where
 * more is published than the fan-out can follow, the newest are left out and read later: they are needed last.
 *
 *   published: kept → taken by the fan-out, or too old → kept while there is room
 */

import { LRUCache } from 'lru-cache';
import type { EventContent } from './delivery_request.ts';
import { findInBatch, type PublishedBatch, unpackEvent } from './published_batch.ts';

/** Bytes kept at most: of events that were read, of those published, and of these once the fan-out has taken them. */
const readBytesMax = 8_388_608;
const publishedBytesMax = 67_108_864;
const takenBytesMax = 25_165_824;
/** Bytes that an event takes beside its body, about. */
const eventBytes = 400;
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
  #publishedBytes = 0;

  get(position: number): EventContent | undefined {
    for (const published of this.#published) {
      const index = findInBatch(published.batch, position);
      if (index < 0) continue;
      published.contents[index] ??= unpackEvent(published.batch, index);
      return published.contents[index];
    }
    return this.#read.get(position);
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
    this.#published.add({ batch, contents: [], bytes, left: batch.ids.length, at: now });
    this.#publishedBytes += bytes;
  }

  /** The fan-out has dealt with these: whoever is to have them has them. */
  release(positions: readonly number[]): void {
    for (const position of positions) {
      for (const published of this.#published) {
        if (findInBatch(published.batch, position) < 0) continue;
        published.left -= 1;
        if (published.left === 0) published.contents = [];
        break;
      }
    }
    this.#makeRoom(takenBytesMax);
  }

  /** An event's body was erased. */
  drop(position: number): void {
    this.#read.delete(position);
    for (const published of this.#published) {
      if (findInBatch(published.batch, position) >= 0) this.#remove(published);
    }
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
  }
}
