/**
 * Caches events by position: events that were just published, and events that were read recently. The engine reads an event for
 * many subscriptions once, and an event that was just published not at all. Both parts are bounded by bytes. If events arrive
 * faster than fan-out handles them, the cache omits the newest. They are needed last and read later.
 *
 * An event whose deliveries are all in memory leaves the cache at once. Events that stayed for longer would be copied to the
 * old part of the heap, and each collection of that part stops the thread for some milliseconds.
 *
 *   published → waiting for fan-out → taken by fan-out ┬→ removed: its deliveries are in memory, with the event
 *                                                      └→ kept for deliveries that are read later → evicted for space
 */

import { LRUCache } from 'lru-cache';
import type { EventContent } from '../sending/delivery_request.ts';
import { findPosition, type PublishedBatch, unpackEvent } from './published_batch.ts';

/**
 * Maximum bytes: of events that were read, of published events, and of published events that fan-out has taken.
 */
const readBytesMax = 8_388_608;
const publishedBytesMax = 67_108_864;
const takenBytesMax = 25_165_824;
/** Eviction continues down to this size, so that the oldest go together and not one per new batch. */
const takenBytesLeft = 20_971_520;
/** Approximate overhead in bytes of one event, and of one batch. */
const eventBytes = 400;
const batchBytes = 1_000;
/**
 * Batches up to this size are unpacked at once. A packed batch has three buffers. Tens of thousands of them, from single events,
 * make garbage collections slow.
 */
const smallBatchMax = 8;
/**
 * Positions that share one index entry. Events that were published one by one are then found without a search.
 */
const blockLength = 64;
/**
 * Milliseconds after which fan-out on this node will not take a published event: another node is the leader.
 */
const publishedMsMax = 10_000;

interface Published {
  /** In ascending order. */
  positions: ArrayLike<number>;
  /** Undefined if all events were unpacked. */
  batch: PublishedBatch | undefined;
  /** Events in use, each unpacked once. */
  contents: (EventContent | undefined)[];
  bytes: number;
  /** Number of events that fan-out has not taken. */
  left: number;
  /** Whether deliveries of these events will be read from the database. */
  isKept: boolean;
  at: number;
}

export class EventCache {
  readonly #read = new LRUCache<number, EventContent>({
    maxSize: readBytesMax,
    sizeCalculation: (event) => event.body.length + eventBytes,
  });
  /** Batches that fan-out has not taken completely, in order of arrival. */
  readonly #waiting = new Set<Published>();
  /** Batches that fan-out has taken, or that are too old for it. */
  readonly #taken = new Set<Published>();
  /** All batches, by each block of positions that they contain events of. */
  readonly #byBlock = new Map<number, Published[]>();
  #publishedBytes = 0;

  get(position: number): EventContent | undefined {
    const published = this.#find(position);
    if (published === undefined) return this.#read.get(position);
    const index = findPosition(published.positions, position);
    if (published.batch !== undefined) published.contents[index] ??= unpackEvent(published.batch, index);
    return published.contents[index];
  }

  /** Caches an event that was read. */
  put(position: number, event: EventContent): void {
    this.#read.set(position, event);
  }

  /** Caches events that were just published, if there is room. */
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

  /** A delivery of this event had no room in memory and is read later. */
  keep(position: number): void {
    const published = this.#find(position);
    if (published !== undefined) published.isKept = true;
  }

  /** Fan-out has processed these events. If the cache keeps one event of a batch, it keeps the whole batch. */
  release(positions: readonly number[]): void {
    for (const position of positions) {
      const published = this.#find(position);
      if (published === undefined) continue;
      published.left -= 1;
      if (published.left > 0) continue;
      if (published.isKept) this.#markTaken(published);
      else this.#remove(published);
    }
    if (this.#publishedBytes > takenBytesMax) this.#makeRoom(takenBytesLeft);
  }

  /** Removes an event whose body was erased. */
  drop(position: number): void {
    this.#read.delete(position);
    const published = this.#find(position);
    if (published !== undefined) this.#remove(published);
  }

  /** Removes all events. */
  clear(): void {
    this.#read.clear();
    for (const published of [...this.#waiting, ...this.#taken]) this.#remove(published);
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

  /** Evicts batches that fan-out has taken, oldest first, down to a size. */
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
    isKept: false,
    at,
  };
}

/** Each block once. */
function blocksOf({ positions }: Published): number[] {
  const blocks: number[] = [];
  for (let index = 0; index < positions.length; index += 1) {
    const block = Math.floor((positions[index] as number) / blockLength);
    if (block !== blocks.at(-1)) blocks.push(block);
  }
  return blocks;
}
