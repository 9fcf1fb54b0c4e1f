/**
 * Lanes that wait to be loaded. Tenants take turns lane by lane, and so do a tenant's changes: each call of `add` makes a group of lanes. So a
 * lane waits neither behind the thousands of a bulk change, nor behind the many changes of another tenant. One that waits already is loaded once.
 *
 *   added → waiting → taken → settled
 */

import type { HoldWatch } from './lane_holds.ts';

export interface LoadGroup {
  /** Begun before the group's lanes were added. */
  readonly watch: HoldWatch;
  /** Lanes that are not settled. */
  left: number;
  readonly done: Promise<void>;
  readonly resolve: () => void;
}

/** Lanes of a tenant in a group that still wait. */
interface Part {
  readonly group: LoadGroup;
  readonly waiting: Set<number>;
}

export class LoadQueue {
  /** By tenant, or by group where that is not known. A tenant moves to the end after its turn, and so does its part. */
  readonly #parts = new Map<object, Set<Part>>();
  readonly #partOf = new Map<number, Part>();
  /** Lanes that are not settled. */
  size = 0;

  /** Whether no lane waits. */
  get isEmpty(): boolean {
    return this.#parts.size === 0;
  }

  /**
   * @param watch begins a watch, if one is needed; it ends when the group is settled
   * @param tenantOf undefined if it is not known
   * @returns resolves when all are settled
   */
  async add(
    ids: Iterable<number>,
    watch: () => HoldWatch,
    tenantOf: (id: number) => object | undefined,
  ): Promise<void> {
    const added = new Set<number>();
    const others = new Set<Promise<void>>();
    for (const id of ids) {
      const part = this.#partOf.get(id);
      if (part === undefined) added.add(id);
      else others.add(part.group.done);
    }
    if (added.size > 0) {
      const { promise: done, resolve } = Promise.withResolvers<void>();
      const group = { watch: watch(), left: added.size, done, resolve };
      this.size += added.size;
      for (const [tenant, own] of Map.groupBy(added, (id) => tenantOf(id) ?? group)) {
        const part = { group, waiting: new Set(own) };
        this.#parts.set(tenant, (this.#parts.get(tenant) ?? new Set()).add(part));
        for (const id of own) this.#partOf.set(id, part);
      }
      others.add(done);
    }
    await Promise.all(others);
  }

  /** Takes lanes, one of each tenant in turn. */
  take(limit: number): Map<number, LoadGroup> {
    const taken = new Map<number, LoadGroup>();
    // What is added again while this loop runs is visited again, after all others.
    for (const [tenant, parts] of this.#parts) {
      if (taken.size >= limit) break;
      const part = parts.values().next().value as Part;
      const id = part.waiting.values().next().value as number;
      part.waiting.delete(id);
      this.#partOf.delete(id);
      parts.delete(part);
      if (part.waiting.size > 0) parts.add(part);
      this.#parts.delete(tenant);
      if (parts.size > 0) this.#parts.set(tenant, parts);
      taken.set(id, part.group);
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
