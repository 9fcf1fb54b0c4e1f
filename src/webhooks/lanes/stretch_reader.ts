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
    if (held.hungry.size === 0 || held.isFull) return;
    const lanes = this.#takeHungry();
    if (lanes.length === 0) return;
    const each = held.isCrowded ? 1 : Math.max(4, Math.floor(readMax / lanes.length));
    const stretches = lanes.map((lane) => {
      lane.isReading = true;
      const upTo = Math.min(lane.head, lane.readThrough + Math.min(each, lane.roomMax));
      return { lane: lane.id, after: lane.readThrough, upTo };
    });
    const generations = lanes.map(({ generation }) => generation);
    this.#isReading = true;
    background.run(async () => {
      try {
        const found = await readStretches(db, kinds, stretches);
        const events = await findEvents(db, cache, found);
        for (const lane of lanes) lane.isReading = false;
        const firsts = new Map(found.toReversed().map(({ lane, sequence }) => [lane, sequence]));
        for (const [index, { lane: id, after, upTo }] of stretches.entries()) {
          const lane = lanes[index] as Lane;
          if (lane.generation === generations[index]) lane.skipGone(after, firsts.get(id) ?? upTo + 1);
        }
        this.#take(lanes, generations, found, events);
        held.waiting += found.length;
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

  #takeHungry(): Lane[] {
    const { lanes: held } = this.#options;
    const lanes: Lane[] = [];
    const now = performance.now();
    for (const lane of held.hungry) {
      held.hungry.delete(lane);
      if (!lane.wantsMore || lane.pausedUntil > now + 1_000 || !held.hasSpace(lane)) continue;
      lanes.push(lane);
      if (lanes.length >= lanesMax) break;
    }
    return lanes;
  }

  #take(
    lanes: Lane[],
    generations: number[],
    found: WaitingDelivery[],
    events: Map<number, EventContent>,
  ): void {
    const { lanes: held, repetitions, onReview } = this.#options;
    const current = new Map(lanes.map((lane, index) => [lane.id, { lane, generation: generations[index] }]));
    const cut = new Set<number>();
    for (const delivery of found) {
      const { lane, generation } = current.get(delivery.lane) as { lane: Lane; generation: number };
      if (lane.generation !== generation || cut.has(lane.id) || delivery.sequence !== lane.readThrough + 1)
        continue;
      const event = events.get(delivery.event);
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
      } else {
        lane.addFresh({ sequence: delivery.sequence, day: delivery.day, event, retry: null });
        held.waitingBytes += event.body.length;
      }
    }
    for (const lane of lanes) held.mark(lane);
  }
}
