/**
 * Reads due retries. Tracks retries whose outcome is not written yet, because the database still reports them as due.
 *
 *   due in the database → in memory → in flight → ended → written (from here on it may be read again)
 */

import type { Database } from '../../database/database.ts';
import type { EventCache } from '../fan_out/event_cache.ts';
import type { KindArrays } from '../fan_out/fan_out.ts';
import type { EventContent } from '../sending/delivery_request.ts';
import type { BackgroundTasks } from './background_tasks.ts';
import { type DueDelivery, loadEvents, readDueRetries, readNextRetries } from './due_deliveries.ts';
import type { Lane } from './lane.ts';
import { countedRetriesMax } from './lane_store.ts';
import type { LeasedLanes } from './leased_lanes.ts';
import type { Outcome } from './outcome_policy.ts';
import { readShares } from './read_shares.ts';
import type { Recorder } from './recorder.ts';
import { pauseUnreadable } from './unreadable_events.ts';

/** Maximum lanes and deliveries of one read, and deliveries of one lane. */
const lanesMax = 500;
const readMax = 2_000;
const laneMax = 512;
/** Lanes that a tick looks at, and milliseconds until the next look at a lane that may not be read for now. */
const looksMax = 1_024;
const refusedMs = 250;
/** Milliseconds for which the limit of a lane's last read is that of its next one, which may be shared with fewer lanes; and a limit up to which all must be found again. */
const rememberedMs = 1_000;
const fewMax = 8;
/** Milliseconds until the lane's next read: after a full read, and after any other. */
const nextReadMs = { full: 50, partial: 250 };

export interface RetriesOptions {
  db: Database;
  kinds: KindArrays;
  cache: EventCache;
  lanes: LeasedLanes;
  recorder: Recorder;
  background: BackgroundTasks;
  isStopping: () => boolean;
  /** The lane must be loaded again. */
  onReload: (lane: number) => void;
  /** There may be something to start. */
  onRead: () => void;
}

export class Retries {
  readonly #options: RetriesOptions;
  /** How many retries of a lane its last read could find, and when that was. */
  readonly #reads = new WeakMap<Lane, { limit: number; at: number }>();
  #isReading = false;
  /** Retries whose outcome was written during a read. The read's result may be older. */
  #endedDuringRead: { lane: Lane; sequence: number }[] = [];

  constructor(options: RetriesOptions) {
    this.#options = options;
  }

  /** Reads the retries that are due. */
  read(now: number): void {
    const { db, kinds, cache, lanes: held, background, onRead } = this.#options;
    if (this.#isReading || this.#options.isStopping()) return;
    const lanes = this.#dueLanes(now);
    if (lanes.length === 0) return;
    this.#isReading = true;
    const shares = readShares(lanes, readMax, 1);
    const limits = new Map<number, number>();
    for (const [index, lane] of lanes.entries()) {
      const limit = held.isCrowded(lane.app) ? 1 : Math.min(laneMax, shares[index] as number);
      limits.set(lane.id, limit);
      this.#reads.set(lane, { limit, at: now });
      lane.retryAt = Number.POSITIVE_INFINITY;
      lane.beginReadingRetries();
    }
    const generations = lanes.map(({ generation }) => generation);
    background.run(async () => {
      try {
        const ids = lanes.map(({ id }) => id);
        const found = await readDueRetries(
          db,
          kinds,
          [...limits].map(([id, limit]) => ({ id, limit })),
        );
        const byId = new Map(lanes.map((lane) => [lane.id, lane]));
        const admission = held.admission();
        const admits = (delivery: DueDelivery) =>
          admission.admits(byId.get(delivery.lane) as Lane, delivery.event, delivery.bytes);
        const memory = { cache, waiting: held.memory };
        const events = await loadEvents(db, memory, ids, found, admits, pauseUnreadable(background, byId));
        const later = await readNextRetries(db, ids);
        this.#take(lanes, generations, found, events, later, limits);
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

  /** Cancels a delivery whose owner lost the right to it, or whose subscription lost the kind. */
  cancel(lane: Lane, { sequence, day, retry }: DueDelivery): void {
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

  /**
   * Puts back a delivery that was cancelled or put on hold before its first byte. It is due at once, and the next read checks the
   * right to it again.
   */
  putBack(lane: Lane, { sequence, day, retry }: Pick<DueDelivery, 'sequence' | 'day' | 'retry'>): void {
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
    this.record(lane, outcome);
  }

  /** Passes an outcome to the recorder, and tracks what the database does not know yet. */
  record(lane: Lane, outcome: Outcome): void {
    const { recorder, onReload } = this.#options;
    if (outcome.retry !== null || outcome.hadRetry) {
      lane.unwrittenOutcomes += 1;
      lane.outcomeCount += 1;
      const { dueMs = null } = outcome.retry ?? {};
      const dueAt = dueMs === null ? Number.POSITIVE_INFINITY : performance.now() + dueMs;
      const isCountedAgain =
        lane.retriesPending === Number.POSITIVE_INFINITY && lane.outcomeCount % (countedRetriesMax / 2) === 0;
      outcome.onWritten = () => {
        lane.unwrittenOutcomes -= 1;
        // Only from here on a read finds the retry, however long the write took.
        lane.retryAt = Math.min(lane.retryAt, dueAt);
        if (isCountedAgain) onReload(lane.id);
        if (!outcome.hadRetry) return;
        if (this.#isReading) this.#endedDuringRead.push({ lane, sequence: outcome.sequence });
        else lane.endRetry(outcome.sequence);
        // The lane may have waited for this retry.
        if (outcome.attempt === null && lane.subscription.ordered) onReload(lane.id);
      };
    }
    recorder.add(lane, outcome);
  }

  /** The lanes to read for: tenants take turns, then their apps, then the lanes of an app. The cost does not depend on the number of lanes. */
  #dueLanes(now: number): Lane[] {
    const { retrying, due } = this.#options.lanes;
    retrying.wake(now, (lane) => due.add(lane));
    const chosen: Lane[] = [];
    for (let looks = 0; looks < looksMax && chosen.length < lanesMax; looks += 1) {
      const lane = due.take(always);
      if (lane === undefined) break;
      if (!Number.isFinite(lane.retryAt)) continue;
      const dueAt = Math.max(lane.retryAt, lane.pausedUntil);
      if (dueAt > now) retrying.add(lane, dueAt);
      else if (this.#mayRead(lane, now)) chosen.push(lane);
      // An attempt that ends lets it have a turn earlier (`reschedule`).
      else retrying.add(lane, now + refusedMs);
    }
    return chosen;
  }

  #mayRead(lane: Lane, now: number): boolean {
    const { lanes, recorder } = this.#options;
    if (!lane.isOpen || !recorder.mayRead(lane.tenant) || !this.#mayFindMore(lane, now)) return false;
    // What was read before a failure would keep the retry that it waits for from being read, for ever.
    if (lane.waitsForRetry && !lanes.hasSpace(lane)) lane.dropWaiting();
    return lanes.hasSpace(lane);
  }

  /** A read finds what is in memory, too. So it would find nothing new, or little, until some of that has ended. */
  #mayFindMore(lane: Lane, now: number): boolean {
    const last = this.#reads.get(lane);
    const limit = last !== undefined && now - last.at < rememberedMs ? last.limit : laneMax;
    return lane.retryingCount < Math.max(limit / 2, Math.min(limit, fewMax));
  }

  #take(
    lanes: Lane[],
    generations: number[],
    found: DueDelivery[],
    events: Map<DueDelivery, EventContent>,
    later: ReadonlyMap<number, number>,
    limits: ReadonlyMap<number, number>,
  ): void {
    const { lanes: held, onReload } = this.#options;
    const now = performance.now();
    const current = new Map(lanes.map((lane, index) => [lane.id, { lane, generation: generations[index] }]));
    const counts = new Map<number, number>();
    for (const delivery of found) {
      const { lane, generation } = current.get(delivery.lane) as { lane: Lane; generation: number };
      counts.set(lane.id, (counts.get(lane.id) ?? 0) + 1);
      const event = events.get(delivery);
      if (lane.generation !== generation || lane.isRetrying(delivery.sequence)) continue;
      if (delivery.isSuspended) onReload(lane.id);
      else if (!delivery.isAllowed) this.cancel(lane, delivery);
      else if (event !== undefined && !lane.isEventHeld(event)) {
        const { sequence, day, event: position, retry } = delivery;
        lane.addRetry({ sequence, day, position, event, retry });
      }
    }
    for (const lane of lanes) {
      const next = later.get(lane.id);
      // Retries in memory are still due in the database, so the lane waits a moment before its next read.
      const least = counts.get(lane.id) === limits.get(lane.id) ? nextReadMs.full : nextReadMs.partial;
      if (next !== undefined) lane.retryAt = Math.min(lane.retryAt, now + Math.max(next, least));
      held.reschedule(lane);
    }
  }
}

const always = (): boolean => true;
