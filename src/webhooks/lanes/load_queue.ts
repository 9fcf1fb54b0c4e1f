/**
 * Lanes that wait to be loaded. Each call of `add` makes a group, and groups take turns lane by lane, so a few lanes do not wait
 * behind the thousands of a bulk change. A lane that waits already is loaded once.
 *
 *   added → waiting → taken → settled
 */

import type { HoldWatch } from './lane_holds.ts';

export interface LoadGroup {
  /** Begun before the group's lanes were added. */
  readonly watch: HoldWatch;
  /** Lanes that still wait, and the number of those that are not settled. */
  readonly waiting: Set<number>;
  left: number;
  readonly done: Promise<void>;
  readonly resolve: () => void;
}

export class LoadQueue {
  readonly #groups = new Set<LoadGroup>();
  readonly #groupOf = new Map<number, LoadGroup>();
  /** Lanes that are not settled. */
  size = 0;

  /** Whether no lane waits. */
  get isEmpty(): boolean {
    return this.#groups.size === 0;
  }

  /** @param watch begins a watch, if one is needed; it ends when the group is settled @returns resolves when all are settled */
  async add(ids: Iterable<number>, watch: () => HoldWatch): Promise<void> {
    const added = new Set<number>();
    const others = new Set<Promise<void>>();
    for (const id of ids) {
      const group = this.#groupOf.get(id);
      if (group === undefined) added.add(id);
      else others.add(group.done);
    }
    if (added.size > 0) {
      const { promise: done, resolve } = Promise.withResolvers<void>();
      const group = { watch: watch(), waiting: added, left: added.size, done, resolve };
      this.#groups.add(group);
      this.size += added.size;
      for (const id of added) this.#groupOf.set(id, group);
      others.add(done);
    }
    await Promise.all(others);
  }

  /** Takes lanes, one of each group in turn. */
  take(limit: number): Map<number, LoadGroup> {
    const taken = new Map<number, LoadGroup>();
    while (taken.size < limit && this.#groups.size > 0) {
      for (const group of this.#groups) {
        if (taken.size >= limit) break;
        const id = group.waiting.values().next().value as number;
        group.waiting.delete(id);
        this.#groupOf.delete(id);
        if (group.waiting.size === 0) this.#groups.delete(group);
        taken.set(id, group);
      }
    }
    return taken;
  }

  /** Lanes that were taken are loaded, or their load failed. */
  settle(groups: Iterable<LoadGroup>): void {
    for (const group of groups) {
      this.size -= 1;
      group.left -= 1;
      if (group.left > 0) continue;
      group.watch.end();
      group.resolve();
    }
  }
}
