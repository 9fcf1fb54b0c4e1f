/**
 * The worker of a node leases lanes, reads their deliveries, sends them and records the outcomes. It holds no
 * transaction while it sends, and its memory is bounded whatever the backlog. This file connects its parts and runs
 * their timers; README.md shows how they work together.
 */

import type { Sealer } from '../../crypto/sealing.ts';
import { type Database, withResultsWithin } from '../../database/database.ts';
import type { Notifications } from '../../database/notifications.ts';
import { deliveryHoldChannel, maxStalenessMs } from '../../grants/delivery_hold.ts';
import type { EventCache } from '../fan_out/event_cache.ts';
import type { KindArrays } from '../fan_out/fan_out.ts';
import { FanOutLoop } from '../fan_out/fan_out_loop.ts';
import { DeliveryCounts } from '../log/delivery_stats.ts';
import type { WebhookId } from '../sending/agent_message.ts';
import type { Authorizer } from '../sending/authorization.ts';
import type { DeploymentSigners } from '../sending/delivery_request.ts';
import type { Presenter } from '../sending/presentation.ts';
import type { Sender } from '../sending/sender.ts';
import type { AgentCursors } from '../subscriptions/agent_cursor.ts';
import type { HeaderNames } from '../subscriptions/delivery_headers.ts';
import { failuresMin } from '../subscriptions/failing.ts';
import type { Quotas } from '../subscriptions/quotas.ts';
import { AttemptBudget } from './attempt_budget.ts';
import { AttemptStarter } from './attempt_starter.ts';
import { BackgroundTasks } from './background_tasks.ts';
import { DeliveryReader } from './delivery_reader.ts';
import type { LoadedDelivery } from './due_deliveries.ts';
import type { Lane } from './lane.ts';
import { LaneHints } from './lane_hints.ts';
import { LaneHolds } from './lane_holds.ts';
import { LaneLeases } from './lane_leases.ts';
import { LaneLoader } from './lane_loader.ts';
import { storeCursors } from './lane_store.ts';
import { LeasedLanes } from './leased_lanes.ts';
import type { WorkerMetrics, WorkerStatus } from './metrics.ts';
import { Node } from './node.ts';
import type { Outcome } from './outcome_policy.ts';
import { Recorder } from './recorder.ts';
import { Retries } from './retries.ts';

const tickMs = 25;
/** Milliseconds that outcomes are counted in memory before they are added to the statistics. */
const countMs = 5_000;
/** Milliseconds between two reads of the delivery holds. A withdrawal waits for one. */
const holdPauseMs = 5;
/** Milliseconds for a heartbeat, and for a read of the delivery holds. A node without them starts nothing after as long. */
const pulseMs = maxStalenessMs;

export interface WorkerOptions {
  db: Database;
  /** See `FanOutLoopOptions`. */
  leaderDb: Database;
  sender: Sender;
  sealer: Sealer;
  cursors: AgentCursors;
  webhookId: WebhookId;
  cache: EventCache;
  kinds: KindArrays;
  headerNames: HeaderNames;
  signers: DeploymentSigners;
  presenter: Presenter;
  authorizer: Authorizer;
  retryScheduleSeconds: readonly number[];
  quotas: Quotas;
  metrics: WorkerMetrics;
  /** Lanes with many consecutive failures. */
  onFailing: (lanes: Lane[]) => void;
  /** Set by the operator; null if not set. */
  nodeName: string | null;
  /** This node became the leader of the fan-out, or is no longer the leader. */
  onLeadership: (leads: boolean) => void;
  /** Called with the database's epoch at each renewal of the node. */
  onEpoch: (epoch: string) => void;
  /** The subscriber responded with 410. */
  onGone: (lane: Lane) => void;
  onError: (error: Error) => void;
}

export class Worker {
  readonly #options: WorkerOptions;
  readonly #onError: (error: Error) => void;
  readonly node: Node;
  readonly #lanes: LeasedLanes;
  readonly #background: BackgroundTasks;
  readonly #recorder: Recorder;
  readonly #fanOut: FanOutLoop;
  readonly #holds: LaneHolds;
  readonly #loader: LaneLoader;
  readonly #leases: LaneLeases;
  readonly #retries: Retries;
  readonly #reader: DeliveryReader;
  readonly #starter: AttemptStarter;
  readonly #counts: DeliveryCounts;
  readonly #budget: AttemptBudget;
  readonly #stopping = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  #countTimer: NodeJS.Timeout | undefined;
  #counting: Promise<void> | undefined;

  constructor(options: WorkerOptions) {
    this.#options = options;
    this.#lanes = new LeasedLanes(options.quotas);
    const { db, leaderDb, kinds } = options;
    const onError = (error: Error) => {
      this.#leases.reconcileSoon();
      options.onError(error);
    };
    this.#onError = onError;
    this.#counts = new DeliveryCounts(db);
    this.#budget = new AttemptBudget(db, options.quotas.responseBytesPerDay);
    const pulse = withResultsWithin(pulseMs, db);
    this.node = this.#createNode(pulse);
    this.#background = new BackgroundTasks(onError);
    this.#recorder = this.#createRecorder();
    const onAccountHeld = (lane: Lane, waiting: LoadedDelivery[]) => {
      for (const each of waiting) this.#retries.putBack(lane, each);
    };
    this.#holds = new LaneHolds({
      db: pulse,
      node: this.node.id,
      lanes: this.#lanes,
      background: this.#background,
      onAccountHeld,
      onOver: (lanes) => this.#loader.load(lanes),
    });
    const shared = {
      ...options,
      onError,
      onAccountHeld,
      lanes: this.#lanes,
      holds: this.#holds,
      background: this.#background,
      recorder: this.#recorder,
      isStopping: () => this.#isStopping,
      onReload: (lane: number) => void this.#leases.reload([lane]),
      onRead: () => this.#starter.pump(),
    };
    this.#loader = new LaneLoader({ ...shared, node: this.node.id, onChange: () => this.#proceed() });
    this.#leases = new LaneLeases({ ...shared, node: this.node, loader: this.#loader });
    this.#retries = new Retries(shared);
    this.#reader = new DeliveryReader({ ...shared, retries: this.#retries });
    this.#starter = new AttemptStarter({
      ...shared,
      node: this.node,
      budget: this.#budget,
      retries: this.#retries,
      mayStart: (now) => !this.#isStopping && !this.#recorder.isFull && this.#leases.isCurrent(now),
      onAttemptEnded: () => this.#reader.readMore(),
    });
    this.#fanOut = new FanOutLoop({
      db,
      leaderDb,
      node: this.node.id,
      kinds,
      onError,
      assignTo: () => (this.#leases.hasRoom ? this.node.id : null),
      isBehind: () => this.#lanes.hasPlenty(this.#loader.newCount),
      owns: (lane) => this.#leases.owns(lane),
      onLeadership: (leads) => {
        this.#leases.lead(leads);
        options.onLeadership(leads);
      },
      onBegin: () => this.#loader.beginPass(),
      onPass: (additions, events) => this.#loader.takePass(additions, events),
      onGrown: (lanes) => this.#loader.loadGrown(lanes),
    });
  }

  #createNode(pulse: Database): Node {
    const { db, nodeName, onEpoch } = this.#options;
    return new Node(db, {
      pulse,
      name: nodeName,
      onError: this.#onError,
      onLost: () => {
        this.#loader.lose(this.#lanes.ids());
        this.#leases.reconcileSoon();
      },
      onEpoch,
    });
  }

  #createRecorder(): Recorder {
    const { db, metrics } = this.#options;
    return new Recorder({
      db,
      node: this.node.id,
      onError: this.#onError,
      onLost: (lanes) => {
        // A lane that was lost before may be leased again by now.
        const ids = lanes.filter(({ isLost }) => !isLost).map(({ id }) => id);
        metrics.lost(ids.length);
        this.#loader.lose(ids);
      },
      onWritten: (lanes, outcomes) => this.#written(lanes, outcomes),
    });
  }

  async start(): Promise<void> {
    const joinedAt = performance.now();
    await this.node.join();
    await this.#leases.start(joinedAt);
    // Abandoned meanwhile.
    if (this.#isStopping) return;
    this.#fanOut.start();
    this.#timer = setInterval(() => this.#tick(), tickMs);
    this.#countTimer = setInterval(() => {
      // Errors here do not affect the lanes, so they trigger no reconciliation.
      this.#budget.flush().catch(this.#options.onError);
      void this.#writeCounts();
    }, countMs);
  }

  get #isStopping(): boolean {
    return this.#stopping.signal.aborted;
  }

  #writeCounts(): Promise<void> {
    this.#counting ??= this.#counts
      .flush(this.#stopping.signal)
      .catch(this.#options.onError)
      .finally(() => {
        this.#counting = undefined;
      });
    return this.#counting;
  }

  /**
   * Which parts of the worker are working. Their last success decides, not their start.
   */
  get isUp(): { fanOut: boolean; sending: boolean } {
    const sending = !this.#isStopping && this.#leases.isUp;
    return { fanOut: this.#fanOut.isUp, sending };
  }

  get status(): WorkerStatus {
    return {
      inFlight: this.#starter.inFlight,
      lanes: this.#lanes.size,
      waiting: this.#lanes.memory.waiting,
      waitingBytes: this.#lanes.memory.bytes,
      accounts: this.#fanOut.waiting,
      busy: () =>
        [...this.#lanes.all()]
          .filter(({ inFlight }) => inFlight > 0)
          .map(({ subscription, inFlight }) => ({ subscription: subscription.id, inFlight })),
    };
  }

  /** New events are in the outbox. */
  wake(): void {
    this.#fanOut.wake();
  }

  /** Finds what has changed: notifications may be lost. */
  reloadAll(): void {
    this.#leases.review().catch(this.#onError);
  }

  /** Listens to what other nodes change. @param notifications not started yet */
  listen(notifications: Notifications): void {
    const hints = new LaneHints({ ...this.#options, lanes: this.#lanes, leases: this.#leases });
    notifications.listen('lane_changed', {
      onHints: (batch) => hints.changed(batch),
      // Changes during the lost connection were not received.
      onListening: () => this.reloadAll(),
    });
    notifications.listen('event_erased', {
      onHints: (batch) => hints.erased(batch),
      // The lanes are read again, too, as above.
      onListening: () => this.#options.cache.clear(),
    });
    notifications.listen(deliveryHoldChannel, {
      pauseMs: holdPauseMs,
      onHints: (batch) => this.#holds.heed(batch),
    });
  }

  /** Whether the state read from the database is recent enough to send the first byte of an attempt. */
  get isCurrent(): boolean {
    return this.#leases.isCurrent(performance.now());
  }

  /** Finishes attempts in flight, records them, and releases the lanes. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#fanOut.stop();
    while (this.#starter.inFlight > 0) await new Promise((resolve) => setTimeout(resolve, 20));
    clearInterval(this.#timer);
    clearInterval(this.#countTimer);
    await this.#background.settled();
    await this.#recorder.flush();
    const behind = [...this.#lanes.all()].filter(({ stored, cursor }) => stored?.cursor !== cursor);
    await storeCursors(this.#options.db, this.node.id, behind).catch(this.#onError);
    await this.node.leave().catch(this.#onError);
    await this.#counting;
    await this.#writeCounts();
    await this.#budget.flush().catch(this.#options.onError);
  }

  /** Ends at once: nothing more is started or written. */
  abandon(): void {
    this.#stopping.abort();
    this.node.abandon();
    clearInterval(this.#timer);
    clearInterval(this.#countTimer);
    this.#loader.lose(this.#lanes.ids());
    this.#fanOut.abandon();
  }

  /** Starts all attempts and reads that can start now. */
  #proceed(): void {
    this.#starter.pump();
    this.#reader.readMore();
  }

  #written(lanes: Iterable<Lane>, outcomes: Outcome[]): void {
    for (const { onWritten } of outcomes) onWritten?.();
    this.#counts.add(outcomes, Date.now());
    const failing: Lane[] = [];
    for (const lane of lanes) {
      this.#lanes.reschedule(lane);
      if (lane.failures >= failuresMin) failing.push(lane);
    }
    if (failing.length > 0) this.#options.onFailing(failing);
    this.#proceed();
  }

  #tick(): void {
    const now = performance.now();
    this.#starter.tick(now);
    this.#retries.read(now);
    this.#leases.tick(now);
    this.#proceed();
  }
}
