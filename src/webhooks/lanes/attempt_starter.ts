/**
 * Which attempts are started, and when: all lanes take turns, one attempt each. What a lane may do is the lane's own
 * matter (lane.ts); how many attempts are under way in all is decided here.
 *
 *   waiting in a ready lane → under way → settled → handed to the recorder
 *                                       → called off before it began → to be repeated at once, if it may be by then
 */

import { buildRequest, type DeploymentSigners, type HeaderNames } from '../sending/delivery_request.ts';
import type { ExchangeResult } from '../sending/exchange.ts';
import type { Sender } from '../sending/sender.ts';
import type { AttemptBudget } from './attempt_budget.ts';
import type { HostLimits, HostSlot } from './host_limits.ts';
import type { Lane, Waiting } from './lane.ts';
import type { LeasedLanes } from './leased_lanes.ts';
import type { WorkerMetrics } from './metrics.ts';
import type { Node } from './node.ts';
import { attemptNumberMax, decideOutcome, type OutcomeDecision } from './outcome_policy.ts';
import type { Retries } from './retries.ts';
import type { Tenant } from './waiting_memory.ts';

/** Attempts under way at once, at most; and of those, how many may have been under way for less than a second. */
const inFlightMax = 4_096;
const recentInFlightMax = 512;
const recentMs = 1_000;
/**
 * Attempts under way from which on others are started by turns of the event loop, and how many in each, so that answers
 * are read in between: of subscribers that answer at once no more are under way than that takes, and what they need of
 * memory is free again while it is young.
 */
const startsPerTurnMax = 64;

/** Milliseconds of waiting for a rate that are no pause of the lane. */
const shortWaitMs = 1_000;

/** An attempt under way. */
interface Attempt {
  lane: Lane;
  slot: HostSlot;
  waiting: Waiting;
  number: number;
  /** Of the subscription, when it was started. */
  revision: number;
  scheduleSeconds: readonly number[];
  /** Of the process's own clock, in milliseconds. */
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
  /** Whether anything may be started, whatever the lanes say. */
  mayStart: (now: number) => boolean;
  /** An attempt has ended: something may be to be read. */
  onAttemptEnded: () => void;
  /** A subscriber said 410. */
  onGone: (lane: number) => void;
}

export class AttemptStarter {
  readonly #options: AttemptStarterOptions;
  /** Those attempts under way that are younger than a second, the oldest first. */
  readonly #recent = new Set<Attempt>();
  #inFlight = 0;
  #turn: NodeJS.Immediate | undefined;

  constructor(options: AttemptStarterOptions) {
    this.#options = options;
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  /** Starts what may be started: at once while few are under way, else by turns. */
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
    lanes.ready.reviveAll();
    lanes.readable.reviveAll();
    for (const lane of lanes.sleeping) {
      const wakeAt = lane.wakeAt(now);
      if (wakeAt !== undefined && wakeAt > now) continue;
      lanes.sleeping.delete(lane);
      lanes.reschedule(lane);
    }
  }

  /** @returns whether nothing is left that could be started now */
  #startSome(limit: number): boolean {
    const { lanes, mayStart } = this.#options;
    const now = performance.now();
    if (!mayStart(now)) return true;
    let left = limit;
    while (this.#inFlight < inFlightMax && this.#recent.size < recentInFlightMax) {
      if (lanes.ready.isEmpty) return true;
      if (left <= 0) return false;
      const lane = lanes.ready.take(this.#mayGoOn);
      if (lane === undefined) return true;
      const mustYield = this.#mustYield(lane);
      if (mustYield || !lane.mayStart(now)) {
        if (mustYield || lane.wakeAt(now) !== undefined) lanes.sleeping.add(lane);
        continue;
      }
      if (this.#isRefusedByHost(lane, now)) continue;
      left -= 1;
      this.#start(lane, lane.take());
      // At the end of the line: all take turns.
      if (lane.waitingCount > 0) lanes.ready.add(lane);
    }
    return true;
  }

  /** Whether the lane's host or app has no room: the lane is ready again when there is some, or after a time. */
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

  /** A tenant may have in flight what nobody uses, so that there is room for one more tenant at any time. */
  readonly #mayGoOn = ({ inFlight, recent }: Tenant): boolean =>
    inFlight < inFlightMax - this.#inFlight && recent < recentInFlightMax - this.#recent.size;

  /** Where many are under way, those who have not answered well lately leave room for those who have. */
  #mustYield(lane: Lane): boolean {
    if (lane.isProven || this.#inFlight < inFlightMax / 2) return false;
    return lane.inFlight > 0 || this.#inFlight >= (inFlightMax / 4) * 3;
  }

  #start(lane: Lane, waiting: Waiting): void {
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

  readonly #onResult = (answer: ExchangeResult, attempt: Attempt): void => {
    const { node, lanes, hosts, budget, metrics, onGone } = this.#options;
    const { lane, waiting, number, revision, scheduleSeconds } = attempt;
    const { tenant } = lane;
    this.#inFlight -= 1;
    if (this.#recent.delete(attempt)) tenant.recent -= 1;
    lane.end(waiting);
    lanes.forgetTenant(tenant);
    lanes.ready.revive(tenant);
    lanes.readable.revive(tenant);
    const isAccepted =
      answer.error === null && answer.status !== null && Math.floor(answer.status / 100) === 2;
    hosts.end(attempt.slot, answer.isCancelled ? null : isAccepted, performance.now(), this.#onRoom);
    if (answer.isCancelled) {
      this.#putBack(lane, waiting);
      return;
    }
    const now = node.now();
    const settlement = decideOutcome({ lane, waiting, number, revision, answer, now, scheduleSeconds });
    const { outcome, retryAfterMs, isGone } = settlement;
    if (outcome.attempt !== null) budget.apply(tenant.key, outcome.attempt, now);
    metrics.attempt(outcome.attempt?.error ?? null);
    if (isGone) {
      // At once; the database is told and will tell everybody.
      lane.isOpen = false;
      lane.dropWaiting();
    }
    lane.retryAfterUntil = Math.max(lane.retryAfterUntil, performance.now() + retryAfterMs);
    this.#apply(lane, settlement, waiting.retry?.state === 'pending');
    if (isGone) onGone(lane.id);
  };

  /** Nothing of it was sent, so it was no attempt. */
  #putBack(lane: Lane, waiting: Waiting): void {
    lane.idleSince = performance.now();
    // Whoever holds it by now reads it again without being told.
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
    const willRepeat = outcome.retry?.state === 'pending';
    if (outcome.retry?.dueMs != null) lane.retryAt = Math.min(lane.retryAt, now + outcome.retry.dueMs);
    if (lane.subscription.ordered) lane.retriesPending += (willRepeat ? 1 : 0) - (wasPending ? 1 : 0);
    retries.record(lane, outcome);
    lanes.reschedule(lane);
    this.pump();
    onAttemptEnded();
  }
}
