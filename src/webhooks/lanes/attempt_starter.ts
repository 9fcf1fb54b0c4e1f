/**
 * Starts attempts. Lanes take turns, one attempt each. A lane decides how many attempts of its own may run (lane.ts), and its windows
 * how many may run beside others (windows.ts).
 *
 *   waiting in a ready lane → (converted, access token requested) → in flight → response → outcome to the recorder
 *                                                               → cancelled before its first byte → put back as a retry that is due at once
 *                                                               → 401 to an access token → waits for a new one, without places → sent once more
 */

import { NoTurnError } from '../../shared/limited_work.ts';
import { AuthError, type Authorization, type Authorizer } from '../sending/authorization.ts';
import { policyOf } from '../sending/delivery_policy.ts';
import {
  buildRequest,
  type DeploymentSigners,
  type EventContent,
  type RequestTemplate,
} from '../sending/delivery_request.ts';
import { sentSecrets } from '../sending/echoed_secrets.ts';
import { type ExchangeResult, unsentResult } from '../sending/exchange.ts';
import type { Presenter } from '../sending/presentation.ts';
import type { Sender } from '../sending/sender.ts';
import type { HeaderNames } from '../subscriptions/delivery_headers.ts';
import type { AttemptBudget } from './attempt_budget.ts';
import type { LoadedDelivery } from './due_deliveries.ts';
import type { Lane } from './lane.ts';
import type { LeasedLanes } from './leased_lanes.ts';
import type { WorkerMetrics } from './metrics.ts';
import type { Node } from './node.ts';
import { attemptNumberMax, decideOutcome, type OutcomeDecision, sentNothing } from './outcome_policy.ts';
import type { Retries } from './retries.ts';
import { type Taken, TakenDeliveries, takeFrom } from './taken_deliveries.ts';
import { type Places, type WindowQuotas, Windows } from './windows.ts';

/**
 * With at least this many attempts in flight, each turn of the event loop starts at most this many. The engine reads responses in
 * between. So a subscriber that responds at once needs few attempts in flight, and V8 frees their memory while it is young.
 */
const startsPerTurnMax = 64;
/** Lanes that a turn looks at, with those that may not start. */
const looksPerTurnMax = 1_024;
/**
 * Bodies from this size on are large. Once so many bytes of them have started, everything else waits for the next turn of the event loop:
 * each body is copied and signed, which takes up to a millisecond for 256 KiB.
 */
const largeBytesMin = 16_384;
const largeBytesPerTurnMax = 1_048_576;

/** An attempt in flight. */
interface Attempt extends Taken {
  lane: Lane;
  /** Null if the body could not be converted, or was not needed any more, and while another access token is needed. */
  places: Places | null;
  number: number;
  scheduleSeconds: readonly number[];
  /** As the request was built. */
  template: RequestTemplate;
  /** The access token that was sent. */
  token: string | null;
}

export interface AttemptStarterOptions {
  node: Node;
  lanes: LeasedLanes;
  quotas: WindowQuotas;
  budget: AttemptBudget;
  retries: Retries;
  sender: Sender;
  headerNames: HeaderNames;
  signers: DeploymentSigners;
  presenter: Presenter;
  authorizer: Authorizer;
  retryScheduleSeconds: readonly number[];
  metrics: WorkerMetrics;
  isStopping: () => boolean;
  /** Whether any lane may start an attempt now. */
  mayStart: (now: number) => boolean;
  /** An attempt has ended, so there may be room to read more. */
  onAttemptEnded: () => void;
  /** The subscriber responded with 410. */
  onGone: (lane: Lane) => void;
}

const always = (): boolean => true;

export class AttemptStarter {
  readonly #options: AttemptStarterOptions;
  readonly #windows: Windows;
  readonly #taken: TakenDeliveries;
  /** Lanes that wait for an access token, without places: whose authorization server hangs would keep those of others. */
  readonly #unauthorized = new Set<Lane>();
  #turn: NodeJS.Immediate | undefined;
  /** Bytes of large bodies that this turn of the event loop has started. */
  #largeBytes = 0;

  constructor(options: AttemptStarterOptions) {
    this.#options = options;
    this.#windows = new Windows(options.quotas, (lane) => options.lanes.reschedule(lane));
    const end = (lane: Lane, taken: Taken, error: 'conversion_error' | null) =>
      this.#onResult(unsentResult(performance.now(), error), this.#attemptOf(lane, taken, null));
    this.#taken = new TakenDeliveries({
      ...options,
      onSendable: (lane) => {
        options.lanes.reschedule(lane);
        this.pump();
      },
      onFailed: (lane, taken) => end(lane, taken, 'conversion_error'),
      onStopped: (lane, taken) => end(lane, taken, null),
    });
  }

  get inFlight(): number {
    return this.#windows.inFlight;
  }

  /**
   * Starts every attempt that may start. With few attempts in flight all start at once, otherwise over several turns of the event
   * loop.
   */
  pump(): void {
    if (this.#startSome(startsPerTurnMax - this.inFlight) || this.#turn !== undefined) return;
    this.#turn = setImmediate(() => {
      this.#turn = undefined;
      if (!this.#startSome(startsPerTurnMax)) this.pump();
    });
  }

  tick(now: number): void {
    const { lanes } = this.#options;
    this.#windows.tick(now);
    this.#taken.tick();
    lanes.readable.requeueAll();
    lanes.sleeping.wake(now, (lane) => lanes.reschedule(lane));
  }

  /** @returns whether nothing is left that could start now */
  #startSome(limit: number): boolean {
    const { lanes, mayStart } = this.#options;
    const now = performance.now();
    if (!mayStart(now)) return true;
    let left = limit;
    let looks = looksPerTurnMax;
    while (!this.#windows.isFull) {
      if (lanes.ready.isEmpty) return true;
      if (left <= 0 || looks === 0 || this.#largeBytes >= largeBytesPerTurnMax) return false;
      looks -= 1;
      const lane = lanes.ready.take(always) as Lane;
      if (!lane.mayStart(now)) {
        const wakeAt = lane.wakeAt(now);
        if (wakeAt !== undefined) lanes.sleeping.add(lane, wakeAt);
        continue;
      }
      if (!this.#startNext(lane, now)) {
        if (lane.pausedUntil > now) lanes.sleeping.add(lane, lane.pausedUntil);
        continue;
      }
      left -= 1;
      // Back to the end of the queue.
      if (lane.waitingCount > 0 || lane.sendableCount > 0) lanes.ready.add(lane);
    }
    return true;
  }

  /** Starts the lane's next attempt, or the conversion that it needs. @returns whether there was room for it */
  #startNext(lane: Lane, now: number): boolean {
    const isSendable = lane.sendableCount > 0;
    if (isSendable && !this.#taken.isCurrent(lane)) return false;
    const isLarge = this.#isLarge(lane);
    if (!isSendable && this.#taken.isNext(lane)) {
      const hasRoom = this.#windows.hasRoom(lane, now, isLarge);
      if (hasRoom) void this.#taken.begin(lane);
      return hasRoom;
    }
    if (lane.template.auth?.type === 'oauth2' && this.#awaitsToken(lane, now, isLarge)) return false;
    const places = this.#windows.enter(lane, now, isLarge);
    if (places === null) return false;
    const taken = isSendable ? this.#taken.take(lane) : takeFrom(lane);
    this.#countLarge(taken.waiting.event.body.length);
    this.#prepare(this.#attemptOf(lane, taken, places));
    return true;
  }

  /** Whether the lane waits for room, or for an access token, which is requested when there is room. */
  #awaitsToken(lane: Lane, now: number, isLarge: boolean): boolean {
    const { authorizer, lanes } = this.#options;
    if (this.#unauthorized.has(lane) || !this.#windows.hasRoom(lane, now, isLarge)) return true;
    const requested = authorizer.prepare(lane.subscription.id, lane.tenant.key, lane.template.auth);
    if (requested === undefined) return false;
    this.#unauthorized.add(lane);
    void requested.then(() => {
      this.#unauthorized.delete(lane);
      // It may have been released meanwhile.
      if (lanes.get(lane.id) === lane) lanes.reschedule(lane);
      this.pump();
    });
    return true;
  }

  /** Whether the body of the lane's next delivery is large. */
  #isLarge(lane: Lane): boolean {
    if (lane.subscription.format === 'thin') return false;
    const { event } = lane.sendableCount > 0 ? this.#taken.next(lane) : lane.next;
    return event.body.length >= largeBytesMin;
  }

  #countLarge(bytes: number): void {
    if (bytes < largeBytesMin) return;
    if (this.#largeBytes === 0) {
      setImmediate(() => {
        this.#largeBytes = 0;
      });
    }
    this.#largeBytes += bytes;
  }

  #attemptOf(lane: Lane, taken: Taken, places: Places | null): Attempt {
    const { subscription, template } = lane;
    const number = Math.min((taken.waiting.retry?.attempts ?? 0) + 1, attemptNumberMax);
    const scheduleSeconds = subscription.retrySchedule ?? this.#options.retryScheduleSeconds;
    return { ...taken, lane, places, number, scheduleSeconds, template, token: null };
  }

  /** Sends at once if neither the body nor the authorization must be waited for. */
  #prepare(attempt: Attempt): void {
    const { presenter, authorizer } = this.#options;
    const { subscription, template, tenant } = attempt.lane;
    const event = presenter.present(subscription, attempt.waiting.event);
    if (template.auth === null && !(event instanceof Promise)) {
      this.#send(event, undefined, attempt);
      return;
    }
    // Rejects if the authorizer throws.
    const authorized = (async () => authorizer.authorize(subscription.id, tenant.key, template.auth))();
    void this.#sendPrepared(Promise.all([event, authorized]), attempt);
  }

  #send(event: EventContent, authorization: Authorization | undefined, attempt: Attempt): void {
    const { node, sender, headerNames, signers, metrics } = this.#options;
    const { lane, waiting, number, places, stoppable } = attempt;
    const { subscription, template, keys } = lane;
    const facts = { sequence: waiting.sequence, number, now: node.now() };
    const { refused } = attempt;
    attempt.token = authorization?.token ?? null;
    const request = buildRequest(
      ...([
        subscription,
        template,
        keys,
        headerNames,
        event,
        facts,
        signers,
        authorization,
        lane.tenant.key,
      ] as const),
    );
    const { timeoutMs, bodyBytesMax } = policyOf(subscription.format);
    if (bodyBytesMax !== null && request.body.length > bodyBytesMax) {
      const unsent = unsentResult(performance.now(), 'body_too_large');
      // Like the sender, never before this method returns.
      setImmediate(() => this.#onResult(unsent, attempt));
      return;
    }
    if (number === 1 && refused === null)
      metrics.lag(Math.max(facts.now - waiting.event.createdAt, 0) / 1_000);
    sender.send(request, this.#onResult, attempt, { stoppable, gate: places as Places, timeoutMs });
  }

  /** Sends once everything is there, unless the lane was stopped or changed in the meantime. */
  async #sendPrepared(parts: Promise<[EventContent, Authorization]>, attempt: Attempt): Promise<void> {
    const { lane, revision, stoppable, stopCount } = attempt;
    const startedAt = performance.now();
    const prepared = await parts.catch((error: unknown) => error);
    const isStopped = stoppable.stopCount !== stopCount || lane.revision !== revision;
    if (isStopped || prepared instanceof NoTurnError) {
      this.#onResult(unsentResult(startedAt, null), attempt);
    } else if (prepared instanceof AuthError) {
      this.#onResult(unsentResult(startedAt, 'auth_error', prepared.message), attempt);
    } else if (!Array.isArray(prepared)) {
      // The presenter has reported the error.
      this.#onResult(unsentResult(startedAt, 'conversion_error'), attempt);
    } else {
      this.#send(prepared[0], prepared[1], attempt);
    }
  }

  readonly #onResult = (given: ExchangeResult, attempt: Attempt): void => {
    const { authorizer, node, lanes, budget, metrics, onGone } = this.#options;
    const { lane, places, waiting, number, revision, scheduleSeconds, token, refused } = attempt;
    const { stoppable, stopCount } = attempt;
    const sent = { result: given, secrets: sentSecrets(attempt.template, token) };
    if (given.status === 401 && places !== null && token !== null && refused === null) {
      if (authorizer.refuse(lane.subscription.id, lane.template.auth, token)) {
        this.#windows.leave(places, null, performance.now());
        this.#taken.add(lane, { waiting, revision, stoppable, stopCount, refused: sent });
        return;
      }
    }
    // If the second request was cancelled, the first one was the attempt.
    const { result, secrets } = (given.isCancelled ? refused : null) ?? sent;
    const { tenant } = lane;
    lane.end(waiting);
    lanes.forgetTenant(tenant);
    lanes.readable.requeue(tenant);
    const isAccepted =
      result.error === null && result.status !== null && Math.floor(result.status / 100) === 2;
    const wasSent = !result.isCancelled && !sentNothing(result) && result.error !== 'auth_error';
    if (places !== null) this.#windows.leave(places, wasSent ? isAccepted : null, performance.now());
    if (result.isCancelled) {
      this.#putBack(lane, waiting);
      return;
    }
    const now = node.now();
    const end = { lane, waiting, number, revision, result, secrets, now, scheduleSeconds };
    const decision = decideOutcome(end);
    const { outcome, retryAfterMs, isGone } = decision;
    if (outcome.attempt !== null) budget.apply(storedFor(lane.subscription), outcome.attempt, now);
    metrics.attempt(outcome.attempt?.error ?? null);
    if (isGone) {
      // Takes effect here at once. The database change follows and informs the other nodes.
      lane.isOpen = false;
      lane.dropWaiting();
    }
    lane.retryAfterUntil = Math.max(lane.retryAfterUntil, performance.now() + retryAfterMs);
    this.#apply(lane, decision, waiting.retry?.state === 'pending');
    if (isGone) onGone(lane);
  };

  /** No byte was sent, so this was not an attempt. */
  #putBack(lane: Lane, waiting: LoadedDelivery): void {
    lane.giveBack();
    lane.idleSince = performance.now();
    // If the lane was lost, the node that leases it now reads the delivery itself.
    if (!lane.isLost) this.#options.retries.putBack(lane, waiting);
    this.pump();
  }

  #apply(lane: Lane, { outcome, pauseMs, isNeutral, isRefusal }: OutcomeDecision, wasPending: boolean): void {
    const { lanes, retries, onAttemptEnded } = this.#options;
    const isAccepted = outcome.attempt !== null && outcome.attempt.error === null;
    const now = performance.now();
    if (isRefusal) lane.recordRefusal();
    else lane.recordResult(isAccepted, isNeutral);
    lane.idleSince = now;
    if (pauseMs > 0) lane.pausedUntil = Math.max(lane.pausedUntil, now + pauseMs);
    else if (isAccepted && !isNeutral) lane.pausedUntil = lane.retryAfterUntil;
    if (!outcome.hadRetry) lane.markDone(outcome.sequence);
    const willRetry = outcome.retry?.state === 'pending';
    if (lane.subscription.ordered) lane.retriesPending += (willRetry ? 1 : 0) - (wasPending ? 1 : 0);
    retries.record(lane, outcome);
    lanes.reschedule(lane);
    this.pump();
    onAttemptEnded();
  }
}

/** Whose daily quota of responses an attempt uses. Of apps each has its own, because what one stores takes nothing from others. */
function storedFor({ accountId, clientId }: Lane['subscription']): string {
  return accountId ?? `client:${clientId}`;
}
