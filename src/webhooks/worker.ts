/**
 * The worker of this node: takes lanes, reads windows of them, sends, hands what came of it to the recorder. It holds
 * no transaction while it sends, and what it keeps in memory is bounded, whatever waits in the database.
 *
 *   lane: claimed → loaded → (read ⇄ sending) → idle for a moment → let go of;   lost to another node at any point
 *
 * All lanes take turns, one attempt each. What a lane may do is the lane's own matter (lane.ts); how many attempts
 * are under way in all is decided here.
 */

import type { Sealer } from '../crypto/sealing.ts';
import type { Database } from '../database/database.ts';
import {
  buildRequest,
  type DeploymentSigners,
  type EventContent,
  type HeaderNames,
} from './delivery_request.ts';
import type { EventCache } from './event_cache.ts';
import { failuresMin } from './failing.ts';
import type { FanOutPass, KindArrays, LaneAddition } from './fan_out.ts';
import { FanOutLoop, silentMsMax } from './fan_out_loop.ts';
import { Lane, type Waiting } from './lane.ts';
import {
  claimLanes,
  findChangedLanes,
  findHeldLanes,
  freeOrphans,
  type LaneState,
  loadLanes,
  type Release,
  readHeads,
  releaseLanes,
  storeCursors,
  wakeForgottenLanes,
} from './lane_store.ts';
import type { WorkerMetrics, WorkerStatus } from './metrics.ts';
import { Node } from './node.ts';
import { attemptNumberMax, type Outcome } from './outcome.ts';
import { Recorder } from './recorder.ts';
import type { Sender } from './sender.ts';
import { settleAttempt } from './settle.ts';
import { readDueRetries, readEvents, readStretches, type WaitingDelivery } from './window.ts';

/** Attempts under way at once, at most; and of those, how many may have been under way for less than a second. */
const inFlightMax = 4_096;
const inFlightFreshMax = 512;
/**
 * Attempts under way from which on others are started by turns of the event loop, and how many in each, so that answers
 * are read in between: of subscribers that answer at once no more are under way than that takes, and what they need of
 * memory is free again while it is young.
 */
const turnMax = 64;
/** Lanes held at once, and taken at once, at most. */
const lanesMax = 20_000;
const claimMax = 500;
/** Deliveries in memory, and bytes of their bodies, at most. */
const waitingTotalMax = 40_000;
/** Those under way included. Past it a lane gets one delivery at a time; past the second nothing is read at all. */
const waitingBytesMax = 67_108_864;
const waitingBytesLimit = 4 * waitingBytesMax;
const readBytesMax = 16_777_216;
const readMax = 2_000;
/** Repetitions of one lane read at once at most; milliseconds until the next look, where there were as many and where not. */
const retriesReadMax = 512;
const retriesPauseMs = { more: 50, noMore: 250 };
/** Milliseconds that a lane without work is kept. */
const lingerMs = 10_000;
const tickMs = 25;
const claimPauseMs = 500;
const sweepPauseMs = 30_000;
/** Milliseconds after which nothing is started for want of news: who may no longer have what could not be asked. */
const newsMsMax = 3_000;

export interface WorkerOptions {
  db: Database;
  sender: Sender;
  sealer: Sealer;
  cache: EventCache;
  kinds: KindArrays;
  headerNames: HeaderNames;
  signers: DeploymentSigners;
  retryScheduleSeconds: readonly number[];
  metrics: WorkerMetrics;
  /** Lanes that have failed often. */
  onFailing: (lanes: number[]) => void;
  /** A subscriber said 410. */
  onGone: (lane: number) => void;
  onError: (error: Error) => void;
}

export class Worker {
  readonly #options: WorkerOptions;
  readonly #onError: (error: Error) => void;
  readonly node: Node;
  readonly #recorder: Recorder;
  readonly #fanOut: FanOutLoop;
  readonly #lanes = new Map<number, Lane>();
  /** Lanes that may have something to start, in turns. */
  readonly #ready = new Set<Lane>();
  /** Lanes that are being loaded, with what was added to them meanwhile. */
  readonly #loading = new Map<number, LaneAddition[]>();
  #inFlight = 0;
  /** When those attempts under way were started that are younger than a second, the oldest first. */
  readonly #recent = new Set<{ at: number }>();
  /** Lanes that wait for a pause or their rate, that have more in the database, and that have repetitions to come. */
  readonly #sleeping = new Set<Lane>();
  readonly #hungry = new Set<Lane>();
  readonly #repeating = new Set<Lane>();
  #waiting = 0;
  #waitingBytes = 0;
  #isStopping = false;
  #turn: NodeJS.Immediate | undefined;
  #timer: NodeJS.Timeout | undefined;
  #claimAt = 0;
  #sweepAt = 0;
  #reviewAt = 0;
  /** When the last look around began that was answered. */
  #newsAt = 0;
  #isLooking = false;
  readonly #background = new Set<Promise<void>>();
  /** Whether the database may name this node for lanes that it does not know of. */
  #isUnsure = false;
  #isReading = false;
  #isReadingRetries = false;
  /** Repetitions whose outcome was written during a read: what it brings may be older than that. */
  #endedMeanwhile: { lane: Lane; sequence: number }[] = [];
  #isReleasing = false;
  #isClaiming = false;

  constructor(options: WorkerOptions) {
    this.#options = options;
    const { db, kinds } = options;
    // A statement whose answer is lost may have been carried out.
    const onError = (error: Error) => {
      this.#isUnsure = true;
      options.onError(error);
    };
    this.#onError = onError;
    this.node = new Node(db, onError, () => {
      this.#lose([...this.#lanes.keys()]);
      this.#isUnsure = true;
    });
    this.#recorder = new Recorder({
      db,
      node: this.node.id,
      onError,
      onLost: (lanes) => {
        options.metrics.lost(lanes.length);
        this.#lose(lanes);
      },
      onWritten: (lanes, outcomes) => this.#written(lanes, outcomes),
    });
    this.#fanOut = new FanOutLoop({
      db,
      kinds,
      onError,
      holder: () => (this.#hasRoom() ? this.node.id : null),
      onPass: (pass) => this.#takePass(pass),
    });
  }

  async start(): Promise<void> {
    await this.node.join();
    this.#newsAt = performance.now();
    this.#fanOut.start();
    this.#timer = setInterval(() => this.#tick(), tickMs);
  }

  /** Which of its parts run on this node: told by what they last managed to do, not by whether they were started. */
  get isUp(): { fanOut: boolean; sending: boolean } {
    const hasNews = performance.now() - this.#newsAt < silentMsMax;
    return { fanOut: this.#fanOut.isUp, sending: !this.#isStopping && this.node.maySend && hasNews };
  }

  get status(): WorkerStatus {
    return {
      inFlight: this.#inFlight,
      lanes: this.#lanes.size,
      waiting: this.#waiting,
      busy: () =>
        [...this.#lanes.values()]
          .filter(({ inFlight }) => inFlight > 0)
          .map(({ subscription, inFlight }) => ({ subscription: subscription.id, inFlight })),
    };
  }

  /** There are new events. */
  wake(): void {
    this.#fanOut.wake();
  }

  /** A lane's subscription, its owner's rights, or what is asked of it changed. */
  review(laneId: number): void {
    const lane = this.#lanes.get(laneId);
    // Before anything is asked: what waits in memory may not be allowed any more.
    lane?.forget();
    if (lane !== undefined) lane.isOpen = false;
    if (lane !== undefined || this.#loading.has(laneId)) this.#load([laneId]);
    else this.#claimAt = 0;
  }

  /** The same for all lanes of a client, or for all lanes there are. */
  reviewAll(clientId?: string): void {
    const ids = [...this.#lanes.values()]
      .filter(({ subscription }) => clientId === undefined || subscription.grantId === null)
      .map(({ id }) => id);
    for (const id of ids) {
      const lane = this.#lanes.get(id) as Lane;
      lane.forget();
      lane.isOpen = false;
    }
    this.#load(ids);
  }

  /** Finishes what is under way, writes it down, lets go of the lanes. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    await this.#fanOut.stop();
    while (this.#inFlight > 0) await new Promise((resolve) => setTimeout(resolve, 20));
    clearInterval(this.#timer);
    await Promise.allSettled(this.#background);
    await this.#recorder.flush();
    const behind = [...this.#lanes.values()].filter(({ stored, cursor }) => stored?.cursor !== cursor);
    await storeCursors(this.#options.db, this.node.id, behind).catch(this.#onError);
    await this.node.leave().catch(this.#onError);
  }

  #hasRoom(): boolean {
    return this.#lanes.size < lanesMax && !this.#recorder.isFull && !this.#isStopping;
  }

  /** Runs something beside everything else; an error is told and what was to be done is done again by the next tick. */
  #run(task: () => Promise<void>): void {
    const running = task()
      .catch(this.#onError)
      .finally(() => this.#background.delete(running));
    this.#background.add(running);
  }

  // ── Lanes ────────────────────────────────────────────────────────────────────────────────────────────────────

  #takePass({ additions, events }: FanOutPass): void {
    const toLoad: number[] = [];
    for (const addition of additions) {
      const lane = this.#lanes.get(addition.lane);
      if (lane !== undefined) {
        this.#append(lane, addition);
        continue;
      }
      // One that is being loaded may have been taken after the pass looked at its owner.
      const waiting = this.#loading.get(addition.lane);
      if (waiting !== undefined) waiting.push(addition);
      else if (addition.owner === this.node.id) {
        this.#loading.set(addition.lane, [addition]);
        toLoad.push(addition.lane);
      }
    }
    this.#options.cache.release(events);
    this.#load(toLoad);
    this.#pump();
    this.#readMore();
  }

  /** Takes new deliveries straight into memory where nothing before them is left to be read. */
  #append(lane: Lane, { first, day, events }: LaneAddition): void {
    const last = first + events.length - 1;
    if (last <= lane.head && lane.readThrough >= last) return;
    for (const [index, position] of events.entries()) {
      const sequence = first + index;
      const event = this.#options.cache.get(position);
      if (!lane.isOpen || lane.isReading || lane.readThrough !== sequence - 1) break;
      if (event === undefined || lane.freshCount >= lane.roomMax || !this.#hasSpace(lane)) break;
      lane.addFresh({ sequence, day, event, retry: null });
      this.#waiting += 1;
      this.#waitingBytes += event.body.length;
    }
    lane.head = Math.max(lane.head, last);
    this.#markReady(lane);
  }

  #load(ids: number[]): void {
    if (ids.length === 0) return;
    for (const id of ids) if (!this.#loading.has(id)) this.#loading.set(id, []);
    const asked = new Map(ids.map((id) => [id, this.#lanes.get(id)?.settled ?? 0]));
    const unwritten = new Set(ids.filter((id) => (this.#lanes.get(id)?.unwritten ?? 0) > 0));
    this.#run(async () => {
      const { db, sealer } = this.#options;
      const states = await this.#untilDone(() => loadLanes(db, this.node.id, ids, sealer, this.#onError));
      const found = new Set<number>();
      const outdated: number[] = [];
      for (const state of states) {
        const id = state.subscription.lane;
        found.add(id);
        const lane = this.#loaded(state);
        // What an ordered lane waits for was counted without what was not written yet: to be counted again.
        if (!lane.subscription.ordered || (!unwritten.has(id) && lane.settled === asked.get(id))) continue;
        lane.isOpen = false;
        outdated.push(id);
      }
      if (outdated.length > 0) setTimeout(() => this.#load(outdated.filter((id) => this.#lanes.has(id))), 20);
      // The rest is held by nobody or by others.
      this.#lose(ids.filter((id) => !found.has(id)));
      this.#pump();
      this.#readMore();
    });
  }

  /** Lanes that this node holds must not be forgotten because the database was away for a moment. */
  async #untilDone<T>(ask: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await ask();
      } catch (error) {
        if (this.#isStopping) throw error;
        this.#onError(error as Error);
        await new Promise((resolve) => setTimeout(resolve, 250));
      }
    }
  }

  #loaded(state: LaneState): Lane {
    const now = performance.now();
    const id = state.subscription.lane;
    const additions = this.#loading.get(id) ?? [];
    this.#loading.delete(id);
    let lane = this.#lanes.get(id);
    if (lane === undefined) {
      lane = new Lane(state, now);
      this.#lanes.set(id, lane);
    } else {
      lane.renew(state, now);
    }
    // The state may be older or younger than an addition; both are the same to `#append`.
    const head = lane.head;
    if (additions[0] !== undefined) lane.head = Math.min(head, additions[0].first - 1);
    if (lane.readThrough === lane.head) for (const addition of additions) this.#append(lane, addition);
    lane.head = Math.max(head, lane.head);
    this.#markReady(lane);
    return lane;
  }

  #lose(ids: number[]): void {
    for (const id of ids) {
      const lane = this.#lanes.get(id);
      this.#loading.delete(id);
      if (lane === undefined) continue;
      lane.isOpen = false;
      lane.forget();
      this.#lanes.delete(id);
      for (const set of [this.#ready, this.#sleeping, this.#hungry, this.#repeating]) set.delete(lane);
    }
  }

  #claim(): void {
    if (this.#isClaiming || !this.#hasRoom() || !this.node.maySend) return;
    this.#isClaiming = true;
    this.#run(async () => {
      try {
        const ids = await claimLanes(this.#options.db, this.node.id, claimMax);
        if (ids.length > 0) this.#options.metrics.claimed(ids.length);
        this.#load(ids);
        if (ids.length === claimMax) this.#claimAt = 0;
      } finally {
        this.#isClaiming = false;
      }
    });
  }

  #release(now: number): void {
    if (this.#isReleasing) return;
    const releases: Release[] = [];
    for (const lane of this.#lanes.values()) {
      // When its next repetition is due is not known while they are read.
      if (lane.isReadingRetries) continue;
      // A repetition does not move the cursor: nothing else says that it is not written.
      if (this.#recorder.hasOutcomesOf(lane.id)) continue;
      if (
        !lane.isIdle &&
        !(lane.inFlight === 0 && lane.cursor === lane.reached && !lane.isReading && this.#isParked(lane, now))
      ) {
        lane.idleSince = now;
        continue;
      }
      const isStopped = !lane.isOpen;
      if ((now - lane.idleSince < lingerMs && !isStopped) || this.#loading.has(lane.id)) continue;
      if (lane.isOpen && lane.retryAt < now + lingerMs) continue;
      if (lane.isOpen && lane.isIdle && lane.readThrough < lane.head) continue;
      lane.forget();
      const wake = lane.isOpen
        ? Math.max(
            Math.min(lane.retryAt, lane.readThrough < lane.head ? now : Number.POSITIVE_INFINITY),
            lane.pausedUntil,
          )
        : Number.POSITIVE_INFINITY;
      releases.push({
        lane: lane.id,
        head: lane.head,
        cursor: lane.cursor,
        dueMs: Number.isFinite(wake) ? Math.max(wake - now, 0) : null,
      });
      if (releases.length >= readMax) break;
    }
    if (releases.length === 0) return;
    this.#isReleasing = true;
    // From here on nothing is started in them: they may be somebody else's before the answer is here.
    for (const { lane } of releases) (this.#lanes.get(lane) as Lane).isOpen = false;
    this.#run(async () => {
      try {
        const { db } = this.#options;
        const gone = new Set(await releaseLanes(db, this.node.id, releases));
        this.#lose([...gone]);
        this.#load(releases.map(({ lane }) => lane).filter((lane) => !gone.has(lane)));
      } catch (error) {
        this.#load(releases.map(({ lane }) => lane));
        throw error;
      } finally {
        this.#isReleasing = false;
      }
    });
  }

  /** Whether a lane waits for so long that it need not be kept: a paused one, or one that is not to send at all. */
  #isParked(lane: Lane, now: number): boolean {
    return !lane.isOpen || lane.pausedUntil > now + lingerMs;
  }

  // ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────

  get #isCrowded(): boolean {
    return this.#waiting > waitingTotalMax || this.#waitingBytes > waitingBytesMax;
  }

  /** Where memory is short, those who have nothing waiting still get something: nobody is kept out by the others. */
  #hasSpace(lane: Lane): boolean {
    if (this.#waitingBytes > waitingBytesLimit) return false;
    return !this.#isCrowded || lane.waitingCount === 0;
  }

  #readMore(): void {
    if (this.#isReading || this.#isStopping) return;
    if (this.#hungry.size === 0 || this.#waitingBytes > waitingBytesLimit) return;
    const lanes: Lane[] = [];
    const now = performance.now();
    for (const lane of this.#hungry) {
      this.#hungry.delete(lane);
      if (!lane.wantsMore || lane.pausedUntil > now + 1_000 || !this.#hasSpace(lane)) continue;
      lanes.push(lane);
      if (lanes.length >= claimMax) break;
    }
    if (lanes.length === 0) return;
    const each = this.#isCrowded ? 1 : Math.max(4, Math.floor(readMax / lanes.length));
    const stretches = lanes.map((lane) => {
      lane.isReading = true;
      const upTo = Math.min(lane.head, lane.readThrough + Math.min(each, lane.roomMax));
      return { lane: lane.id, after: lane.readThrough, upTo };
    });
    const generations = lanes.map(({ generation }) => generation);
    this.#isReading = true;
    this.#run(async () => {
      try {
        const { db, kinds } = this.#options;
        const found = await readStretches(db, kinds, stretches);
        const events = await this.#eventsOf(found);
        for (const lane of lanes) lane.isReading = false;
        const firsts = new Map(found.toReversed().map(({ lane, sequence }) => [lane, sequence]));
        for (const [index, { lane: id, after, upTo }] of stretches.entries()) {
          const lane = lanes[index] as Lane;
          if (lane.generation === generations[index]) lane.skipGone(after, firsts.get(id) ?? upTo + 1);
        }
        this.#takeStretches(lanes, generations, found, events);
        this.#waiting += found.length;
      } finally {
        for (const lane of lanes) {
          lane.isReading = false;
          this.#markReady(lane);
        }
        this.#isReading = false;
      }
      this.#pump();
      this.#readMore();
    });
  }

  #takeStretches(
    lanes: Lane[],
    generations: number[],
    found: WaitingDelivery[],
    events: Map<number, EventContent>,
  ): void {
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
        this.review(lane.id);
      } else if (!delivery.isAllowed) {
        lane.readThrough = delivery.sequence;
        this.#cancel(lane, delivery);
      } else if (event === undefined) {
        // Left out for the bytes of the others: the next read begins here.
        cut.add(lane.id);
      } else {
        lane.addFresh({ sequence: delivery.sequence, day: delivery.day, event, retry: null });
        this.#waitingBytes += event.body.length;
      }
    }
    for (const lane of lanes) this.#markReady(lane);
  }

  /** Bodies of what was read, from memory or the database, as many as fit. */
  async #eventsOf(found: WaitingDelivery[]): Promise<Map<number, EventContent>> {
    const { db, cache } = this.#options;
    const events = new Map<number, EventContent>();
    const missing = new Map<number, { day: string; event: number }>();
    let bytes = 0;
    for (const { event, day, bytes: size, isAllowed } of found) {
      if (!isAllowed || events.has(event) || missing.has(event)) continue;
      const cached = cache.get(event);
      if (cached !== undefined) events.set(event, cached);
      else {
        bytes += size;
        if (bytes > readBytesMax && missing.size > 0) break;
        missing.set(event, { day, event });
      }
    }
    if (missing.size === 0) return events;
    for (const [position, event] of await readEvents(db, [...missing.values()])) {
      events.set(position, event);
      cache.put(position, event);
    }
    return events;
  }

  #readRetries(now: number): void {
    if (this.#isReadingRetries || this.#isStopping) return;
    const lanes = [...this.#lanes.values()]
      .filter(
        (lane) =>
          lane.isOpen &&
          lane.retryAt <= now &&
          lane.pausedUntil <= now &&
          lane.dueCount < retriesReadMax / 2 &&
          this.#hasSpace(lane),
      )
      .slice(0, claimMax);
    if (lanes.length === 0) return;
    this.#isReadingRetries = true;
    const limit = this.#isCrowded
      ? 1
      : Math.max(1, Math.min(retriesReadMax, Math.floor(readMax / lanes.length)));
    for (const lane of lanes) {
      lane.retryAt = Number.POSITIVE_INFINITY;
      lane.isReadingRetries = true;
    }
    const generations = lanes.map(({ generation }) => generation);
    this.#run(async () => {
      const { db, kinds, sealer } = this.#options;
      try {
        const ids = lanes.map(({ id }) => id);
        const found = await readDueRetries(db, kinds, ids, limit);
        const events = await this.#eventsOf(found);
        const states = await loadLanes(db, this.node.id, ids, sealer, this.#onError);
        const later = new Map(states.map((state) => [state.subscription.lane, state.retryMs]));
        this.#takeRetries(lanes, generations, found, events, later, limit);
      } catch (error) {
        for (const lane of lanes) {
          lane.retryAt = now + 500;
          this.#markReady(lane);
        }
        throw error;
      } finally {
        this.#isReadingRetries = false;
        for (const lane of lanes) lane.isReadingRetries = false;
        for (const { lane, sequence } of this.#endedMeanwhile) lane.endRetry(sequence);
        this.#endedMeanwhile = [];
      }
      this.#pump();
    });
  }

  #takeRetries(
    lanes: Lane[],
    generations: number[],
    found: WaitingDelivery[],
    events: Map<number, EventContent>,
    later: Map<number, number | null>,
    limit: number,
  ): void {
    const now = performance.now();
    const current = new Map(lanes.map((lane, index) => [lane.id, { lane, generation: generations[index] }]));
    const counts = new Map<number, number>();
    for (const delivery of found) {
      const { lane, generation } = current.get(delivery.lane) as { lane: Lane; generation: number };
      counts.set(lane.id, (counts.get(lane.id) ?? 0) + 1);
      const event = events.get(delivery.event);
      if (lane.generation !== generation || lane.isRetrying(delivery.sequence)) continue;
      if (delivery.isOnHold) this.review(lane.id);
      else if (!delivery.isAllowed) this.#cancel(lane, delivery);
      else if (event !== undefined)
        lane.addRetry({ sequence: delivery.sequence, day: delivery.day, event, retry: delivery.retry });
    }
    for (const lane of lanes) {
      const next = later.get(lane.id);
      // Those in memory are still due in the database: a moment passes before it is asked again.
      const least = counts.get(lane.id) === limit ? retriesPauseMs.more : retriesPauseMs.noMore;
      if (typeof next === 'number') lane.retryAt = Math.min(lane.retryAt, now + Math.max(next, least));
      this.#markReady(lane);
    }
  }

  /** The owner has no right to it any more. */
  #cancel(lane: Lane, { sequence, day, retry }: WaitingDelivery): void {
    if (retry === null) lane.markDone(sequence);
    else lane.beginCancel(sequence);
    this.#record(lane, {
      lane: lane.id,
      sequence,
      day,
      attempt: null,
      retry: { state: 'cancelled', attempts: retry?.attempts ?? 0, dueMs: null },
      hadRetry: retry !== null,
      wasManual: retry?.isManual ?? false,
    });
  }

  /** Hands an outcome to the recorder, and keeps in mind what the database does not know yet. */
  #record(lane: Lane, outcome: Outcome): void {
    if (outcome.retry !== null || outcome.hadRetry) {
      lane.unwritten += 1;
      lane.settled += 1;
      outcome.onWritten = () => {
        lane.unwritten -= 1;
        if (!outcome.hadRetry) return;
        if (this.#isReadingRetries) this.#endedMeanwhile.push({ lane, sequence: outcome.sequence });
        else lane.endRetry(outcome.sequence);
        // It may have been what the lane waited for.
        if (outcome.attempt === null && lane.subscription.ordered) this.review(lane.id);
      };
    }
    this.#recorder.add(lane, outcome);
  }

  // ── Sending ──────────────────────────────────────────────────────────────────────────────────────────────────

  #markReady(lane: Lane): void {
    if (lane.waitingCount > 0) this.#ready.add(lane);
    if (lane.wantsMore) this.#hungry.add(lane);
    if (Number.isFinite(lane.retryAt)) this.#repeating.add(lane);
  }

  /** Starts what may be started: at once while few are under way, else by turns. */
  #pump(): void {
    if (this.#startSome(turnMax - this.#inFlight) || this.#turn !== undefined) return;
    this.#turn = setImmediate(() => {
      this.#turn = undefined;
      if (!this.#startSome(turnMax)) this.#pump();
    });
  }

  /** @returns whether nothing is left that could be started now */
  #startSome(limit: number): boolean {
    if (this.#isStopping || this.#recorder.isFull || !this.node.maySend) return true;
    const now = performance.now();
    if (now - this.#newsAt > newsMsMax) return true;
    let left = limit;
    while (this.#inFlight < inFlightMax && this.#recent.size < inFlightFreshMax) {
      const lane = this.#ready.values().next().value;
      if (lane === undefined) return true;
      if (left <= 0) return false;
      this.#ready.delete(lane);
      const mustYield = this.#mustYield(lane);
      if (mustYield || !lane.mayStart(now)) {
        if (mustYield || lane.wakeAt(now) !== undefined) this.#sleeping.add(lane);
        continue;
      }
      left -= 1;
      this.#waiting -= 1;
      this.#start(lane, lane.take());
      // At the end of the line: all take turns.
      if (lane.waitingCount > 0) this.#ready.add(lane);
    }
    return true;
  }

  /** Where many are under way, those who have not answered well lately leave room for those who have. */
  #mustYield(lane: Lane): boolean {
    if (lane.isProven || this.#inFlight < inFlightMax / 2) return false;
    return lane.inFlight > 0 || this.#inFlight >= (inFlightMax / 4) * 3;
  }

  #start(lane: Lane, waiting: Waiting): void {
    const { sender, headerNames, signers, metrics } = this.#options;
    const { subscription, revision } = lane;
    const number = Math.min((waiting.retry?.attempts ?? 0) + 1, attemptNumberMax);
    const facts = { sequence: waiting.sequence, number, now: this.node.now() };
    const request = buildRequest(
      subscription,
      lane.template,
      lane.secrets,
      headerNames,
      waiting.event,
      facts,
      signers,
    );
    const startedAt = performance.now();
    if (number === 1) metrics.lag(Math.max(facts.now - waiting.event.createdAt, 0) / 1_000);
    const start = { at: startedAt };
    this.#inFlight += 1;
    this.#recent.add(start);
    sender.send(request, (answer) => {
      this.#inFlight -= 1;
      this.#recent.delete(start);
      lane.bytes -= waiting.event.body.length;
      this.#waitingBytes -= waiting.event.body.length;
      const { outcome, pauseMs, askedMs, isPing, isGone } = settleAttempt({
        lane,
        waiting,
        number,
        revision,
        answer,
        now: this.node.now(),
        scheduleSeconds: subscription.retrySchedule ?? this.#options.retryScheduleSeconds,
      });
      metrics.attempt(outcome.attempt?.error ?? null);
      if (isGone) {
        // At once; the database is told and will tell everybody.
        lane.isOpen = false;
        lane.forget();
      }
      lane.askedUntil = Math.max(lane.askedUntil, performance.now() + askedMs);
      const wasPending = waiting.retry?.state === 'pending';
      this.#settled(lane, outcome, { pauseMs, isPing, wasPending });
      if (isGone) this.#options.onGone(lane.id);
    });
  }

  #settled(
    lane: Lane,
    outcome: Outcome,
    { pauseMs, isPing, wasPending }: { pauseMs: number; isPing: boolean; wasPending: boolean },
  ): void {
    const isAccepted = outcome.attempt !== null && outcome.attempt.error === null;
    const now = performance.now();
    lane.settle(isAccepted, isPing);
    lane.idleSince = now;
    if (pauseMs > 0) lane.pausedUntil = Math.max(lane.pausedUntil, now + pauseMs);
    else if (isAccepted && !isPing) lane.pausedUntil = lane.askedUntil;
    if (!outcome.hadRetry) lane.markDone(outcome.sequence);
    const willRepeat = outcome.retry?.state === 'pending';
    if (outcome.retry?.dueMs != null) lane.retryAt = Math.min(lane.retryAt, now + outcome.retry.dueMs);
    if (lane.subscription.ordered) lane.retriesPending += (willRepeat ? 1 : 0) - (wasPending ? 1 : 0);
    this.#record(lane, outcome);
    this.#markReady(lane);
    this.#pump();
    if (this.#hungry.size > 0) this.#readMore();
  }

  #written(lanes: Iterable<Lane>, outcomes: Outcome[]): void {
    for (const { onWritten } of outcomes) onWritten?.();
    const failing: number[] = [];
    for (const lane of lanes) {
      this.#markReady(lane);
      if (lane.failures >= failuresMin) failing.push(lane.id);
    }
    if (failing.length > 0) this.#options.onFailing(failing);
    this.#pump();
    this.#readMore();
  }

  // ── The clock ────────────────────────────────────────────────────────────────────────────────────────────────

  #tick(): void {
    const now = performance.now();
    this.#agedStarts(now);
    for (const lane of this.#sleeping) {
      const wakeAt = lane.wakeAt(now);
      if (wakeAt !== undefined && wakeAt > now) continue;
      this.#sleeping.delete(lane);
      this.#markReady(lane);
    }
    this.#readRetries(now);
    if (now >= this.#claimAt) {
      this.#claimAt = now + claimPauseMs;
      this.#waiting = 0;
      this.#waitingBytes = 0;
      for (const lane of this.#lanes.values()) {
        this.#waiting += lane.waitingCount;
        this.#waitingBytes += lane.bytes;
      }
      this.#claim();
      this.#release(now);
    }
    if (now >= this.#reviewAt) {
      this.#reviewAt = now + 1_000;
      this.#lookAround(now);
    }
    this.#pump();
    this.#readMore();
  }

  /** Attempts that take longer than a second make room for others. */
  #agedStarts(now: number): void {
    for (const start of this.#recent) {
      if (start.at > now - 1_000) return;
      this.#recent.delete(start);
    }
  }

  /** What notifications may have failed to tell. */
  #lookAround(now: number): void {
    if (this.#isLooking) return;
    this.#isLooking = true;
    const { db } = this.#options;
    // A client's own lanes wait for many grants, which are all looked at again when the window is read.
    const waiting = [...this.#lanes.values()].filter((lane) => lane.waitingCount > 0 || lane.inFlight > 0);
    for (const lane of waiting) {
      if (lane.subscription.grantId !== null) continue;
      lane.forget();
      this.#markReady(lane);
    }
    this.#run(async () => {
      try {
        for (const lane of await findChangedLanes(db, waiting)) this.review(lane);
        this.#newsAt = now;
      } finally {
        this.#isLooking = false;
      }
      if (this.node.hasPeers) {
        const heads = await readHeads(db, [...this.#lanes.keys()]);
        for (const [id, head] of heads) {
          const lane = this.#lanes.get(id);
          if (lane === undefined || head <= lane.head) continue;
          lane.head = head;
          this.#markReady(lane);
        }
      }
      if (now >= this.#sweepAt) {
        this.#sweepAt = now + sweepPauseMs;
        if ((await freeOrphans(db)) > 0) this.#claimAt = 0;
        if ((await wakeForgottenLanes(db)) > 0) this.#claimAt = 0;
        this.#isUnsure = true;
      }
      if (this.#isUnsure) {
        this.#isUnsure = false;
        const held = await findHeldLanes(db, this.node.id);
        this.#load(held.filter((id) => !this.#lanes.has(id) && !this.#loading.has(id)));
      }
    });
  }
}
