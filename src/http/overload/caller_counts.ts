/** How many callers have of something that is shared: places, places in a queue, or connections. */

import type { Sharer } from '../../shared/owner_turns.ts';
import { freeInGroup, isFree } from '../../shared/share.ts';
import type { Caller } from './caller.ts';

export class CallerCounts {
  readonly #counts = new Map<string, number>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  change({ owner, part, group }: Caller, by: 1 | -1): void {
    this.#size += by;
    for (const key of [owner, part, group]) {
      if (key === null) continue;
      const count = this.#of(key) + by;
      if (count === 0) this.#counts.delete(key);
      else this.#counts.set(key, count);
    }
  }

  /** Whether the caller may have one more of `max`, by its own share and those of its groups. @param used also by those without a share */
  hasRoom(max: number, caller: Caller, used = this.#size): boolean {
    return this.hasOwnRoom(max, caller, used) && this.#hasRoomInGroups(max, caller, used);
  }

  /** The same, by its own share alone. */
  hasOwnRoom(max: number, caller: Caller, used = this.#size): boolean {
    return isFree(max, used, this.#of(ownKeyOf(caller)));
  }

  #hasRoomInGroups(max: number, caller: Caller, used: number): boolean {
    const own = this.#of(ownKeyOf(caller));
    return groupsOf(caller).every((group) => freeInGroup(max, used, this.#of(group), own) > 0);
  }

  #of(key: string): number {
    return this.#counts.get(key) ?? 0;
  }
}

/** What a caller has is counted by this. */
export function ownKeyOf({ owner, part }: Sharer): string {
  return part ?? owner;
}

/** With whom a caller shares: an account's app with the account's other apps, and with the app's other accounts. */
function groupsOf({ owner, part, group }: Caller): string[] {
  return [part === null ? null : owner, group].filter((each) => each !== null);
}
