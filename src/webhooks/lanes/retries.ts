/**
 * Retries: reads those that are due, and keeps in mind which of them the database tells of wrongly for the moment,
 * because what became of them is not written yet.
 *
 *   due in the database → in memory → under way → ended → written (from here on it may be read again)
 */

import type { Sealer } from '../../crypto/sealing.ts';
import type { Database } from '../../database/database.ts';
import type { EventCache } from '../fan_out/event_cache.ts';
import type { KindArrays } from '../fan_out/fan_out.ts';
import type { EventContent } from '../sending/delivery_request.ts';
import type { BackgroundTasks } from './background_tasks.ts';
import type { Lane } from './lane.ts';
import { loadLanes } from './lane_store.ts';
import type { LeasedLanes } from './leased_lanes.ts';
import type { Outcome } from './outcome_policy.ts';
import type { Recorder } from './recorder.ts';
import { loadEvents, readDueRetries, type WaitingDelivery } from './waiting_deliveries.ts';

/** Lanes and deliveries of one read at most, and deliveries of one lane. */
const lanesMax = 500;
const readMax = 2_000;
const laneMax = 512;
/** Milliseconds until the next look at a lane, where there were as many as that and where not. */
const nextReadMs = { full: 50, partial: 250 };

export interface RetriesOptions {
  db: Database;
  /** This node's id. */
  node: string;
  kinds: KindArrays;
  sealer: Sealer;
  cache: EventCache;
  lanes: LeasedLanes;
  recorder: Recorder;
  background: BackgroundTasks;
  isStopping: () => boolean;
  /** A lane has to be looked at again. */
  onReview: (lane: number) => void;
  /** There may be something to start. */
  onRead: () => void;
  onError: (error: Error) => void;
}

export class Retries {
  readonly #options: RetriesOptions;
  #isReading = false;
  /** Those whose outcome was written during a read: what it brings may be older than that. */
  #endedDuringRead: { lane: Lane; sequence: number }[] = [];

  constructor(options: RetriesOptions) {
    this.#options = options;
  }

  /** Reads those that are due by now. */
  read(now: number): void {
    const { db, node, kinds, sealer, cache, lanes: held, background, onError, onRead } = this.#options;
    if (this.#isReading || this.#options.isStopping()) return;
    const lanes = this.#dueLanes(now);
    if (lanes.length === 0) return;
    this.#isReading = true;
    const isCrowded = lanes.some(({ tenant }) => held.isCrowded(tenant));
    const limit = isCrowded ? 1 : Math.max(1, Math.min(laneMax, Math.floor(readMax / lanes.length)));
    for (const lane of lanes) {
      lane.retryAt = Number.POSITIVE_INFINITY;
      lane.beginReadingRetries();
    }
    const generations = lanes.map(({ generation }) => generation);
    background.run(async () => {
      try {
        const ids = lanes.map(({ id }) => id);
        const found = await readDueRetries(db, kinds, ids, limit);
        const byId = new Map(lanes.map((lane) => [lane.id, lane]));
        const admission = held.admission();
        const events = await loadEvents(db, { cache, waiting: held.memory }, found, (delivery) =>
          admission.admits(byId.get(delivery.lane) as Lane, delivery.event, delivery.bytes),
        );
        const rules = { sealer, appSubscriptions: kinds.appSubscriptions };
        const states = await loadLanes(db, node, ids, rules, onError);
        const later = new Map(states.map((state) => [state.subscription.lane, state.retryMs]));
        this.#take(lanes, generations, found, events, later, limit);
      } catch (error) {
        for (const lane of lanes) {
          lane.retryAt = now + 500;
          held.reschedule(lane);
        }
        throw error;
      } finally {
        this.#isReading = false;
        for (const lane of lanes) lane.isReadingRetries = false;
        for (const { lane, sequence } of this.#endedDuringRead) lane.endRetry(sequence);
        this.#endedDuringRead = [];
      }
      onRead();
    });
  }

  /** The owner has no right to it any more. */
  cancel(lane: Lane, { sequence, day, retry }: WaitingDelivery): void {
    if (retry === null) lane.markDone(sequence);
    else lane.beginCancel(sequence);
    this.record(lane, {
      lane: lane.id,
      sequence,
      day,
      attempt: null,
      retry: { state: 'cancelled', attempts: retry?.attempts ?? 0, dueMs: null },
      hadRetry: retry !== null,
      wasManual: retry?.isManual ?? false,
    });
  }

  /** It was called off, or held, before it began: it is read again, so that it is asked again who may have it. */
  putBack(lane: Lane, { sequence, day, retry }: Pick<WaitingDelivery, 'sequence' | 'day' | 'retry'>): void {
    if (retry === null) {
      lane.markDone(sequence);
      if (lane.subscription.ordered) lane.retriesPending += 1;
    }
    const outcome: Outcome = {
      lane: lane.id,
      sequence,
      day,
      attempt: null,
      retry: { state: retry?.state ?? 'pending', attempts: retry?.attempts ?? 0, dueMs: 0 },
      hadRetry: retry !== null,
      wasManual: false,
    };
    this.record(lane, outcome, () => {
      lane.retryAt = 0;
    });
  }

  /**
   * Hands an outcome to the recorder, and keeps in mind what the database does not know yet.
   * @param then done once it is written, before anything else
   */
  record(lane: Lane, outcome: Outcome, then?: () => void): void {
    const { recorder, onReview } = this.#options;
    if (outcome.retry !== null || outcome.hadRetry) {
      lane.unwrittenOutcomes += 1;
      lane.outcomeCount += 1;
      outcome.onWritten = () => {
        then?.();
        lane.unwrittenOutcomes -= 1;
        if (!outcome.hadRetry) return;
        if (this.#isReading) this.#endedDuringRead.push({ lane, sequence: outcome.sequence });
        else lane.endRetry(outcome.sequence);
        // It may have been what the lane waited for.
        if (outcome.attempt === null && lane.subscription.ordered) onReview(lane.id);
      };
    }
    recorder.add(lane, outcome);
  }

  #dueLanes(now: number): Lane[] {
    const { lanes: held } = this.#options;
    const due: Lane[] = [];
    for (const lane of held.retrying) {
      if (!Number.isFinite(lane.retryAt)) {
        held.retrying.delete(lane);
        continue;
      }
      if (!lane.isOpen || lane.retryAt > now || lane.pausedUntil > now) continue;
      if (lane.dueCount >= laneMax / 2 || !held.hasSpace(lane)) continue;
      due.push(lane);
      if (due.length === lanesMax) break;
    }
    return due;
  }

  #take(
    lanes: Lane[],
    generations: number[],
    found: WaitingDelivery[],
    events: Map<WaitingDelivery, EventContent>,
    later: Map<number, number | null>,
    limit: number,
  ): void {
    const { lanes: held, onReview } = this.#options;
    const now = performance.now();
    const current = new Map(lanes.map((lane, index) => [lane.id, { lane, generation: generations[index] }]));
    const counts = new Map<number, number>();
    for (const delivery of found) {
      const { lane, generation } = current.get(delivery.lane) as { lane: Lane; generation: number };
      counts.set(lane.id, (counts.get(lane.id) ?? 0) + 1);
      const event = events.get(delivery);
      if (lane.generation !== generation || lane.isRetrying(delivery.sequence)) continue;
      if (delivery.isSuspended) onReview(lane.id);
      else if (!delivery.isAllowed) this.cancel(lane, delivery);
      else if (event !== undefined && !lane.isEventHeld(event)) {
        const { sequence, day, event: position, retry } = delivery;
        lane.addRetry({ sequence, day, position, event, retry });
      }
    }
    for (const lane of lanes) {
      const next = later.get(lane.id);
      // Those in memory are still due in the database: a moment passes before it is asked again.
      const least = counts.get(lane.id) === limit ? nextReadMs.full : nextReadMs.partial;
      if (typeof next === 'number') lane.retryAt = Math.min(lane.retryAt, now + Math.max(next, least));
      held.reschedule(lane);
    }
  }
}
