/**
 * Loads lanes into memory: lanes that were claimed, lanes that changed, and new deliveries from fan-out. New and changed lanes
 * have a queue each, and each queue runs one statement at a time. So a bulk change leaves connections for the heartbeat and the
 * delivery holds, and new lanes do not wait for it. Ended lanes are closed without being loaded.
 *
 *   leased in the database → loading (new deliveries are collected) → in memory → lost
 */

import { setTimeout as sleep } from 'node:timers/promises';

import type { Sealer } from '../../crypto/sealing.ts';
import type { Database } from '../../database/database.ts';
import type { EventCache } from '../fan_out/event_cache.ts';
import type { KindArrays, LaneAddition } from '../fan_out/fan_out.ts';
import type { GrownLane } from '../fan_out/mark_due.ts';
import type { WebhookId } from '../sending/agent_message.ts';
import type { AgentCursors } from '../subscriptions/agent_cursor.ts';
import type { BackgroundTasks } from './background_tasks.ts';
import type { LoadedDelivery } from './due_deliveries.ts';
import { Lane } from './lane.ts';
import type { HoldWatch, LaneHolds } from './lane_holds.ts';
import { findEndedLanes, type LaneState, loadLanes, postponeLanes } from './lane_store.ts';
import type { LeasedLanes } from './leased_lanes.ts';
import { type LoadGroup, LoadQueue } from './load_queue.ts';

/** Maximum lanes of one statement. The event loop is busy for some milliseconds with their rows. */
const loadMax = 100;
/** The same for the search for ended lanes, which returns few columns; and from how many lanes on it is worth a statement. */
const endedMax = 5_000;
const endedMin = 16;
/** Lanes of one statement that need not wait for the rest of a larger change. */
const newcomersMax = 32;
/** Milliseconds during which changes are collected. */
const collectMs = 5;

export interface LaneLoaderOptions {
  db: Database;
  /** This node's id. */
  node: string;
  kinds: KindArrays;
  sealer: Sealer;
  cursors: AgentCursors;
  webhookId: WebhookId;
  cache: EventCache;
  lanes: LeasedLanes;
  holds: LaneHolds;
  background: BackgroundTasks;
  isStopping: () => boolean;
  /** An app's lane dropped these deliveries of an account from memory, because the account is on hold. */
  onAccountHeld: (lane: Lane, waiting: LoadedDelivery[]) => void;
  /** There may be something to start or to read. */
  onChange: () => void;
  onError: (error: Error) => void;
}

export class LaneLoader {
  readonly #options: LaneLoaderOptions;
  /** Lanes being loaded, with the deliveries added to them since. */
  readonly #loading = new Map<number, LaneAddition[]>();
  /** Lanes that are being postponed, each with its tenant if it is to be loaded afterwards. */
  readonly #postponing = new Map<number, { tenant: string | null } | null>();
  readonly #newLanes = new LoadQueue();
  readonly #changedLanes = new LoadQueue();
  readonly #running = new Set<LoadQueue>();

  /** The watch of the fan-out pass that is running. */
  #passWatch: HoldWatch;

  constructor(options: LaneLoaderOptions) {
    this.#options = options;
    this.#passWatch = options.holds.watch();
  }

  /** The number of lanes being loaded that are not in memory yet. */
  get newCount(): number {
    return this.#newLanes.size;
  }

  /** The lanes that are being loaded. */
  loading(): number[] {
    return [...this.#loading.keys()];
  }

  isLoading(id: number): boolean {
    return this.#loading.has(id);
  }

  /** A fan-out pass is about to read who may get the events. */
  beginPass(): void {
    this.#passWatch.end();
    this.#passWatch = this.#options.holds.watch();
  }

  takePass(additions: readonly LaneAddition[], events: readonly number[]): void {
    const { lanes, node, cache, onChange } = this.#options;
    const toLoad = new Map<number, string | null>();
    const collected: LaneAddition[] = [];
    for (const addition of additions) {
      const lane = lanes.get(addition.lane);
      // A hold ended after the pass read the rights. The read from the lane checks them again.
      if (
        this.#passWatch.hasEndedHolds &&
        (lane === undefined || this.#passWatch.covers(lane.subscription))
      ) {
        const isOurs = lane !== undefined || this.#loading.has(addition.lane) || addition.owner === node;
        if (!isOurs) continue;
        toLoad.set(addition.lane, addition.tenant);
        this.#keep(addition.events);
        continue;
      }
      if (lane !== undefined) {
        this.#append(lane, addition);
        continue;
      }
      // The lane may have been leased after the pass read its owner.
      const waiting = this.#loading.get(addition.lane);
      if (waiting === undefined && addition.owner !== node) {
        // A lane that no node leases may come to this one later.
        if (addition.owner === null) this.#keep(addition.events);
        continue;
      }
      this.#keep(addition.events);
      if (waiting !== undefined) waiting.push(addition);
      else {
        collected.push(addition);
        toLoad.set(addition.lane, addition.tenant);
      }
    }
    cache.release(events);
    void this.load([...toLoad.keys()], toLoad);
    for (const addition of collected) this.#loading.get(addition.lane)?.push(addition);
    onChange();
  }

  /** Keeps events in the cache for deliveries that are not in memory yet. */
  #keep(events: readonly number[]): void {
    for (const position of events) this.#options.cache.keep(position);
  }

  /** Loads lanes of this node that have new deliveries. */
  loadGrown(lanes: readonly GrownLane[]): void {
    const tenants = new Map(lanes.map(({ lane, tenant }) => [lane, tenant]));
    void this.load([...tenants.keys()], tenants);
  }

  /**
   * Loads lanes from the database. Lanes that this node does not lease are lost. Errors are reported.
   * @param tenants of lanes that are not in memory, as far as they are known
   * @returns resolves when it is done; usually nothing waits for it
   */
  async load(ids: readonly number[], tenants: ReadonlyMap<number, string | null> = new Map()): Promise<void> {
    if (ids.length === 0) return;
    const { lanes, holds } = this.#options;
    const tenantOf = (id: number) => lanes.get(id)?.tenant.key ?? tenants.get(id) ?? undefined;
    // The database may still say that this node leases them.
    const later = ids.filter((id) => this.#postponing.has(id));
    for (const id of later) this.#postponing.set(id, { tenant: tenants.get(id) ?? null });
    const first = ids.filter((id) => !lanes.has(id) && !this.#loading.has(id) && !this.#postponing.has(id));
    // To load lanes only to refuse them would delay those of others.
    this.#postpone(first.filter((id) => lanes.refusesNamed(tenantOf(id) ?? '')));
    const others = first.filter((id) => !this.#postponing.has(id));
    this.#postpone([...this.#newLanes.aboveShare(others, lanes.quotas.lanes, tenantOf)]);
    const admitted = ids.filter((id) => !this.#postponing.has(id));
    for (const id of admitted) if (!this.#loading.has(id)) this.#loading.set(id, []);
    // Deliveries added while the lane is loading may be older than the end of a hold.
    const watch = () => holds.watch();
    const isNew = (id: number) => !lanes.has(id);
    const loaded = [
      this.#newLanes.add(admitted.filter(isNew), watch, tenantOf),
      this.#changedLanes.add(
        admitted.filter((id) => !isNew(id)),
        watch,
        tenantOf,
      ),
    ];
    this.#run(this.#newLanes);
    this.#run(this.#changedLanes);
    await Promise.all(loaded);
  }

  #run(queue: LoadQueue): void {
    if (queue.isEmpty || this.#running.has(queue)) return;
    const { isStopping, onError } = this.#options;
    this.#running.add(queue);
    void this.#options.background.run(async () => {
      try {
        if (queue === this.#changedLanes) await sleep(collectMs);
        while (!queue.isEmpty) {
          await this.#loadFrom(queue).catch((error) => {
            if (isStopping()) throw error;
            onError(error);
          });
        }
      } finally {
        this.#running.delete(queue);
      }
    });
  }

  async #loadFrom(queue: LoadQueue): Promise<void> {
    const isChange = queue === this.#changedLanes;
    const taken = queue.take(isChange ? endedMax : loadMax);
    try {
      if (isChange) await this.#closeEnded(taken, queue);
      while (taken.size > 0) {
        const some = this.#takeSlice(taken, queue);
        try {
          await this.#loadSome(some);
        } finally {
          queue.settle(some.values());
        }
      }
    } finally {
      queue.settle(taken.values());
    }
  }

  /** Takes lanes for one statement: a few that were added meanwhile, and then those of a larger change. */
  #takeSlice(taken: Map<number, LoadGroup>, queue: LoadQueue): Map<number, LoadGroup> {
    const some = queue.take(newcomersMax);
    for (const [id, group] of taken) {
      if (some.size >= loadMax) break;
      if (some.has(id)) continue;
      some.set(id, group);
      taken.delete(id);
    }
    return some;
  }

  /** Closes the lanes of ended subscriptions, which are then released (lane_leases.ts), and takes them out of `taken`. */
  async #closeEnded(taken: Map<number, LoadGroup>, queue: LoadQueue): Promise<void> {
    if (taken.size < endedMin) return;
    const ended = await this.retryUntilDone(() => findEndedLanes(this.#options.db, [...taken.keys()]));
    for (const id of ended) {
      const lane = this.#options.lanes.get(id);
      if (lane === undefined) continue;
      lane.isOnHold = false;
      lane.isOpen = false;
      lane.dropWaiting();
      this.#loading.delete(id);
      queue.settle([taken.get(id) as LoadGroup]);
      taken.delete(id);
    }
  }

  async #loadSome(groups: ReadonlyMap<number, LoadGroup>): Promise<void> {
    const { db, node, sealer, cursors, webhookId, kinds, lanes, onChange, onError } = this.#options;
    const ids = [...groups.keys()];
    const watchOf = (id: number): HoldWatch => (groups.get(id) as LoadGroup).watch;
    const rules = { sealer, cursors, webhookId, appSubscriptions: kinds.appSubscriptions };
    const asked = new Map(ids.map((id) => [id, lanes.get(id)?.outcomeCount ?? 0]));
    const unwritten = new Set(ids.filter((id) => (lanes.get(id)?.unwrittenOutcomes ?? 0) > 0));
    const states = await this.retryUntilDone(() => loadLanes(db, node, ids, rules, onError));
    const found = new Set<number>();
    const outdated: number[] = [];
    for (const state of states) {
      const id = state.subscription.lane;
      const watch = watchOf(id);
      const lane = this.#applyState(state, watch.covers(state.subscription));
      if (lane === undefined) continue;
      found.add(id);
      // The state of an ordered lane does not count unwritten outcomes. Count again.
      const isMiscounted = unwritten.has(id) || lane.outcomeCount !== asked.get(id);
      if (!(lane.subscription.ordered && isMiscounted) && !watch.coversLane(lane.subscription)) continue;
      lane.isOpen = false;
      outdated.push(id);
    }
    if (outdated.length > 0) setTimeout(() => this.load(outdated.filter((id) => lanes.has(id))), 20);
    // Other nodes or none lease the other lanes, or this node has no room for them.
    this.lose(ids.filter((id) => !found.has(id)));
    onChange();
    this.#postpone(states.map(({ subscription }) => subscription.lane).filter((id) => !found.has(id)));
  }

  /** There is no room for these lanes. */
  #postpone(ids: readonly number[]): void {
    const { db, node, background } = this.#options;
    const added = ids.filter((id) => !this.#postponing.has(id));
    if (added.length === 0) return;
    for (const id of added) this.#postponing.set(id, null);
    background.run(async () => {
      try {
        await postponeLanes(db, node, added);
      } finally {
        const asked = new Map<number, string | null>();
        for (const id of added) {
          const again = this.#postponing.get(id);
          if (again) asked.set(id, again.tenant);
          this.#postponing.delete(id);
        }
        void this.load([...asked.keys()], asked);
      }
    });
  }

  /** Other nodes lease these lanes, or none does. */
  lose(ids: number[]): void {
    const { lanes } = this.#options;
    for (const id of ids) {
      const lane = lanes.get(id);
      this.#loading.delete(id);
      if (lane === undefined) continue;
      lane.lose();
      lanes.remove(lane);
    }
  }

  /** Takes new deliveries directly into memory, if nothing before them is left to read. */
  #append(lane: Lane, { first, day, events }: LaneAddition): void {
    const { lanes, cache } = this.#options;
    const last = first + events.length - 1;
    if (last <= lane.head && lane.readThrough >= last) return;
    let taken = 0;
    for (const position of events) {
      const sequence = first + taken;
      const event = cache.get(position);
      if (!lane.isOpen || lane.isReading || lane.readThrough !== sequence - 1 || lane.waitsForRetry) break;
      if (
        event === undefined ||
        lane.isEventHeld(event) ||
        lane.freshCount >= lane.waitingLimit ||
        !lanes.hasSpace(lane)
      )
        break;
      lane.addFresh({ sequence, day, position, event, retry: null });
      taken += 1;
    }
    if (taken < events.length) this.#keep(events.slice(taken));
    lane.head = Math.max(lane.head, last);
    lanes.reschedule(lane);
  }

  /** Retries during an outage, so that a short one does not lose this node's lanes. */
  async retryUntilDone<T>(ask: () => Promise<T>): Promise<T> {
    const { isStopping, onError } = this.#options;
    for (;;) {
      try {
        return await ask();
      } catch (error) {
        if (isStopping()) throw error;
        onError(error as Error);
        await new Promise((resolve) => setTimeout(resolve, 250));
      }
    }
  }

  #holdAccounts(lane: Lane): void {
    const { holds, onAccountHeld } = this.#options;
    const held = new Set(holds.heldAccounts(lane.subscription));
    for (const account of lane.heldAccounts) if (!held.has(account)) lane.releaseAccount(account);
    for (const account of held) {
      if (!lane.heldAccounts.has(account)) onAccountHeld(lane, lane.holdAccount(account));
    }
  }

  /**
   * @param isOutdated whether the collected deliveries must be read from the database, with the current rights
   * @returns undefined if the tenant leases as many lanes as it may
   */
  #applyState(state: LaneState, isOutdated: boolean): Lane | undefined {
    const { lanes, holds } = this.#options;
    const now = performance.now();
    const id = state.subscription.lane;
    const additions = this.#loading.get(id) ?? [];
    this.#loading.delete(id);
    let lane = lanes.get(id);
    if (lane === undefined) {
      if (this.#postponing.has(id)) return undefined;
      const tenant = lanes.tenantOf(state.subscription, state.creatorId);
      if (lanes.refuses(tenant)) {
        lanes.forgetTenant(tenant);
        return undefined;
      }
      lane = new Lane(state, now, tenant);
      lanes.add(lane);
    } else {
      lane.reload(state, now);
    }
    lane.isOnHold = holds.isOnHold(lane.subscription);
    if (lane.isOnHold) lane.isOpen = false;
    this.#holdAccounts(lane);
    // The loaded state may be older or newer than a collected delivery. `#append` handles both.
    const { head } = lane;
    if (isOutdated) {
      for (const { first, events } of additions) lane.head = Math.max(lane.head, first + events.length - 1);
    } else {
      if (additions[0] !== undefined) lane.head = Math.min(head, additions[0].first - 1);
      if (lane.readThrough === lane.head) for (const addition of additions) this.#append(lane, addition);
      lane.head = Math.max(head, lane.head);
    }
    lanes.reschedule(lane);
    return lane;
  }
}
