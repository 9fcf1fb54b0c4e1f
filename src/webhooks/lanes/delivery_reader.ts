/**
 * Reads deliveries that were never attempted, for lanes that have more deliveries in the database than in memory. One statement
 * serves many lanes, and one statement runs at a time.
 *
 *   readable → reading (nothing is appended to the lane) → in memory, cancelled, or left for the next read
 */

import type { Database } from '../../database/database.ts';
import type { EventCache } from '../fan_out/event_cache.ts';
import type { KindArrays } from '../fan_out/fan_out.ts';
import type { EventContent } from '../sending/delivery_request.ts';
import type { BackgroundTasks } from './background_tasks.ts';
import type { Tenant, TenantApp } from './delivery_memory.ts';
import { type DueDelivery, loadEvents, readNewDeliveries } from './due_deliveries.ts';
import type { Lane } from './lane.ts';
import type { LeasedLanes } from './leased_lanes.ts';
import { readShares } from './read_shares.ts';
import type { Recorder } from './recorder.ts';
import type { Retries } from './retries.ts';
import { pauseUnreadable } from './unreadable_events.ts';

/** Maximum lanes and deliveries of one read, and what each lane gets at least. */
const lanesMax = 500;
const readMax = 2_000;
const laneMin = 4;
/** Milliseconds that a lane may still pause for when deliveries are read for it. */
const pausedMsMax = 1_000;

export interface DeliveryReaderOptions {
  db: Database;
  kinds: KindArrays;
  cache: EventCache;
  lanes: LeasedLanes;
  recorder: Recorder;
  retries: Retries;
  background: BackgroundTasks;
  isStopping: () => boolean;
  /** The lane must be loaded again. */
  onReload: (lane: number) => void;
  /** There may be something to start. */
  onRead: () => void;
}

export class DeliveryReader {
  readonly #options: DeliveryReaderOptions;
  #isReading = false;

  constructor(options: DeliveryReaderOptions) {
    this.#options = options;
  }

  readMore(): void {
    const { db, kinds, cache, lanes: held, background, isStopping, onRead } = this.#options;
    if (this.#isReading || isStopping()) return;
    if (held.readable.isEmpty || held.isFull) return;
    const lanes = this.#takeReadable();
    if (lanes.length === 0) return;
    const shares = readShares(lanes, readMax, laneMin);
    const ranges = lanes.map((lane, index) => {
      lane.beginReading();
      const each = Math.min(shares[index] as number, held.readMax(lane), lane.waitingLimit);
      const upTo = Math.min(lane.head, lane.readThrough + each);
      return { lane: lane.id, after: lane.readThrough, upTo };
    });
    const generations = lanes.map(({ generation }) => generation);
    this.#isReading = true;
    background.run(async () => {
      try {
        const found = await readNewDeliveries(db, kinds, ranges);
        const byId = new Map(lanes.map((lane) => [lane.id, lane]));
        const admission = held.admission();
        const memory = { cache, waiting: held.memory };
        const admits = (delivery: DueDelivery) =>
          admission.admits(byId.get(delivery.lane) as Lane, delivery.event, delivery.bytes);
        const onUnreadable = pauseUnreadable(background, byId);
        const events = await loadEvents(db, memory, [...byId.keys()], found, admits, onUnreadable);
        for (const lane of lanes) lane.isReading = false;
        const firsts = new Map(found.toReversed().map(({ lane, sequence }) => [lane, sequence]));
        for (const [index, { lane: id, after, upTo }] of ranges.entries()) {
          const lane = lanes[index] as Lane;
          if (lane.generation === generations[index]) lane.skipGone(after, firsts.get(id) ?? upTo + 1);
        }
        this.#take(lanes, generations, found, events);
      } finally {
        for (const lane of lanes) {
          lane.isReading = false;
          held.reschedule(lane);
        }
        this.#isReading = false;
      }
      onRead();
      this.readMore();
    });
  }

  /**
   * Takes the lanes to read for. Drops lanes without space. Such a lane has deliveries in memory, and becomes readable again when
   * they end. A lane that pauses becomes readable again when its pause ends.
   */
  #takeReadable(): Lane[] {
    const { lanes: held, recorder } = this.#options;
    const lanes: Lane[] = [];
    const now = performance.now();
    const mayRead = (tenant: Tenant) => held.mayRead(tenant) && recorder.mayRead(tenant);
    const mayReadFor = (app: TenantApp) => held.mayReadFor(app);
    while (lanes.length < lanesMax) {
      const lane = held.readable.take(mayRead, mayReadFor);
      if (lane === undefined) break;
      if (!lane.wantsMore) continue;
      // A lane with nothing in memory is woken by nothing else.
      if (lane.pausedUntil > now + pausedMsMax) held.sleeping.add(lane, lane.pausedUntil);
      else if (held.hasSpace(lane)) lanes.push(lane);
    }
    return lanes;
  }

  #take(
    lanes: Lane[],
    generations: number[],
    found: DueDelivery[],
    events: Map<DueDelivery, EventContent>,
  ): void {
    const { lanes: held, retries, onReload } = this.#options;
    const current = new Map(lanes.map((lane, index) => [lane.id, { lane, generation: generations[index] }]));
    const cut = new Set<number>();
    for (const delivery of found) {
      const { lane, generation } = current.get(delivery.lane) as { lane: Lane; generation: number };
      if (lane.generation !== generation || cut.has(lane.id) || delivery.sequence !== lane.readThrough + 1)
        continue;
      const event = events.get(delivery);
      if (lane.isDone(delivery.sequence)) {
        lane.readThrough = delivery.sequence;
      } else if (delivery.isSuspended) {
        onReload(lane.id);
      } else if (!delivery.isAllowed) {
        lane.readThrough = delivery.sequence;
        retries.cancel(lane, delivery);
      } else if (event === undefined) {
        // Left out because the other bodies used up the space. The next read starts here.
        cut.add(lane.id);
      } else if (lane.isEventHeld(event) && !lane.subscription.ordered) {
        lane.readThrough = delivery.sequence;
        retries.putBack(lane, delivery);
      } else {
        const { sequence, day, event: position } = delivery;
        lane.addFresh({ sequence, day, position, event, retry: null });
      }
    }
    for (const lane of lanes) held.reschedule(lane);
  }
}
