/**
 * Reads deliveries that were never attempted, for lanes that have more in the database than in memory: one statement
 * for many lanes, one at a time.
 *
 *   hungry → reading (nothing is appended meanwhile) → in memory, cancelled, or left for the next read
 */

import type { Database } from '../../database/database.ts';
import type { EventCache } from '../fan_out/event_cache.ts';
import type { KindArrays } from '../fan_out/fan_out.ts';
import type { EventContent } from '../sending/delivery_request.ts';
import type { Background } from './background.ts';
import type { HeldLanes } from './held_lanes.ts';
import type { Lane } from './lane.ts';
import type { Repetitions } from './repetitions.ts';
import { findEvents } from './waiting_events.ts';
import type { Tenant } from './waiting_memory.ts';
import { readStretches, type WaitingDelivery } from './window.ts';

/** Lanes and deliveries of one read at most. */
const lanesMax = 500;
const readMax = 2_000;

export interface StretchReaderOptions {
  db: Database;
  kinds: KindArrays;
  cache: EventCache;
  lanes: HeldLanes;
  repetitions: Repetitions;
  background: Background;
  isStopping: () => boolean;
  /** A lane has to be looked at again. */
  onReview: (lane: number) => void;
  /** There may be something to start. */
  onRead: () => void;
}

export class StretchReader {
  readonly #options: StretchReaderOptions;
  #isReading = false;

  constructor(options: StretchReaderOptions) {
    this.#options = options;
  }

  readMore(): void {
    const { db, kinds, cache, lanes: held, background, isStopping, onRead } = this.#options;
    if (this.#isReading || isStopping()) return;
    if (held.hungry.isEmpty || held.isFull) return;
    const lanes = this.#takeHungry();
    if (lanes.length === 0) return;
    const share = Math.max(4, Math.floor(readMax / lanes.length));
    const stretches = lanes.map((lane) => {
      lane.beginReading();
      const each = held.isCrowded(lane.tenant) ? 1 : share;
      const upTo = Math.min(lane.head, lane.readThrough + Math.min(each, lane.roomMax));
      return { lane: lane.id, after: lane.readThrough, upTo };
    });
    const generations = lanes.map(({ generation }) => generation);
    this.#isReading = true;
    background.run(async () => {
      try {
        const found = await readStretches(db, kinds, stretches);
        const byId = new Map(lanes.map((lane) => [lane.id, lane]));
        const admission = held.admission();
        const events = await findEvents(db, { cache, waiting: held.memory }, found, (delivery) =>
          admission.admits(byId.get(delivery.lane) as Lane, delivery.event, delivery.bytes),
        );
        for (const lane of lanes) lane.isReading = false;
        const firsts = new Map(found.toReversed().map(({ lane, sequence }) => [lane, sequence]));
        for (const [index, { lane: id, after, upTo }] of stretches.entries()) {
          const lane = lanes[index] as Lane;
          if (lane.generation === generations[index]) lane.skipGone(after, firsts.get(id) ?? upTo + 1);
        }
        this.#take(lanes, generations, found, events);
      } finally {
        for (const lane of lanes) {
          lane.isReading = false;
          held.mark(lane);
        }
        this.#isReading = false;
      }
      onRead();
      this.readMore();
    });
  }

  /** Lanes without space are left out: they have something in memory, and are hungry again when that has ended. */
  #takeHungry(): Lane[] {
    const { lanes: held } = this.#options;
    const lanes: Lane[] = [];
    const now = performance.now();
    const mayRead = (tenant: Tenant) => held.mayRead(tenant);
    while (lanes.length < lanesMax) {
      const lane = held.hungry.take(mayRead);
      if (lane === undefined) break;
      if (lane.wantsMore && lane.pausedUntil <= now + 1_000 && held.hasSpace(lane)) lanes.push(lane);
    }
    return lanes;
  }

  #take(
    lanes: Lane[],
    generations: number[],
    found: WaitingDelivery[],
    events: Map<WaitingDelivery, EventContent>,
  ): void {
    const { lanes: held, repetitions, onReview } = this.#options;
    const current = new Map(lanes.map((lane, index) => [lane.id, { lane, generation: generations[index] }]));
    const cut = new Set<number>();
    for (const delivery of found) {
      const { lane, generation } = current.get(delivery.lane) as { lane: Lane; generation: number };
      if (lane.generation !== generation || cut.has(lane.id) || delivery.sequence !== lane.readThrough + 1)
        continue;
      const event = events.get(delivery);
      if (lane.isDone(delivery.sequence)) {
        lane.readThrough = delivery.sequence;
      } else if (delivery.isOnHold) {
        onReview(lane.id);
      } else if (!delivery.isAllowed) {
        lane.readThrough = delivery.sequence;
        repetitions.cancel(lane, delivery);
      } else if (event === undefined) {
        // Left out for the bytes of the others: the next read begins here.
        cut.add(lane.id);
      } else if (lane.isHeld(event)) {
        lane.readThrough = delivery.sequence;
        repetitions.putBack(lane, delivery);
      } else {
        const { sequence, day, event: position } = delivery;
        lane.addFresh({ sequence, day, position, event, retry: null });
      }
    }
    for (const lane of lanes) held.mark(lane);
  }
}
