/**
 * Which lanes this node holds: takes those that are due and that nobody holds, looks again at those of which something
 * is told to have changed, finds by itself what nobody told of, and lets go of those that have nothing to do.
 *
 *   due, nobody's → claimed → (reviewed) → idle or parked for a moment → let go of
 */

import type { Database } from '../../database/database.ts';
import { deleteOrphanedAcknowledgements, maxStalenessMs } from '../../grants/delivery_hold.ts';
import { downAfterMs } from '../fan_out/fan_out_loop.ts';
import type { BackgroundTasks } from './background_tasks.ts';
import type { Lane } from './lane.ts';
import type { LaneHolds } from './lane_holds.ts';
import type { LaneLoader } from './lane_loader.ts';
import {
  claimLanes,
  findChangedLanes,
  findHeldLanes,
  type Release,
  readHeads,
  releaseLanes,
  sweepLanes,
} from './lane_store.ts';
import type { LeasedLanes } from './leased_lanes.ts';
import type { WorkerMetrics } from './metrics.ts';
import type { Node } from './node.ts';
import type { Recorder } from './recorder.ts';

/** Lanes taken, and let go of, at once at most. */
const claimMax = 500;
const releaseMax = 2_000;
/** Lanes that a sweep looks at in each look around. */
const sweepMax = 5_000;
/** Milliseconds that a lane without work is kept; and where this node holds nearly as many lanes as it may. */
const lingerMs = 10_000;
const crowdedLingerMs = 1_000;
/**
 * Where a tenant has more due lanes than it may hold, its rate-limited lanes make room for one another: milliseconds
 * that one is held at least, and that it then waits at least.
 */
const roundMs = 2_000;
const betweenRoundsMs = 5_000;
/** Milliseconds that a tenant is known to have more due lanes than it may hold. */
const refusedMs = 15_000;
const claimPauseMs = 500;
const pollPauseMs = 1_000;
const sweepPauseMs = 30_000;
/** The same where something may have gone amiss. */
const reconcileSweepPauseMs = 5_000;

export interface LaneLeasesOptions {
  db: Database;
  node: Node;
  lanes: LeasedLanes;
  loader: LaneLoader;
  holds: LaneHolds;
  recorder: Recorder;
  background: BackgroundTasks;
  metrics: WorkerMetrics;
  isStopping: () => boolean;
}

export class LaneLeases {
  readonly #options: LaneLeasesOptions;
  #claimAt = 0;
  #pollAt = 0;
  #sweepAt = 0;
  #sweptAt = Number.NEGATIVE_INFINITY;
  /** The last lane that this sweep has looked at; null between sweeps. */
  #sweepAfter: number | null = null;
  /** When the last look around began that was answered. */
  #currentAt = 0;
  #isPolling = false;
  #isClaiming = false;
  /** Lanes that are being let go of: they may be somebody else's before the answer is here. */
  #releasing: ReadonlySet<number> = new Set();
  /**
   * Whether the database may name this node for lanes that it does not know of, or hold deliveries that nobody was told
   * of.
   */
  #mustReconcile = false;

  constructor(options: LaneLeasesOptions) {
    this.#options = options;
  }

  /** To be called after the node has joined: whoever asks for a standstill from then on waits for it. */
  async start(): Promise<void> {
    const now = performance.now();
    await this.#options.holds.poll();
    this.#currentAt = now;
  }

  /** A statement whose answer was lost may have been carried out, or who fanned out before may have died amidst it. */
  reconcileSoon(): void {
    this.#mustReconcile = true;
    this.#sweepAt = Math.min(this.#sweepAt, this.#sweptAt + reconcileSweepPauseMs);
  }

  /** Whether what is known is young enough to start anything: who may no longer have what could not be asked. */
  isCurrent(now: number): boolean {
    return now - this.#currentAt <= maxStalenessMs;
  }

  get isUp(): boolean {
    return performance.now() - this.#currentAt < downAfterMs;
  }

  /** Whether more lanes can be taken. */
  get hasRoom(): boolean {
    const { lanes, loader, recorder, isStopping } = this.#options;
    return lanes.room > loader.loadingCount && !recorder.isFull && !isStopping();
  }

  /** Whether the lane is surely this node's. */
  owns(id: number): boolean {
    const { lanes, loader } = this.#options;
    return lanes.has(id) && !this.#releasing.has(id) && !loader.isLoading(id);
  }

  /** A lane's subscription, its owner's rights, or what is asked of it changed. */
  review(laneId: number): void {
    const { lanes, loader } = this.#options;
    const lane = lanes.get(laneId);
    // Before anything is asked: what waits in memory may not be allowed any more.
    lane?.dropWaiting();
    if (lane !== undefined) lane.isOpen = false;
    if (lane !== undefined || loader.isLoading(laneId)) loader.load([laneId]);
    else this.#claimAt = 0;
  }

  /** The same for all lanes of a client, or for all lanes there are. */
  reviewAll(clientId?: string): void {
    const { lanes, loader } = this.#options;
    const ids = [...lanes.all()]
      .filter(({ subscription }) => clientId === undefined || subscription.grantId === null)
      .map(({ id }) => id);
    for (const id of ids) {
      const lane = lanes.get(id) as Lane;
      lane.dropWaiting();
      lane.isOpen = false;
    }
    loader.load(ids);
  }

  tick(now: number): void {
    if (now >= this.#claimAt) {
      this.#claimAt = now + claimPauseMs;
      this.#claim();
      this.#release(now);
    }
    if (now >= this.#pollAt) {
      this.#pollAt = now + pollPauseMs;
      this.#poll(now);
    }
  }

  #claim(): void {
    const { db, node, loader, background, metrics } = this.#options;
    if (this.#isClaiming || !this.hasRoom || !node.maySend) return;
    this.#isClaiming = true;
    background.run(async () => {
      try {
        const ids = await claimLanes(db, node.id, claimMax);
        if (ids.length > 0) metrics.claimed(ids.length);
        loader.load(ids);
        if (ids.length === claimMax) this.#claimAt = 0;
      } finally {
        this.#isClaiming = false;
      }
    });
  }

  #release(now: number): void {
    if (this.#releasing.size > 0) return;
    const { db, node, lanes, loader, background } = this.#options;
    const releases: Release[] = [];
    for (const lane of lanes.all()) {
      if (!this.#mayRelease(lane, now)) continue;
      const isBetween = isBetweenTurns(lane, now);
      lane.dropWaiting();
      releases.push(releaseOf(lane, now, isBetween));
      if (releases.length >= releaseMax) break;
    }
    if (releases.length === 0) return;
    this.#releasing = new Set(releases.map(({ lane }) => lane));
    // From here on nothing is started in them.
    for (const { lane } of releases) (lanes.get(lane) as Lane).isOpen = false;
    background.run(async () => {
      try {
        const gone = new Set(await releaseLanes(db, node.id, releases));
        loader.lose([...gone]);
        loader.load(releases.map(({ lane }) => lane).filter((lane) => !gone.has(lane)));
      } catch (error) {
        loader.load(releases.map(({ lane }) => lane));
        throw error;
      } finally {
        this.#releasing = new Set();
      }
    });
  }

  get #lingerMs(): number {
    const { lanes } = this.#options;
    return lanes.room < lanes.quotas.lanes / 4 ? crowdedLingerMs : lingerMs;
  }

  #mayRelease(lane: Lane, now: number): boolean {
    const { loader, recorder } = this.#options;
    if (lane.isOnHold) return false;
    // When its next repetition is due is not known while they are read.
    if (lane.isReadingRetries) return false;
    // A repetition does not move the cursor: nothing else says that it is not written.
    if (recorder.hasOutcomesOf(lane)) return false;
    const isQuiet = lane.inFlight === 0 && lane.cursor === lane.attemptedThrough && !lane.isReading;
    if (isQuiet && isBetweenTurns(lane, now)) return !loader.isLoading(lane.id);
    if (!lane.isIdle && !(isQuiet && isParked(lane, now))) {
      lane.idleSince = now;
      return false;
    }
    const isStopped = !lane.isOpen;
    if ((now - lane.idleSince < this.#lingerMs && !isStopped) || loader.isLoading(lane.id)) return false;
    if (lane.isOpen && lane.retryAt < now + lingerMs) return false;
    return !(lane.isOpen && lane.isIdle && lane.readThrough < lane.head);
  }

  /** What notifications may have failed to tell. */
  #poll(now: number): void {
    if (this.#isPolling) return;
    this.#isPolling = true;
    const { db, node, lanes, loader, holds, background } = this.#options;
    // A client's own lanes wait for many grants, which are all looked at again when the window is read.
    const waiting = [...lanes.all()].filter((lane) => lane.waitingCount > 0 || lane.inFlight > 0);
    for (const lane of waiting) {
      if (lane.subscription.grantId !== null) continue;
      lane.dropWaiting();
      lanes.reschedule(lane);
    }
    background.run(async () => {
      try {
        // First: whoever ends a right waits for a node that is there, and what is read from here on was true after that.
        await node.heartbeat();
        await holds.poll();
        for (const lane of await findChangedLanes(db, waiting)) this.review(lane);
        this.#currentAt = now;
      } finally {
        this.#isPolling = false;
      }
      if (node.hasPeers || this.#mustReconcile) {
        const heads = await readHeads(db, lanes.ids());
        for (const [id, head] of heads) {
          const lane = lanes.get(id);
          if (lane === undefined || head <= lane.head) continue;
          lane.head = head;
          lanes.reschedule(lane);
        }
      }
      if (now >= this.#sweepAt) {
        this.#sweptAt = now;
        this.#sweepAt = now + sweepPauseMs;
        this.#sweepAfter ??= 0;
        await deleteOrphanedAcknowledgements(db);
      }
      if (this.#sweepAfter !== null) await this.#sweep(this.#sweepAfter);
      if (this.#mustReconcile) {
        this.#mustReconcile = false;
        const held = await findHeldLanes(db, node.id);
        loader.load(held.filter((id) => !lanes.has(id) && !loader.isLoading(id)));
      }
    });
  }

  /** One slice of all lanes in each look around, so that what it costs does not grow with their number. */
  async #sweep(after: number): Promise<void> {
    const { db, node, lanes, loader } = this.#options;
    const { last, held, repaired } = await sweepLanes(db, node.id, after, sweepMax);
    this.#sweepAfter = last;
    if (repaired > 0) this.#claimAt = 0;
    loader.load(held.filter((id) => !lanes.has(id) && !loader.isLoading(id)));
  }
}

/** Whether a lane waits for so long that it need not be kept: a paused one, or one that is not to send at all. */
function isParked(lane: Lane, now: number): boolean {
  return !lane.isOpen || lane.pausedUntil > now + lingerMs;
}

/**
 * Whether a rate-limited lane has had its turns while others of its tenant wait in the database for want of room. To be
 * asked before the lane forgets what it has in memory.
 */
function isBetweenTurns(lane: Lane, now: number): boolean {
  if (lane.subscription.rateLimit === null || now - lane.tenant.refusedAt > refusedMs) return false;
  return lane.started > 0 && now - lane.takenAt > roundMs && (lane.wakeAt(now) ?? 0) > now;
}

/** What the database is told of a lane that is let go of. */
function releaseOf(lane: Lane, now: number, isBetween: boolean): Release {
  const earliest = isBetween ? now + betweenRoundsMs : now;
  const wake = lane.isOpen
    ? Math.max(
        Math.min(lane.retryAt, lane.readThrough < lane.head ? now : Number.POSITIVE_INFINITY),
        lane.pausedUntil,
        earliest,
      )
    : Number.POSITIVE_INFINITY;
  return {
    lane: lane.id,
    head: lane.head,
    cursor: lane.cursor,
    dueMs: Number.isFinite(wake) ? Math.max(wake - now, 0) : null,
  };
}
