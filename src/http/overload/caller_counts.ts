/** How many requests callers have of something that is shared: places, or places in a queue. */

import { isFree } from '../../shared/share.ts';
import type { Caller } from './caller.ts';

export class CallerCounts {
  readonly #counts = new Map<string, number>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  change({ owner, group }: Caller, by: 1 | -1): void {
    this.#size += by;
    for (const key of group === null ? [owner] : [owner, group]) {
      const count = (this.#counts.get(key) ?? 0) + by;
      if (count === 0) this.#counts.delete(key);
      else this.#counts.set(key, count);
    }
  }

  /** Whether the caller may have one more of `max`, by its own share and that of its group. */
  hasRoom(max: number, { owner, group }: Caller): boolean {
    const has = (key: string) => isFree(max, this.#size, this.#counts.get(key) ?? 0);
    return has(owner) && (group === null || has(group));
  }
}
