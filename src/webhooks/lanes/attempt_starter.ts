/**
 * Starts attempts. Lanes take turns, one attempt each. A lane decides how many attempts of its own may run (lane.ts); this file
 * decides how many may run in all.
 *
 *   waiting in a ready lane → in flight → response → outcome to the recorder
 *                                       → cancelled before its first byte → put back as a retry that is due at once
 */

import { buildRequest, type DeploymentSigners } from '../sending/delivery_request.ts';
import type { ExchangeResult } from '../sending/exchange.ts';
import type { Sender } from '../sending/sender.ts';
import type { HeaderNames } from '../subscriptions/delivery_headers.ts';
import type { AttemptBudget } from './attempt_budget.ts';
import type { Tenant } from './delivery_memory.ts';
import type { LoadedDelivery } from './due_deliveries.ts';
import type { HostLimits, HostSlot } from './host_limits.ts';
import type { Lane } from './lane.ts';
import type { LeasedLanes } from './leased_lanes.ts';
import type { WorkerMetrics } from './metrics.ts';
import type { Node } from './node.ts';
import { attemptNumberMax, decideOutcome, type OutcomeDecision } from './outcome_policy.ts';
import type { Retries } from './retries.ts';

/** Maximum attempts in flight, and maximum attempts in flight that started less than a second ago. */
const inFlightMax = 4_096;
const recentInFlightMax = 512;
const recentMs = 1_000;
/**
 * With at least this many attempts in flight, each turn of the event loop starts at most this many. The engine reads responses in
 * between. So a subscriber that responds at once needs few attempts in flight, and V8 frees their memory while it is young.
 */
const startsPerTurnMax = 64;

/** A wait for a rate limit shorter than this is not a pause of the lane. */
const shortWaitMs = 1_000;

/** An attempt in flight. */
interface Attempt {
  lane: Lane;
  slot: HostSlot;
  waiting: LoadedDelivery;
  number: number;
  /** Revision of the subscription when the attempt started. */
  revision: number;
  scheduleSeconds: readonly number[];
  /** Milliseconds on the monotonic clock. */
  startedAt: number;
}

export interface AttemptStarterOptions {
  node: Node;
  lanes: LeasedLanes;
  hosts: HostLimits;
  budget: AttemptBudget;
  retries: Retries;
  sender: Sender;
  headerNames: HeaderNames;
  signers: DeploymentSigners;
  retryScheduleSeconds: readonly number[];
  metrics: WorkerMetrics;
  /** Whether any lane may start an attempt now. */
  mayStart: (now: number) => boolean;
  /** An attempt has ended, so there may be room to read more. */
  onAttemptEnded: () => void;
  /** The subscriber responded with 410. */
  onGone: (lane: number) => void;
}

export class AttemptStarter {
  readonly #options: AttemptStarterOptions;
  /** Attempts in flight that started less than a second ago, oldest first. */
  readonly #recent = new Set<Attempt>();
  #inFlight = 0;
  #turn: NodeJS.Immediate | undefined;

  constructor(options: AttemptStarterOptions) {
    this.#options = options;
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  /**
   * Starts every attempt that may start. With few attempts in flight all start at once, otherwise over several turns of the event
   * loop.
   */
  pump(): void {
    if (this.#startSome(startsPerTurnMax - this.#inFlight) || this.#turn !== undefined) return;
    this.#turn = setImmediate(() => {
      this.#turn = undefined;
      if (!this.#startSome(startsPerTurnMax)) this.pump();
    });
  }

  tick(now: number): void {
    // Attempts that take longer than a second make room for others.
    for (const attempt of this.#recent) {
      if (attempt.startedAt > now - recentMs) break;
      this.#recent.delete(attempt);
      attempt.lane.tenant.recent -= 1;
    }
    const { lanes } = this.#options;
    this.#options.hosts.tick(now, this.#onRoom);
    lanes.ready.requeueAll();
    lanes.readable.requeueAll();
    for (const lane of lanes.sleeping) {
      const wakeAt = lane.wakeAt(now);
      if (wakeAt !== undefined && wakeAt > now) continue;
      lanes.sleeping.delete(lane);
      lanes.reschedule(lane);
    }
  }

  /** @returns whether nothing is left that could start now */
  #startSome(limit: number): boolean {
    const { lanes, mayStart } = this.#options;
    const now = performance.now();
    if (!mayStart(now)) return true;
    let left = limit;
    while (this.#inFlight < inFlightMax && this.#recent.size < recentInFlightMax) {
      if (lanes.ready.isEmpty) return true;
      if (left <= 0) return false;
      const lane = lanes.ready.take(this.#mayContinue);
      if (lane === undefined) return true;
      const mustYield = this.#mustYield(lane);
      if (mustYield || !lane.mayStart(now)) {
        if (mustYield || lane.wakeAt(now) !== undefined) lanes.sleeping.add(lane);
        continue;
      }
      if (this.#isRefusedByHost(lane, now)) continue;
      left -= 1;
      this.#start(lane, lane.take());
      // Back to the end of the queue.
      if (lane.waitingCount > 0) lanes.ready.add(lane);
    }
    return true;
  }

  /**
   * Whether the limits of the lane's host or app refuse an attempt. If so, the lane wakes when there is room or when its wait
   * ends.
   */
  #isRefusedByHost(lane: Lane, now: number): boolean {
    const { hosts, lanes } = this.#options;
    const until = hosts.refusal(lane, now);
    if (until === null) return false;
    if (until !== 0) {
      if (until - now < shortWaitMs) lane.throttledUntil = until;
      else lane.pausedUntil = Math.max(lane.pausedUntil, until);
      lanes.sleeping.add(lane);
    }
    return true;
  }

  readonly #onRoom = (lane: Lane): void => this.#options.lanes.reschedule(lane);

  /** A tenant may use as much as is still free, so that another tenant always finds room. */
  readonly #mayContinue = ({ inFlight, recent }: Tenant): boolean =>
    inFlight < inFlightMax - this.#inFlight && recent < recentInFlightMax - this.#recent.size;

  /** Under load, lanes without recent success leave room for lanes with it. */
  #mustYield(lane: Lane): boolean {
    if (lane.isProven || this.#inFlight < inFlightMax / 2) return false;
    return lane.inFlight > 0 || this.#inFlight >= (inFlightMax / 4) * 3;
  }

  #start(lane: Lane, waiting: LoadedDelivery): void {
    const { node, sender, hosts, headerNames, signers, metrics, retryScheduleSeconds } = this.#options;
    const { subscription, revision } = lane;
    const number = Math.min((waiting.retry?.attempts ?? 0) + 1, attemptNumberMax);
    const facts = { sequence: waiting.sequence, number, now: node.now() };
    const { template, keys } = lane;
    const request = buildRequest(subscription, template, keys, headerNames, waiting.event, facts, signers);
    if (number === 1) metrics.lag(Math.max(facts.now - waiting.event.createdAt, 0) / 1_000);
    const scheduleSeconds = subscription.retrySchedule ?? retryScheduleSeconds;
    const startedAt = performance.now();
    const slot = hosts.begin(lane, startedAt);
    const attempt = { lane, slot, waiting, number, revision, scheduleSeconds, startedAt };
    this.#inFlight += 1;
    this.#recent.add(attempt);
    lane.tenant.recent += 1;
    sender.send(request, this.#onResult, attempt, lane.stoppableFor(waiting.event));
  }

  readonly #onResult = (result: ExchangeResult, attempt: Attempt): void => {
    const { node, lanes, hosts, budget, metrics, onGone } = this.#options;
    const { lane, waiting, number, revision, scheduleSeconds } = attempt;
    const { tenant } = lane;
    this.#inFlight -= 1;
    if (this.#recent.delete(attempt)) tenant.recent -= 1;
    lane.end(waiting);
    lanes.forgetTenant(tenant);
    lanes.ready.requeue(tenant);
    lanes.readable.requeue(tenant);
    const isAccepted =
      result.error === null && result.status !== null && Math.floor(result.status / 100) === 2;
    hosts.end(attempt.slot, result.isCancelled ? null : isAccepted, performance.now(), this.#onRoom);
    if (result.isCancelled) {
      this.#putBack(lane, waiting);
      return;
    }
    const now = node.now();
    const decision = decideOutcome({ lane, waiting, number, revision, result, now, scheduleSeconds });
    const { outcome, retryAfterMs, isGone } = decision;
    if (outcome.attempt !== null) budget.apply(tenant.key, outcome.attempt, now);
    metrics.attempt(outcome.attempt?.error ?? null);
    if (isGone) {
      // Takes effect here at once. The database change follows and informs the other nodes.
      lane.isOpen = false;
      lane.dropWaiting();
    }
    lane.retryAfterUntil = Math.max(lane.retryAfterUntil, performance.now() + retryAfterMs);
    this.#apply(lane, decision, waiting.retry?.state === 'pending');
    if (isGone) onGone(lane.id);
  };

  /** No byte was sent, so this was not an attempt. */
  #putBack(lane: Lane, waiting: LoadedDelivery): void {
    lane.idleSince = performance.now();
    // If the lane was lost, the node that leases it now reads the delivery itself.
    if (!lane.isLost) this.#options.retries.putBack(lane, waiting);
    this.pump();
  }

  #apply(lane: Lane, { outcome, pauseMs, isPing }: OutcomeDecision, wasPending: boolean): void {
    const { lanes, retries, onAttemptEnded } = this.#options;
    const isAccepted = outcome.attempt !== null && outcome.attempt.error === null;
    const now = performance.now();
    lane.recordResult(isAccepted, isPing);
    lane.idleSince = now;
    if (pauseMs > 0) lane.pausedUntil = Math.max(lane.pausedUntil, now + pauseMs);
    else if (isAccepted && !isPing) lane.pausedUntil = lane.retryAfterUntil;
    if (!outcome.hadRetry) lane.markDone(outcome.sequence);
    const willRetry = outcome.retry?.state === 'pending';
    if (lane.subscription.ordered) lane.retriesPending += (willRetry ? 1 : 0) - (wasPending ? 1 : 0);
    retries.record(lane, outcome);
    lanes.reschedule(lane);
    this.pump();
    onAttemptEnded();
  }
}
