/**
 * A lane in the memory of the node that leases it: the deliveries it has read, its attempts in flight, and whether more may
 * start. It does not access the database and sends nothing.
 *
 *   sequence:   1 … cursor   | cursor+1 … readThrough        | … head
 *               written      | in memory: waiting, in flight, | only in the database
 *                            | or finished and not written    |
 */

import { steadyRate, type TokenBucket } from '../../shared/token_bucket.ts';
import type { EventContent, RequestTemplate } from '../sending/delivery_request.ts';
import type { Stoppable } from '../sending/exchange.ts';
import { circuitFailures } from '../sending/retry_schedule.ts';
import { createSigningKeys, type SigningKeys } from '../sending/secret_keys.ts';
import type { Subscription } from '../subscriptions/subscription.ts';
import type { Secrets } from '../subscriptions/subscription_secrets.ts';
import { AccountHolds } from './account_holds.ts';
import type { Tenant, TenantApp } from './delivery_memory.ts';
import type { LoadedDelivery } from './due_deliveries.ts';
import { LaneGate } from './lane_gate.ts';
import type { LaneState } from './lane_store.ts';
import { WaitingDeliveries } from './waiting_deliveries.ts';

/** Maximum attempts in flight of one lane, and the window of a lane without a success yet. */
const windowMax = 32;
const windowStart = 4;
/**
 * Maximum deliveries in memory per slot of the window; maximum deliveries in memory; maximum deliveries attempted
 * past the cursor.
 */
const waitingPerSlotMax = 256;
const waitingMax = 8_192;
const readAheadMax = 4_096;

export class Lane extends LaneGate {
  readonly id: number;
  /** Whose memory the lane's deliveries count for. */
  readonly tenant: Tenant;
  readonly app: TenantApp;
  subscription: Subscription;
  #secrets: Secrets;
  #keys: SigningKeys | null = null;
  revision: number;
  template: RequestTemplate;
  /** Whether a delivery hold covers the whole lane. */
  isOnHold = false;
  readonly #accountHolds = new AccountHolds();
  /** Whether another node may have the lease. */
  isLost = false;
  head: number;
  /** All deliveries up to here were attempted, and their outcomes are written. */
  cursor: number;
  /** The content of the lane's row, whose cursor may lag. Null if a failed statement made it unknown. */
  stored: { cursor: number; failures: number; isPaused: boolean } | null;
  /** All deliveries up to here were attempted. Their outcomes are written or about to be. */
  attemptedThrough: number;
  readThrough: number;
  failures: number;
  /** Those that its circuit does not count (`recordRefusal`). What failures before the lease were is not known. */
  #refusals: number;
  inFlight = 0;
  /** Those of them that wait for places, because their bodies were converted or their access token was refused (taken_deliveries.ts). */
  sendableCount = 0;
  /** Milliseconds on the monotonic clock: no attempt starts before. */
  pausedUntil = 0;
  /** The same, from the subscriber's `Retry-After`. A success does not end it. */
  retryAfterUntil = 0;
  /** When the first retry is due; infinite if there is none. */
  retryAt = Number.POSITIVE_INFINITY;
  retriesPending: number;
  /** Outcomes that change `retries` and are not written yet; and the number of all such outcomes so far. */
  unwrittenOutcomes = 0;
  outcomeCount = 0;
  /** Whether a read is running. A concurrent second read would return the same deliveries. */
  isReading = false;
  isReadingRetries = false;
  /** Since when the lane has had nothing to do. */
  idleSince = 0;
  /** Grows whenever the lane drops what it has read. Results of reads from before are not used. */
  generation = 0;
  readonly #waiting: WaitingDeliveries;
  /** Retries that are in memory, in flight, or finished and not written. */
  readonly #retrying = new Set<number>();
  /** Deliveries past `attemptedThrough` whose first attempt has ended. */
  readonly #done = new Set<number>();
  /** Whether the lane's last attempt was accepted. Before its first attempt on this node: as far as the lane's row shows. */
  isProven: boolean;
  #window = windowStart;
  #rate: TokenBucket | null;

  /** When the lane was leased, and the attempts started since. */
  readonly leasedAt: number;
  started = 0;

  constructor(state: LaneState, now: number, tenant: Tenant) {
    super(state.isOpen);
    this.id = state.subscription.lane;
    this.tenant = tenant;
    this.app = tenant.appOf(state.subscription.clientId);
    this.#waiting = new WaitingDeliveries(this.app, () => this.subscription.ordered);
    this.leasedAt = now;
    this.isProven = state.cursor > 0 && state.failures === 0;
    this.subscription = state.subscription;
    this.#rate = steadyRate(state.subscription.rateLimit, now);
    this.#secrets = state.secrets;
    this.revision = state.revision;
    this.template = state.template;
    this.closeIn(state.closesInMs);
    this.head = state.head;
    this.cursor = state.cursor;
    this.attemptedThrough = state.cursor;
    this.readThrough = state.cursor;
    this.failures = state.failures;
    const counted = state.wasPaused ? circuitFailures : 0;
    this.#refusals = this.mayRefuse ? Math.max(0, state.failures - counted) : 0;
    this.retriesPending = state.retriesPending;
    this.pausedUntil = state.pauseMs > 0 ? now + state.pauseMs : 0;
    if (state.retryMs !== null) this.retryAt = now + state.retryMs;
    this.stored = { cursor: state.cursor, failures: state.failures, isPaused: state.wasPaused };
    for (const sequence of state.attempted) this.markDone(sequence);
    this.cursor = this.attemptedThrough;
    this.idleSince = now;
  }

  /** Computed for the first signature. */
  get keys(): SigningKeys {
    this.#keys ??= createSigningKeys(this.#secrets, this.subscription.signature);
    return this.#keys;
  }

  /** Applies a newer state from the database. Waiting deliveries are dropped and read again. */
  reload(state: LaneState, now: number): void {
    if (state.subscription.rateLimit !== this.subscription.rateLimit)
      this.#rate = steadyRate(state.subscription.rateLimit, now);
    this.subscription = state.subscription;
    this.#secrets = state.secrets;
    this.#keys = null;
    this.revision = state.revision;
    this.template = state.template;
    this.isOpen = state.isOpen;
    this.closeIn(state.closesInMs);
    this.head = Math.max(this.head, state.head);
    // The earlier of the two. A failure may not be written yet, and checking too early does no harm.
    if (state.retryMs !== null) this.retryAt = Math.min(this.retryAt, now + state.retryMs);
    this.retriesPending = state.retriesPending;
    this.dropWaiting();
  }

  /** Stops the lane until it is loaded again. Attempts whose first byte was not sent are cancelled. */
  hold(): void {
    this.stop();
    this.isOnHold = true;
    this.isOpen = false;
    this.dropWaiting();
  }

  /**
   * Stops the deliveries of one account, in the lane of an app's own subscription. An ordered lane keeps them, and waits at the first.
   * @returns the account's waiting deliveries, which the lane has dropped
   */
  holdAccount(account: string): LoadedDelivery[] {
    this.stop(this.#accountHolds.hold(account));
    return this.subscription.ordered ? [] : this.#waiting.dropAccount(account);
  }

  /** Ends the account's hold. Results of a read that is running are not used for the account. */
  releaseAccount(account: string): void {
    // The right to what an ordered lane has kept may have ended.
    if (this.subscription.ordered) this.dropWaiting();
    this.#accountHolds.release(account, this.isReading || this.isReadingRetries);
  }

  /** Accounts whose deliveries are on hold in this lane. */
  get heldAccounts(): ReadonlySet<string> {
    return this.#accountHolds.accounts;
  }

  /** Whether a delivery that was read must be put back because its account is on hold. */
  isEventHeld(event: EventContent): boolean {
    return this.#accountHolds.covers(event);
  }

  beginReading(): void {
    this.#forgetReleases();
    this.isReading = true;
  }

  beginReadingRetries(): void {
    this.#forgetReleases();
    this.isReadingRetries = true;
  }

  #forgetReleases(): void {
    if (!this.isReading && !this.isReadingRetries) this.#accountHolds.forgetReleases();
  }

  /** What can stop an attempt before its first byte: the lane, and for an app's own subscription also the event's account. */
  stoppableFor({ accountId }: EventContent): Stoppable {
    if (this.subscription.accountId !== null || accountId === null) return this;
    return this.#accountHolds.stoppable(this, accountId);
  }

  /** Another node may have the lease. Stops the lane for good. */
  lose(): void {
    this.stop();
    this.isLost = true;
    this.isOpen = false;
    this.dropWaiting();
  }

  /** Drops deliveries that have not started. */
  dropWaiting(): void {
    this.generation += 1;
    const { first, due } = this.#waiting.drop();
    if (first !== undefined) this.readThrough = first.sequence - 1;
    for (const { sequence } of due) this.#retrying.delete(sequence);
    if (due.length > 0) this.retryAt = 0;
  }

  get freshCount(): number {
    return this.#waiting.freshCount;
  }

  /** Retries in memory that wait to start, are in flight, or whose outcome is not written. */
  get retryingCount(): number {
    return this.#retrying.size;
  }

  get waitingCount(): number {
    return this.#waiting.count;
  }

  /** Maximum waiting deliveries: some rounds of the window, so that a subscriber that never responds uses little memory. */
  get waitingLimit(): number {
    return Math.min(waitingMax, this.#window * (this.#window < windowMax ? 16 : waitingPerSlotMax));
  }

  /** Whether nothing may start before a retry that is not in memory: the lane is ordered. */
  get waitsForRetry(): boolean {
    return this.subscription.ordered && this.#waiting.dueCount === 0 && this.retriesPending > 0;
  }

  /** Whether deliveries should be read from the database now. */
  get wantsMore(): boolean {
    return (
      this.isOpen &&
      !this.isReading &&
      !this.waitsForRetry &&
      this.readThrough < this.head &&
      this.freshCount < this.waitingLimit / 4 &&
      this.readThrough - this.freshCount - this.cursor < readAheadMax
    );
  }

  /** Whether nothing is waiting, in flight or unwritten. */
  get isIdle(): boolean {
    return (
      this.inFlight === 0 &&
      this.waitingCount === 0 &&
      this.cursor === this.attemptedThrough &&
      !this.isReading
    );
  }

  /** Adds a delivery that was never attempted. Calls are in order of the sequence. */
  addFresh(waiting: LoadedDelivery): void {
    this.readThrough = waiting.sequence;
    this.#waiting.addFresh(waiting);
  }

  /** Adds a retry, unless it is in memory already. */
  addRetry(waiting: LoadedDelivery): void {
    if (this.#retrying.has(waiting.sequence)) return;
    this.#retrying.add(waiting.sequence);
    this.#waiting.addDue(waiting);
  }

  /** Marks a retry that will be cancelled, so that it is not read again before that is written. */
  beginCancel(sequence: number): void {
    this.#retrying.add(sequence);
  }

  isRetrying(sequence: number): boolean {
    return this.#retrying.has(sequence);
  }

  isDone(sequence: number): boolean {
    return sequence <= this.attemptedThrough || this.#done.has(sequence);
  }

  /** Whether an attempt may start now. */
  mayStart(now: number): boolean {
    if (!this.isOpen || now < this.pausedUntil) return false;
    if (this.inFlight - this.sendableCount >= this.#limit()) return false;
    if (this.sendableCount > 0) return true;
    if (this.#hasNoneToStart()) return false;
    return this.#rate === null || this.#rate.nextAt(now) === null;
  }

  /** When a rate limit or pause lets the next attempt start; undefined if the lane waits for something else. */
  wakeAt(now: number): number | undefined {
    const isEmpty = this.sendableCount === 0 && this.#hasNoneToStart();
    if (!this.isOpen || isEmpty || this.inFlight - this.sendableCount >= this.#limit()) return undefined;
    if (now < this.pausedUntil) return this.pausedUntil;
    return this.#rate === null ? undefined : (this.#rate.nextAt(now) ?? now);
  }

  /** The delivery that `take` would take. */
  get next(): LoadedDelivery {
    return this.#waiting.next as LoadedDelivery;
  }

  /** Takes the next delivery. Call it only if `mayStart`, and no sendable delivery waits. */
  take(): LoadedDelivery {
    this.#rate?.take();
    this.inFlight += 1;
    this.started += 1;
    this.app.begin();
    return this.#waiting.shift();
  }

  /** An attempt has ended, whatever its result. */
  end({ position }: LoadedDelivery): void {
    this.inFlight -= 1;
    this.app.end(position);
  }

  /** A delivery that was taken was not sent. */
  giveBack(): void {
    this.#rate?.giveBack();
  }

  /** Applies the result of an attempt: the window grows with successes and shrinks with failures. */
  recordResult(isAccepted: boolean, isNeutral: boolean): void {
    // It says nothing about the other deliveries.
    if (isNeutral) return;
    this.isProven = isAccepted;
    if (isAccepted) {
      this.failures = 0;
      this.#refusals = 0;
      if (this.#window < windowMax) this.#window += 1;
    } else {
      this.failures += 1;
      this.#window = Math.max(1, this.#window >> 1);
    }
  }

  /** Whether the lane carries events of many accounts, and none waits for another. */
  get mayRefuse(): boolean {
    return this.subscription.accountId === null && !this.subscription.ordered;
  }

  /** The response may be due to what the event contains. Events of one account must not open the circuit for those of others. */
  recordRefusal(): void {
    this.failures += 1;
    this.#refusals += 1;
  }

  /** Failures in a row that count for the circuit. */
  get circuitCount(): number {
    return this.failures - this.#refusals;
  }

  /** The delivery's first attempt has ended, or it will not be attempted. */
  markDone(sequence: number): void {
    this.#done.add(sequence);
    while (this.#done.delete(this.attemptedThrough + 1)) this.attemptedThrough += 1;
    if (this.readThrough < this.attemptedThrough) this.readThrough = this.attemptedThrough;
  }

  /** Skips sequences that no longer exist because their day was dropped by retention. */
  skipGone(after: number, first: number): void {
    if (this.readThrough !== after || first <= after + 1) return;
    const isWritten = this.cursor === this.attemptedThrough;
    for (let sequence = after + 1; sequence < first; sequence += 1) {
      if (!this.isDone(sequence)) this.markDone(sequence);
    }
    this.readThrough = Math.max(this.readThrough, first - 1);
    // No outcome will be written for these.
    if (isWritten) this.cursor = this.attemptedThrough;
  }

  /** A retry's outcome is written, and no earlier read will be used. */
  endRetry(sequence: number): void {
    this.#retrying.delete(sequence);
  }

  #limit(): number {
    // One probe at a time while the circuit is open; one attempt at a time if the lane is ordered.
    return this.subscription.ordered || this.circuitCount >= circuitFailures ? 1 : this.#window;
  }

  #hasNoneToStart(): boolean {
    if (this.waitingCount === 0) return true;
    if (!this.subscription.ordered) return false;
    if (this.waitsForRetry) return true;
    return this.#accountHolds.holds(this.next.event);
  }
}
