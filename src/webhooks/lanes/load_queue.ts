/**
 * Lanes that wait to be loaded. Tenants take turns lane by lane, and so do a tenant's changes: each call of `add` makes a group of lanes. So a
 * lane waits neither behind the thousands of a bulk change, nor behind the many changes of another tenant. One that waits already is loaded once.
 *
 *   added → waiting → taken → settled
 */

import { isFree } from '../../shared/share.ts';
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

/** A tenant's lanes that wait. Its parts take turns. */
interface Own {
  count: number;
  readonly parts: Set<Part>;
}

/** A tenant may have so many that wait, whatever the others have. */
const fewLanes = 16;

/** The name of a lane's tenant; undefined if it is not known. */
export type TenantOf = (id: number) => string | undefined;

export class LoadQueue {
  /** By the name of the tenant, or by group where that is not known. A tenant moves to the end after its turn. */
  readonly #tenants = new Map<string | LoadGroup, Own>();
  readonly #partOf = new Map<number, Part>();
  /** Lanes that are not settled. */
  size = 0;

  /** Whether no lane waits. */
  get isEmpty(): boolean {
    return this.#tenants.size === 0;
  }

  /**
   * Which of these lanes, if they were added, would be above the share of their tenant of `max` that wait. A tenant that is not known has none, and
   * one with few is not meant: they wait for one turn of each other one.
   */
  aboveShare(ids: readonly number[], max: number, tenantOf: TenantOf): Set<number> {
    const above = new Set<number>();
    const counts = new Map<string, number>();
    let size = this.#partOf.size;
    for (const id of ids) {
      const tenant = tenantOf(id);
      const own = tenant === undefined ? 0 : (counts.get(tenant) ?? this.#tenants.get(tenant)?.count ?? 0);
      if (tenant !== undefined && own >= fewLanes && !isFree(max, size, own)) above.add(id);
      else {
        size += 1;
        if (tenant !== undefined) counts.set(tenant, own + 1);
      }
    }
    return above;
  }

  /**
   * @param watch begins a watch, if one is needed; it ends when the group is settled
   * @returns resolves when all are settled
   */
  async add(ids: Iterable<number>, watch: () => HoldWatch, tenantOf: TenantOf): Promise<void> {
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
      for (const [tenant, lanes] of Map.groupBy(added, (id) => tenantOf(id) ?? group)) {
        const part = { group, waiting: new Set(lanes) };
        const own = this.#tenants.get(tenant) ?? { count: 0, parts: new Set() };
        own.count += lanes.length;
        own.parts.add(part);
        this.#tenants.set(tenant, own);
        for (const id of lanes) this.#partOf.set(id, part);
      }
      others.add(done);
    }
    await Promise.all(others);
  }

  /** Takes lanes, one of each tenant in turn. */
  take(limit: number): Map<number, LoadGroup> {
    const taken = new Map<number, LoadGroup>();
    // What is added again while this loop runs is visited again, after all others.
    for (const [tenant, own] of this.#tenants) {
      if (taken.size >= limit) break;
      const { parts } = own;
      const part = parts.values().next().value as Part;
      const id = part.waiting.values().next().value as number;
      part.waiting.delete(id);
      this.#partOf.delete(id);
      parts.delete(part);
      if (part.waiting.size > 0) parts.add(part);
      own.count -= 1;
      this.#tenants.delete(tenant);
      if (own.count > 0) this.#tenants.set(tenant, own);
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
