/**
 * Decides which lanes this node leases: claims due lanes that no node leases, reloads lanes after a change, finds what
 * notifications missed, and releases lanes that have nothing to do.
 *
 *   due and not leased → claimed → (reloaded) → idle or paused for a moment → released
 */

import type { Database } from '../../database/database.ts';
import { deleteOrphanedAcknowledgements, maxStalenessMs } from '../../grants/delivery_hold.ts';
import type { KindArrays } from '../fan_out/fan_out.ts';
import { downAfterMs } from '../fan_out/fan_out_loop.ts';
import type { BackgroundTasks } from './background_tasks.ts';
import type { Lane } from './lane.ts';
import { LaneClaims } from './lane_claims.ts';
import { LaneGrowth } from './lane_growth.ts';
import type { LaneHolds } from './lane_holds.ts';
import type { LaneLoader } from './lane_loader.ts';
import {
  findChangedLanes,
  findDisabledAccounts,
  findHeldLanes,
  findOutdatedLanes,
  type Release,
  releaseLanes,
} from './lane_store.ts';
import { sweepLanes } from './lane_sweep.ts';
import type { LeasedLanes } from './leased_lanes.ts';
import type { WorkerMetrics } from './metrics.ts';
import type { Node } from './node.ts';
import type { Recorder } from './recorder.ts';
import { Slices } from './slices.ts';

/** Maximum lanes that are released at once. */
const releaseMax = 500;
/** Lanes that one slice of a sweep, and one statement of a review checks. */
const sweepMax = 5_000;
const reviewMax = 5_000;
/** Waiting lanes that one poll checks for lost notifications. */
const changedMax = 2_000;
/** Milliseconds that an idle lane is kept: usually, and at least, if this node leases nearly as many lanes as it may. */
const lingerMs = 10_000;
const crowdedLingerMs = 1_000;
/**
 * For the rate-limited lanes of a tenant with more due lanes than it may lease. They take turns: minimum milliseconds of a lease,
 * and of the wait after it.
 */
const roundMs = 2_000;
const betweenRoundsMs = 5_000;
const releasePauseMs = 500;
const pollPauseMs = 1_000;
const sweepPauseMs = 30_000;
/** The same pause if the node may have missed something. */
const reconcileSweepPauseMs = 5_000;

export interface LaneLeasesOptions {
  db: Database;
  node: Node;
  kinds: KindArrays;
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
  readonly #growth: LaneGrowth;
  readonly #claims: LaneClaims;
  #releaseAt = 0;
  #pollAt = 0;
  #sweepAt = 0;
  #sweptAt = Number.NEGATIVE_INFINITY;
  /** The last lane of this sweep's previous slice; null between sweeps. */
  #sweepAfter: number | null = null;
  /** When the last successful poll began. */
  #currentAt = 0;
  readonly #polls = new Slices<Lane>(changedMax);
  #isPolling = false;
  /** Lanes being released. Another node may claim them before the response of the database arrives. */
  #releasing: ReadonlySet<number> = new Set();
  /**
   * Whether the database may name this node for lanes that the node does not know, or contain deliveries that no node knows.
   */
  #mustReconcile = false;

  constructor(options: LaneLeasesOptions) {
    this.#options = options;
    this.#growth = new LaneGrowth(options);
    const hasRoom = (now: number) => this.hasRoom && this.isCurrent(now);
    this.#claims = new LaneClaims({ ...options, node: options.node.id, hasRoom });
  }

  /**
   * Call it after the node has joined: delivery holds wait for the node from then on.
   * @param joinedAt before the node joined. Other nodes may have recorded it as silent since.
   */
  async start(joinedAt: number): Promise<void> {
    await this.#options.holds.poll();
    this.#currentAt = joinedAt;
  }

  /**
   * PostgreSQL may have run a statement whose response was lost. Or the previous leader died between its two statements.
   */
  reconcileSoon(): void {
    this.#mustReconcile = true;
    this.#sweepAt = Math.min(this.#sweepAt, this.#sweptAt + reconcileSweepPauseMs);
  }

  /** @param leads whether this node leads the fan-out from now on */
  lead(leads: boolean): void {
    this.#growth.leads = leads;
    if (!leads) return;
    // Deliveries may wait already, because the previous leader may have just died.
    this.reconcileSoon();
    this.#pollAt = 0;
  }

  /**
   * Whether the last poll is recent enough to start attempts. Without one, this node cannot know whose rights have
   * ended.
   */
  isCurrent(now: number): boolean {
    return now - this.#currentAt <= maxStalenessMs;
  }

  get isUp(): boolean {
    return performance.now() - this.#currentAt < downAfterMs;
  }

  /** Whether this node can lease more lanes. Those that wait to be loaded are not counted: they may be of tenants that have no room. */
  get hasRoom(): boolean {
    const { lanes, recorder, isStopping } = this.#options;
    return lanes.room > 0 && !recorder.isFull && !isStopping();
  }

  /** Whether this node certainly leases the lane. */
  owns(id: number): boolean {
    const { lanes, loader } = this.#options;
    return lanes.has(id) && !this.#releasing.has(id) && !loader.isLoading(id);
  }

  /**
   * Reloads lanes after a change of their subscription, of their owner's rights, or of their due time. Resolves when they are read
   * or the read failed.
   */
  reload(ids: Iterable<number>): Promise<void> {
    const { lanes, loader } = this.#options;
    const known = new Set<number>();
    for (const id of ids) {
      const lane = lanes.get(id);
      // Before the database responds: waiting deliveries may not be allowed any more.
      lane?.dropWaiting();
      if (lane !== undefined) lane.isOpen = false;
      if (lane !== undefined || loader.isLoading(id)) known.add(id);
      else this.claimSoon();
    }
    return loader.load([...known]);
  }

  /** Reloads some lanes of this node. Also reloads lanes that are loading, because that read may be older than the change. */
  reloadWhere(
    isMeant: (lane: Lane) => boolean,
    isMeantToo: (loading: number) => boolean = () => false,
  ): Promise<void> {
    const { lanes, loader } = this.#options;
    const meant = [...lanes.all()].filter(isMeant).map(({ id }) => id);
    return this.reload([...meant, ...loader.loading().filter(isMeantToo)]);
  }

  /**
   * Any lane may have changed: finds those that have, and reloads them. All waiting deliveries are read again, which checks the
   * current rights, so the other lanes stay open.
   */
  async review(): Promise<void> {
    const { db, kinds, lanes, loader } = this.#options;
    const all = [...lanes.all()];
    for (const lane of all) {
      lane.dropWaiting();
      lanes.reschedule(lane);
    }
    // Their reads may be older than the change.
    const outdated = loader.loading();
    for (let first = 0; first < all.length; first += reviewMax) {
      const some = all.slice(first, first + reviewMax);
      const find = () => findOutdatedLanes(db, some, kinds.appSubscriptions);
      outdated.push(...(await loader.retryUntilDone(find)));
    }
    await this.reload(outdated);
  }

  /** A lane that no node leases may be due. */
  claimSoon(): void {
    this.#claims.soon();
  }

  tick(now: number): void {
    this.#claims.tick(now);
    if (now >= this.#releaseAt || this.#options.isStopping()) this.#release(now);
    this.#growth.tick(now);
    if (now >= this.#pollAt) {
      this.#pollAt = now + pollPauseMs;
      this.#poll(now);
    }
  }

  #release(now: number): void {
    if (this.#releasing.size > 0) return;
    this.#releaseAt = now + releasePauseMs;
    const { db, node, lanes, loader, background } = this.#options;
    const releases: Release[] = [];
    for (const lane of lanes.all()) {
      if (!this.#mayRelease(lane, now)) continue;
      if (releases.length === releaseMax) {
        this.#releaseAt = now;
        break;
      }
      const isBetween = isBetweenTurns(lane, now);
      if (isBetween) lane.tenant.refused -= 1;
      lane.dropWaiting();
      releases.push(releaseOf(lane, now, isBetween));
    }
    if (releases.length === 0) return;
    this.#releasing = new Set(releases.map(({ lane }) => lane));
    // Nothing starts in these lanes from here on.
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

  /** The less room there is, the shorter. */
  get #lingerMs(): number {
    const { lanes } = this.#options;
    return Math.max(crowdedLingerMs, lingerMs * Math.min(1, lanes.room / (lanes.quotas.lanes / 4)));
  }

  #mayRelease(lane: Lane, now: number): boolean {
    const { loader, recorder } = this.#options;
    if (lane.isOnHold) return false;
    // The time of the next retry is unknown while retries are being read.
    if (lane.isReadingRetries) return false;
    // A retry does not move the cursor, so only this shows that its outcome is unwritten.
    if (recorder.hasOutcomesOf(lane)) return false;
    const isQuiet = lane.inFlight === 0 && lane.cursor === lane.attemptedThrough && !lane.isReading;
    // Other nodes go on with it, while this one waits for attempts in flight.
    if (this.#options.isStopping()) return isQuiet && !loader.isLoading(lane.id);
    if (isQuiet && isBetweenTurns(lane, now)) return !loader.isLoading(lane.id);
    if (!lane.isIdle && !(isQuiet && waitsLong(lane, now))) {
      lane.idleSince = now;
      return false;
    }
    const isStopped = !lane.isOpen;
    if ((now - lane.idleSince < this.#lingerMs && !isStopped) || loader.isLoading(lane.id)) return false;
    if (lane.isOpen && lane.retryAt < now + lingerMs) return false;
    return !(lane.isOpen && lane.isIdle && lane.readThrough < lane.head);
  }

  /** Finds what notifications may have missed. */
  #poll(now: number): void {
    if (this.#isPolling) return;
    this.#isPolling = true;
    const { db, node, lanes, loader, holds, background } = this.#options;
    // The own lane of an app depends on many grants. They are all checked when its deliveries are read again.
    const waiting = [...lanes.all()].filter((lane) => lane.waitingCount > 0 || lane.inFlight > 0);
    for (const lane of waiting) {
      if (lane.subscription.accountId !== null) continue;
      lane.dropWaiting();
      lanes.reschedule(lane);
    }
    background.run(async () => {
      try {
        // The heartbeat comes first. A transaction that ends a right waits for all registered nodes, so every read from here on
        // is newer.
        await node.heartbeat();
        await holds.poll();
        if (!this.isCurrent(performance.now())) this.#startOver();
        else {
          void this.reload(await findChangedLanes(db, this.#polls.next(waiting)));
          await this.#reloadDisabled(waiting);
        }
        this.#currentAt = now;
      } finally {
        this.#isPolling = false;
      }
      if (this.#mustReconcile) await this.#growth.look(true);
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

  async #reloadDisabled(waiting: readonly Lane[]): Promise<void> {
    const accounts = waiting.flatMap(({ subscription: { accountId } }) => accountId ?? []);
    const disabled = await findDisabledAccounts(this.#options.db, new Set(accounts));
    const isDisabled = ({ subscription: { accountId } }: Lane) =>
      accountId !== null && disabled.has(accountId);
    void this.reload(waiting.filter(isDisabled).map(({ id }) => id));
  }

  /**
   * Reads all lanes and rights again. Delivery holds do not wait for a silent node, so some may have begun and ended since the
   * last poll.
   */
  #startOver(): void {
    const { lanes, loader } = this.#options;
    for (const lane of lanes.all()) lane.hold();
    loader.load(lanes.ids());
  }

  /** Sweeps one slice of all lanes per poll, so that the cost of a poll does not depend on the number of lanes. */
  async #sweep(after: number): Promise<void> {
    const { db, node, lanes, loader } = this.#options;
    const { last, held, repaired } = await sweepLanes(db, node.id, after, sweepMax);
    this.#sweepAfter = last;
    if (repaired > 0) this.claimSoon();
    loader.load(held.filter((id) => !lanes.has(id) && !loader.isLoading(id)));
  }
}

/** Whether a lane waits so long that this node can release it, because it is paused or must not send at all. */
function waitsLong(lane: Lane, now: number): boolean {
  return !lane.isOpen || lane.pausedUntil > now + lingerMs;
}

/**
 * Whether a rate-limited lane has had its turn and another lane of its tenant waits for a lease. Call it before the lane drops its
 * waiting deliveries.
 */
function isBetweenTurns(lane: Lane, now: number): boolean {
  if (lane.subscription.rateLimit === null || lane.tenant.refused <= 0) return false;
  return lane.started > 0 && now - lane.leasedAt > roundMs && (lane.wakeAt(now) ?? 0) > now;
}

/** What is stored when a lane is released. */
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
