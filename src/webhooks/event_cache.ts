/**
 * Events in memory: those published or read lately, by their position, so that an event for many subscriptions is
 * read once and one that was just published not at all. Bounded by the bytes of the bodies.
 */

import { LRUCache } from 'lru-cache';
import type { EventContent } from './delivery_request.ts';

/** Bytes of bodies kept at most. */
const bodyBytesMax = 33_554_432;
/** Bytes that an entry takes beside its body, about. */
const entryBytes = 400;

export class EventCache {
  readonly #events = new LRUCache<number, EventContent>({
    maxSize: bodyBytesMax,
    sizeCalculation: (event) => event.body.length + entryBytes,
  });

  get(position: number): EventContent | undefined {
    return this.#events.get(position);
  }

  put(position: number, event: EventContent): void {
    this.#events.set(position, event);
  }

  /** An event's body was erased. */
  drop(position: number): void {
    this.#events.delete(position);
  }
}
