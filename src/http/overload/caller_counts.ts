/** How many callers have of something that is shared: places, places in a queue, or connections. */

import { freeInGroup, isFree } from '../../shared/share.ts';
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

  /** Whether the caller may have one more of `max`, by its own share and that of its group. @param used also by those without a share */
  hasRoom(max: number, { owner, group }: Caller, used = this.#size): boolean {
    const own = this.#counts.get(owner) ?? 0;
    if (!isFree(max, used, own)) return false;
    return group === null || freeInGroup(max, used, this.#counts.get(group) ?? 0, own) > 0;
  }
}
