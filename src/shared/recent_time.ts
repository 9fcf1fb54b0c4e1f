/** How much time, or of something else, owners have had lately. */

import { LRUCache } from 'lru-cache';
import { upTo } from './entries.ts';

/** After so many milliseconds, half of it counts. */
const halfMs = 10_000;
/** Maximum names to remember. */
export const namesMax = 10_000;

export class RecentTime {
  /** What owners have had, and when they had the last of it. */
  readonly #had = new LRUCache<string, { amount: number; at: number }>(upTo(namesMax));

  /** The owner has had so much more. */
  add(owner: string, amount: number): void {
    const now = performance.now();
    this.#had.set(owner, { amount: this.of(owner, now) + amount, at: now });
  }

  /** What still counts. */
  of(owner: string, now = performance.now()): number {
    const had = this.#had.peek(owner);
    return had === undefined ? 0 : had.amount * 0.5 ** ((now - had.at) / halfMs);
  }
}
