/**
 * How much time owners have had lately of something that works for one after the other. Next is whoever has had least: with equal turns, a
 * dozen owners with long pieces make each short piece of all others wait for a dozen of theirs.
 */

import { LRUCache } from 'lru-cache';
import { upTo } from './entries.ts';

/** After so many milliseconds, half of the time counts. The longer, the longer new owners go before a busy one. */
const halfMs = 10_000;
/** Maximum owners to remember. */
const ownersMax = 10_000;

export class RecentTime {
  /** The milliseconds that owners have had, and when they had the last of them. */
  readonly #had = new LRUCache<string, { ms: number; at: number }>(upTo(ownersMax));

  /** The owner has had so many milliseconds more. */
  add(owner: string, ms: number): void {
    const now = performance.now();
    this.#had.set(owner, { ms: this.of(owner, now) + ms, at: now });
  }

  /** Of owners that have had equally much, the first. */
  leastOf(owners: Iterable<string>): string | undefined {
    const now = performance.now();
    let first: string | undefined;
    let least = Number.POSITIVE_INFINITY;
    for (const owner of owners) {
      const ms = this.of(owner, now);
      if (ms < least) [first, least] = [owner, ms];
    }
    return first;
  }

  /** The milliseconds of an owner that still count. */
  of(owner: string, now = performance.now()): number {
    const { ms, at } = this.#had.peek(owner) ?? { ms: 0, at: now };
    return ms * 0.5 ** ((now - at) / halfMs);
  }
}
