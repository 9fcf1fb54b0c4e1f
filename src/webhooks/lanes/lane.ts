/**
 * A lane in the memory of the node that holds it: what was read of its queue, what is under way, and whether more may
 * be started. Knows no database and sends nothing.
 *
 *   sequence:   1 … cursor   | cursor+1 … readThrough        | … head
 *               written down | in memory: waiting, under way, | only in the database
 *                            | or done and not written yet
 */

import {
  createSigningKeys,
  createTemplate,
  type EventContent,
  type RequestTemplate,
  type SigningKeys,
} from '../sending/delivery_request.ts';
import type { Stoppable } from '../sending/exchange.ts';
import { circuitFailures } from '../sending/retry_schedule.ts';
import type { Secrets, Subscription } from '../subscriptions/subscription.ts';
import { AccountHolds } from './account_holds.ts';
import type { LaneState } from './lane_store.ts';
import type { WaitingDelivery } from './waiting_deliveries.ts';
import type { Tenant } from './waiting_memory.ts';

/** Attempts of one lane at once: at most, and until it has shown that it answers. */
const windowMax = 32;
const windowStart = 4;
/** Deliveries of one lane in memory at most, for each that may be under way at once; and attempted past the cursor. */
const waitingPerSlotMax = 256;
const waitingMax = 8_192;
const readAheadMax = 4_096;

export interface Waiting {
  sequence: number;
  day: string;
  /** The event's. */
  position: number;
  event: EventContent;
  retry: WaitingDelivery['retry'];
}

export class Lane {
  readonly id: number;
  /** Whose memory its deliveries use. */
  readonly tenant: Tenant;
  subscription: Subscription;
  #secrets: Secrets;
  #keys: SigningKeys | null = null;
  revision: number;
  template: RequestTemplate;
  isOpen: boolean;
  /** Whether it is closed because the right to some of it is about to end, and how often it has been for that. */
  isOnHold = false;
  stopCount = 0;
  readonly #accountHolds = new AccountHolds();
  /** Whether others may hold it. */
  isLost = false;
  head: number;
  /** Up to here everything was attempted and the attempts are written. */
  cursor: number;
  /** What the lane's own row says; the cursor in it may lag behind. Null for what nobody knows after a failure. */
  stored: { cursor: number; failures: number; isPaused: boolean } | null;
  /** Attempted in an unbroken row, written down or about to be. */
  attemptedThrough: number;
  readThrough: number;
  failures: number;
  inFlight = 0;
  /** Milliseconds of the process's clock: nothing is started before. */
  pausedUntil = 0;
  /** Likewise, for less than a second: a rate lets the next one start. The database is not told. */
  throttledUntil = 0;
  /** The same, as the subscriber asked for it: a success does not end that. */
  retryAfterUntil = 0;
  /** Likewise: when the first repetition is due; infinite for none. */
  retryAt = Number.POSITIVE_INFINITY;
  retriesPending: number;
  /** Outcomes that change `retries` and are not written yet; and how many there have been in all. */
  unwrittenOutcomes = 0;
  outcomeCount = 0;
  /** What is being read from the database; a second read at once would bring the same again. */
  isReading = false;
  isReadingRetries = false;
  /** Since when there has been nothing to do. */
  idleSince = 0;
  /** Counts how often the lane was looked at again: what was read before that is not used. */
  generation = 0;
  readonly #fresh: Waiting[] = [];
  #freshFrom = 0;
  readonly #due: Waiting[] = [];
  /** Retries in memory, under way, or ended and not written. */
  readonly #retrying = new Set<number>();
  /** Attempted, past `attemptedThrough`. */
  readonly #done = new Set<number>();
  /** Whether its last attempt before this node took it was accepted, as far as its row tells. */
  readonly wasAccepted: boolean;
  /** Whether it has answered well since this node took it, last of all. */
  isProven = false;
  #window = windowStart;
  #tokens = 1;
  #tokensAt = 0;

  /** When it was taken, and how many attempts were started since. */
  readonly takenAt: number;
  started = 0;

  constructor(state: LaneState, now: number, tenant: Tenant) {
    this.id = state.subscription.lane;
    this.tenant = tenant;
    this.takenAt = now;
    this.wasAccepted = state.cursor > 0 && state.failures === 0;
    this.subscription = state.subscription;
    this.#secrets = state.secrets;
    this.revision = state.revision;
    this.template = createTemplate(state.subscription, state.headerLines, state.epochs);
    this.isOpen = state.isOpen;
    this.head = state.head;
    this.cursor = state.cursor;
    this.attemptedThrough = state.cursor;
    this.readThrough = state.cursor;
    this.failures = state.failures;
    this.retriesPending = state.retriesPending;
    this.pausedUntil = state.pauseMs > 0 ? now + state.pauseMs : 0;
    if (state.retryMs !== null) this.retryAt = now + state.retryMs;
    this.stored = { cursor: state.cursor, failures: state.failures, isPaused: state.pauseMs > 0 };
    for (const sequence of state.attempted) this.markDone(sequence);
    this.cursor = this.attemptedThrough;
    this.idleSince = now;
  }

  /** Made when the first is signed. */
  get keys(): SigningKeys {
    this.#keys ??= createSigningKeys(this.#secrets, this.subscription.signature);
    return this.#keys;
  }

  /** Takes what the database says now; what was waiting in memory is forgotten and will be read again. */
  reload(state: LaneState, now: number): void {
    this.subscription = state.subscription;
    this.#secrets = state.secrets;
    this.#keys = null;
    this.revision = state.revision;
    this.template = createTemplate(state.subscription, state.headerLines, state.epochs);
    this.isOpen = state.isOpen;
    this.head = Math.max(this.head, state.head);
    // Whichever is earlier: a failure may not be written yet. To look too early costs a look.
    if (state.retryMs !== null) this.retryAt = Math.min(this.retryAt, now + state.retryMs);
    this.retriesPending = state.retriesPending;
    this.dropWaiting();
  }

  /** Nothing is started until it has been loaded again; what was started and has not attemptedThrough its connection is not sent. */
  hold(): void {
    this.stopCount += 1;
    this.isOnHold = true;
    this.isOpen = false;
    this.dropWaiting();
  }

  /**
   * The same for the deliveries of one account, in the lane of an app's own subscription.
   * @returns those that waited in memory; they are not there any more
   */
  holdAccount(account: string): Waiting[] {
    this.stopCount += this.#accountHolds.hold(account);
    const isOfAccount = ({ event }: Waiting) => event.accountId === account;
    const fresh = this.#fresh.slice(this.#freshFrom);
    const held = [...fresh, ...this.#due].filter(isOfAccount);
    if (held.length === 0) return held;
    this.#fresh.splice(0, this.#fresh.length, ...fresh.filter((each) => !isOfAccount(each)));
    this.#freshFrom = 0;
    const due = this.#due.splice(0);
    this.#due.push(...due.filter((each) => !isOfAccount(each)));
    for (const { position } of held) this.tenant.drop(position);
    return held;
  }

  /** The account's deliveries may go on; what was read of them before that is not used. */
  releaseAccount(account: string): void {
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

  /** What stops an attempt before its first byte: the lane, or for an app's own subscription also the event's account. */
  stoppableFor({ accountId }: EventContent): Stoppable {
    if (this.subscription.accountId !== null || accountId === null) return this;
    const lane = this;
    const accountHolds = this.#accountHolds;
    return {
      get stopCount() {
        return lane.stopCount + accountHolds.stopCount(accountId);
      },
    };
  }

  /** Others may hold it: likewise, and for good. */
  lose(): void {
    this.stopCount += 1;
    this.isLost = true;
    this.isOpen = false;
    this.dropWaiting();
  }

  /** Drops what has not been started. */
  dropWaiting(): void {
    this.generation += 1;
    for (const { position } of this.#fresh.slice(this.#freshFrom)) this.tenant.drop(position);
    for (const { position } of this.#due) this.tenant.drop(position);
    const first = this.#fresh[this.#freshFrom];
    if (first !== undefined) this.readThrough = first.sequence - 1;
    this.#fresh.length = 0;
    this.#freshFrom = 0;
    for (const { sequence } of this.#due) this.#retrying.delete(sequence);
    if (this.#due.length > 0) this.retryAt = 0;
    this.#due.length = 0;
  }

  get freshCount(): number {
    return this.#fresh.length - this.#freshFrom;
  }

  /** Retries in memory that are to be started. */
  get dueCount(): number {
    return this.#due.length;
  }

  get waitingCount(): number {
    return this.freshCount + this.#due.length;
  }

  /** How many may wait in memory: some rounds of what it is sent at once, so that those who never answer hold little. */
  get waitingLimit(): number {
    return Math.min(waitingMax, this.#window * (this.#window < windowMax ? 16 : waitingPerSlotMax));
  }

  /** Whether there are deliveries in the database that should be read now. */
  get wantsMore(): boolean {
    return (
      this.isOpen &&
      !this.isReading &&
      this.readThrough < this.head &&
      this.freshCount < this.waitingLimit / 4 &&
      this.readThrough - this.freshCount - this.cursor < readAheadMax
    );
  }

  /** Whether nothing is waiting, under way or unwrittenOutcomes. */
  get isIdle(): boolean {
    return (
      this.inFlight === 0 &&
      this.waitingCount === 0 &&
      this.cursor === this.attemptedThrough &&
      !this.isReading
    );
  }

  /** Adds a delivery that was never attempted; they come in the order of the sequence. */
  addFresh(waiting: Waiting): void {
    this.readThrough = waiting.sequence;
    waiting.event = this.tenant.add(waiting.position, waiting.event);
    this.#fresh.push(waiting);
  }

  /** Adds one to be repeated, unless it is in memory already. */
  addRetry(waiting: Waiting): void {
    if (this.#retrying.has(waiting.sequence)) return;
    this.#retrying.add(waiting.sequence);
    waiting.event = this.tenant.add(waiting.position, waiting.event);
    this.#due.push(waiting);
  }

  /** One that will not be repeated: until that is written it is not to be looked at again. */
  beginCancel(sequence: number): void {
    this.#retrying.add(sequence);
  }

  isRetrying(sequence: number): boolean {
    return this.#retrying.has(sequence);
  }

  isDone(sequence: number): boolean {
    return sequence <= this.attemptedThrough || this.#done.has(sequence);
  }

  /** Whether an attempt may be started. */
  mayStart(now: number): boolean {
    if (!this.isOpen || now < this.pausedUntil || now < this.throttledUntil) return false;
    if (this.inFlight >= this.#limit()) return false;
    if (this.#due.length === 0 && !this.#hasFreshToStart()) return false;
    return this.#hasToken(now);
  }

  /** When the rate or the pause lets the next one start; for those that wait for nothing else. */
  wakeAt(now: number): number | undefined {
    if (!this.isOpen || (this.#due.length === 0 && !this.#hasFreshToStart())) return undefined;
    if (this.inFlight >= this.#limit()) return undefined;
    if (now < this.pausedUntil || now < this.throttledUntil)
      return Math.max(this.pausedUntil, this.throttledUntil);
    const { rateLimit } = this.subscription;
    return rateLimit === null ? undefined : this.#tokensAt + (1_000 * (1 - this.#tokens)) / rateLimit;
  }

  /** Takes the next one; call only where `mayStart`. */
  take(): Waiting {
    if (this.subscription.rateLimit !== null) this.#tokens -= 1;
    this.inFlight += 1;
    this.started += 1;
    this.tenant.begin();
    const due = this.#due.shift();
    if (due !== undefined) return due;
    const waiting = this.#fresh[this.#freshFrom] as Waiting;
    this.#freshFrom += 1;
    if (this.#freshFrom > 256) {
      this.#fresh.splice(0, this.#freshFrom);
      this.#freshFrom = 0;
    }
    return waiting;
  }

  /** An attempt has ended, whatever came of it. */
  end({ position }: Waiting): void {
    this.inFlight -= 1;
    this.tenant.end(position);
  }

  /** What came of an attempt: the window grows with what works and shrinks with what does not. */
  recordResult(isAccepted: boolean, isPing: boolean): void {
    // A ping says nothing of how the deliveries fare.
    if (isPing) return;
    this.isProven = isAccepted;
    if (isAccepted) {
      this.failures = 0;
      if (this.#window < windowMax) this.#window += 1;
    } else {
      this.failures += 1;
      this.#window = Math.max(1, this.#window >> 1);
    }
  }

  /** A delivery's first attempt has ended, or it is not to be attempted. */
  markDone(sequence: number): void {
    this.#done.add(sequence);
    while (this.#done.delete(this.attemptedThrough + 1)) this.attemptedThrough += 1;
    if (this.readThrough < this.attemptedThrough) this.readThrough = this.attemptedThrough;
  }

  /** There is nothing in the database between what was read and the first that was found: it left with its day. */
  skipGone(after: number, first: number): void {
    if (this.readThrough !== after || first <= after + 1) return;
    const isWritten = this.cursor === this.attemptedThrough;
    for (let sequence = after + 1; sequence < first; sequence += 1) {
      if (!this.isDone(sequence)) this.markDone(sequence);
    }
    this.readThrough = Math.max(this.readThrough, first - 1);
    // Of these nothing is ever written.
    if (isWritten) this.cursor = this.attemptedThrough;
  }

  /** What became of a repetition is written, and nothing that was read before will be used. */
  endRetry(sequence: number): void {
    this.#retrying.delete(sequence);
  }

  #limit(): number {
    // One probe at a time while the circuit is open; one at a time where the order matters.
    return this.subscription.ordered || this.failures >= circuitFailures ? 1 : this.#window;
  }

  #hasFreshToStart(): boolean {
    return this.freshCount > 0 && !(this.subscription.ordered && this.retriesPending > 0);
  }

  #hasToken(now: number): boolean {
    const { rateLimit } = this.subscription;
    if (rateLimit === null) return true;
    // No burst: what was not used in one moment is not made up for in the next (but for a timer's lateness).
    const burst = Math.max(1, rateLimit * 0.05);
    this.#tokens = Math.min(burst, this.#tokens + ((now - this.#tokensAt) / 1_000) * rateLimit);
    this.#tokensAt = now;
    return this.#tokens >= 1;
  }
}
