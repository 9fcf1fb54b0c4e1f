/**
 * What the leader does in a turn, on its connection: it reads which accounts have new events, runs a pass over them, and makes the
 * lanes due that have new deliveries. What could hold a pass up is handled beside it, a little in each turn:
 *
 *   an event for very many lanes   → in slices (slices.ts)
 *   a lane that a session locked   → its deliveries are set aside (deferred_deliveries.ts)
 *   an event that cannot be done   → its account apart (suspects.ts), the event parked (parked_events.ts)
 */

import { type RawBuilder, sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { LeaseLostError } from '../../database/lease.ts';
import { DeferredLanes, deferredPauseMs } from './deferred_deliveries.ts';
import {
  type FanOutOptions,
  type FanOutPass,
  fanOut,
  type KindArrays,
  type LaneAddition,
} from './fan_out.ts';
import { HeavyAccounts } from './heavy_accounts.ts';
import { type GrownLane, markDue } from './mark_due.ts';
import { type PassRange, rangeOf, sliceDeliveriesMin, type Visit } from './outbox_selection.ts';
import { findNextEvent, type NextEvent, parkEvent } from './parked_events.ts';
import { isLocked, isOfContent, isTimeout, PassSize } from './pass_size.ts';
import { findSlice } from './slices.ts';
import { Suspects } from './suspects.ts';
import { Turns } from './turns.ts';

/** Milliseconds after which the database cancels a pass: usually, and after a failure. */
const passTimeoutMs = { usual: 4_000, cut: 1_000 };
/** Milliseconds that a pass waits for a lock. */
const lockTimeoutMs = 100;
/** Milliseconds during which passes skip locked lanes after one was locked. */
const skipLockedMs = 10_000;
/** Accounts whose oldest events are read for the age of the backlog. */
const agedMax = 1_000;

export interface LeaderOptions {
  kinds: KindArrays;
  /** The node that leases lanes which no node leases yet; null if this node has no room for more. */
  assignTo: () => string | null;
  /** Whether this node has enough to send for a while. */
  isBehind: () => boolean;
  /** Whether this node certainly leases the lane, so that the database need not be asked. */
  owns: (lane: number) => boolean;
  /** A pass is about to read who may get the events. */
  onBegin: () => void;
  /**
   * Receives the additions of a pass. Those to lanes that this node leases arrive at once, the others when their lanes are
   * marked, unless another pass has begun by then.
   * @param events positions of processed events of which no additions are still to come
   */
  onPass: (additions: LaneAddition[], events: number[]) => void;
  /** Lanes of this node have deliveries that are read from the database, with the rights of that moment. */
  onGrown: (lanes: GrownLane[]) => void;
  onError: (error: Error) => void;
  /** Selects a row while this node is the leader (database/lease.ts). */
  held: () => RawBuilder<unknown>;
}

/** What a turn has done. */
export interface Turn {
  /** Outbox rows that events were taken from. */
  rows: number;
  /** Milliseconds until the next turn without a wake-up; 0 if there is more to do. */
  restMs: number;
}

/** Lanes that were added to and are not marked due yet. */
interface Unmarked {
  lanes: GrownLane[];
  onMarked: () => void;
}

export class Leader {
  readonly #options: LeaderOptions;
  #turns = new Turns(new Date().toISOString().slice(0, 10));
  readonly #size = new PassSize();
  readonly #heavy = new HeavyAccounts();
  readonly #suspects = new Suspects();
  #unmarked: Unmarked[] = [];
  #timeoutMs = 0;
  #skipsLockedUntil = Number.NEGATIVE_INFINITY;
  readonly #deferred = new DeferredLanes();
  /** Rows taken in the current turn. */
  #rows = 0;
  /** Passes that have begun. */
  #begun = 0;

  constructor(options: LeaderOptions) {
    this.#options = options;
  }

  /** Accounts with waiting events, for the age of the backlog. */
  get waiting(): Visit[] {
    return this.#turns.first(agedMax);
  }

  /** Begins to lead. */
  async begin(connection: Database): Promise<void> {
    await sql.raw(`set lock_timeout = ${lockTimeoutMs}`).execute(connection);
    // The plan does not depend on the parameters, and planning takes longer than most passes.
    await sql`set plan_cache_mode = force_generic_plan`.execute(connection);
    this.#timeoutMs = 0;
    await this.#setTimeout(connection, passTimeoutMs.usual);
    await this.#turns.restart(connection);
    await this.#deferred.begin(connection);
  }

  /** Undoes what `begin` set. */
  async end(connection: Database): Promise<void> {
    for (const setting of ['lock_timeout', 'plan_cache_mode', 'statement_timeout']) {
      await sql
        .raw(`reset ${setting}`)
        .execute(connection)
        .catch(() => {});
    }
  }

  /** @throws LeaseLostError, or the error of a database that does not work */
  async turn(connection: Database): Promise<Turn> {
    this.#rows = 0;
    // A light load needs one statement: the pass finds the new rows itself.
    const isSimple = this.#turns.isEmpty && this.#size.isFull && this.#suspects.size === 0;
    if (!isSimple) await this.#turns.update(connection);
    let restMs = await this.#pass(connection, isSimple);
    restMs = Math.min(restMs, await this.#passSlice(connection), await this.#trySuspect(connection));
    restMs = Math.min(restMs, await this.#addDeferred(connection));
    await this.#markDue(connection);
    if (this.#unmarked.length > 0) restMs = Math.min(restMs, deferredPauseMs);
    return { rows: this.#rows, restMs };
  }

  readonly #isApart = (account: string) => this.#suspects.has(account) || this.#heavy.isSliced(account);

  /** @returns milliseconds until the next pass */
  async #pass(connection: Database, isSimple: boolean): Promise<number> {
    const { limits, isFull } = this.#size;
    const now = performance.now();
    const visits = (account: string) => this.#turns.has(account);
    const heavy = isFull
      ? this.#heavy.turns(limits, visits, now)
      : { resting: [], entitled: [], heavyShare: limits.deliveries, skipsFrom: limits.deliveries };
    const range = isSimple
      ? this.#turns.rangeOfNew(limits, heavy)
      : this.#turns.range({ limits, heavy, isApart: this.#isApart });
    if (range === undefined) return this.#turns.hasOthers(this.#isApart) ? 0 : Number.POSITIVE_INFINITY;
    await this.#setTimeout(connection, isFull ? passTimeoutMs.usual : passTimeoutMs.cut);
    const pass = await this.#attempt(connection, range);
    if (pass === undefined) return 0;
    const endedAt = performance.now();
    if (pass.found !== null) this.#turns.learn(pass.found.snapshot, pass.found.accounts);
    this.#heavy.learn(pass, endedAt, endedAt - now, this.#options.isBehind());
    this.#turns.advance(pass);
    if (pass.rows > 0) this.#suspects.clearRefused();
    if (!this.#turns.hasOthers(this.#isApart)) {
      this.#size.reset();
      return Number.POSITIVE_INFINITY;
    }
    this.#size.grow();
    const isResting = pass.rows === 0 && pass.skipped.length > 0;
    return isResting ? Math.max(1, this.#heavy.turnAt(endedAt, visits) - endedAt) : 0;
  }

  /**
   * Runs a pass of several accounts. If the database refuses it, the next one is smaller, until the account is known.
   * @returns undefined if the pass failed
   */
  async #attempt(connection: Database, range: PassRange): Promise<FanOutPass | undefined> {
    try {
      return await this.#run(connection, range);
    } catch (error) {
      if (!(await this.#isOfContent(connection, error))) throw error;
      if (this.#isFirstLock(error)) return undefined;
      this.#options.onError(new Error('a fan-out pass failed', { cause: error }));
      const [visit, ...others] = range.visits ?? [];
      const isKnown = visit !== undefined && others.length === 0;
      if (isKnown && this.#suspects.add(visit.account, performance.now())) {
        // The others continue.
        this.#size.reset();
      } else if (isKnown) this.#turns.postpone(visit.account);
      else this.#size.cut();
      // A pass that found its accounts by itself has not named them.
      if (range.visits === null) await this.#turns.update(connection);
      return undefined;
    }
  }

  /** Whether a lane was locked, and passes did not skip locked lanes yet. They do from now on. */
  #isFirstLock(error: unknown): boolean {
    if (!isLocked(error) || this.#skipsLocked) return false;
    this.#skipsLockedUntil = performance.now() + skipLockedMs;
    return true;
  }

  get #skipsLocked(): boolean {
    return this.#deferred.isAny || performance.now() < this.#skipsLockedUntil;
  }

  async #run(
    connection: Database,
    range: PassRange,
    options: Pick<FanOutOptions, 'slice'> = {},
  ): Promise<FanOutPass> {
    const { kinds, onBegin, held } = this.#options;
    const skipsLocked = this.#skipsLocked;
    this.#begun += 1;
    onBegin();
    const pass = await fanOut(connection, kinds, range, { ...options, held: held(), skipsLocked });
    this.#deferred.isAny ||= pass.deferred > 0;
    this.#rows += pass.rows;
    this.#handOver(pass);
    return pass;
  }

  /**
   * Fans out a slice of an event for very many lanes.
   * @returns milliseconds until the next slice
   */
  async #passSlice(connection: Database): Promise<number> {
    const beganAt = performance.now();
    const isWaiting = (account: string) => this.#turns.has(account) && !this.#suspects.has(account);
    const account = this.#heavy.nextSliced(beganAt, isWaiting);
    if (account === undefined) return Math.max(0, this.#heavy.slicedAt(isWaiting) - beganAt);
    const visit = this.#turns.place(account) as Visit;
    const { share } = this.#heavy;
    await this.#setTimeout(connection, passTimeoutMs.cut);
    try {
      const slice = await findSlice(connection, visit, this.#turns.snapshot, share);
      if (slice !== undefined) {
        const { day } = slice;
        const range = {
          ...this.#alone(visit, day),
          limits: { accounts: 1, events: 1, deliveries: sliceDeliveriesMin },
        };
        const pass = await this.#run(connection, range, { slice });
        if (slice.upTo === null) this.#turns.advance(pass);
        // All lanes fit in one slice.
        if (slice.upTo === null && slice.after === 0) this.#heavy.forget(account);
      } else
        this.#turns.advance({
          day: '',
          visited: [{ account, through: null, hasMore: false, otherDay: null }],
        });
      const endedAt = performance.now();
      const hasMore = slice !== undefined && slice.upTo !== null;
      this.#heavy.learnSlice(account, hasMore, endedAt, endedAt - beganAt, this.#options.isBehind());
    } catch (error) {
      if (!(await this.#isOfContent(connection, error))) throw error;
      if (!this.#isFirstLock(error)) {
        this.#options.onError(new Error('a fan-out pass failed', { cause: error }));
        this.#suspects.add(account, performance.now());
      }
    }
    return Math.max(0, this.#heavy.slicedAt(isWaiting) - performance.now());
  }

  /** A pass over one account. */
  #alone(visit: Visit, day: string): PassRange {
    return rangeOf([visit], day, this.#turns.snapshot);
  }

  /** Whether what a statement of this turn met may have caused the error. Otherwise the database does not work. */
  #isOfContent(connection: Database, error: unknown): Promise<boolean> {
    const { kinds, held } = this.#options;
    const nothing = rangeOf([], new Date().toISOString().slice(0, 10), this.#turns.snapshot);
    return isOfContent(error, () => fanOut(connection, kinds, nothing, { held: held() }));
  }

  /**
   * Tries one event of an account whose events failed.
   * @returns milliseconds until the next such event
   */
  async #trySuspect(connection: Database): Promise<number> {
    const account = this.#suspects.next(performance.now());
    if (account !== undefined && !this.#turns.isScanning) {
      const visit = this.#turns.place(account);
      await this.#setTimeout(connection, passTimeoutMs.cut);
      if (visit === undefined) this.#suspects.forget(account);
      else await this.#tryEvent(connection, visit);
    }
    return Math.max(0, this.#suspects.dueAt - performance.now());
  }

  async #tryEvent(connection: Database, visit: Visit): Promise<void> {
    const { account } = visit;
    const { onError } = this.#options;
    const next = await findNextEvent(connection, visit, this.#turns.snapshot);
    if (next === undefined) {
      this.#turns.advance({ day: '', visited: [{ account, through: null, hasMore: false, otherDay: null }] });
      this.#suspects.forget(account);
      return;
    }
    try {
      const slice = await findSlice(connection, visit, this.#turns.snapshot, this.#heavy.share);
      const pass = await this.#run(connection, this.#alone(visit, next.day), slice && { slice });
      if (slice === undefined || slice.upTo === null) this.#turns.advance(pass);
      this.#suspects.succeed(account, performance.now());
      this.#suspects.clearRefused();
    } catch (error) {
      if (!(await this.#isOfContent(connection, error))) throw error;
      if (this.#isFirstLock(error)) return;
      const isSlow = isLocked(error) || isTimeout(error);
      if (!this.#suspects.fail(account, isSlow, performance.now()) || isLocked(error)) return;
      // The database works if it can park the event.
      if (!(await this.#park(connection, next, error as Error))) return;
      this.#suspects.proceed(account, performance.now());
      const { position, turn } = next;
      onError(Object.assign(new Error('fan-out parked an event', { cause: error }), { position, turn }));
    }
  }

  /** @returns false if another session has locked the event: it is tried again */
  async #park(connection: Database, event: NextEvent, { message }: Error): Promise<boolean> {
    try {
      return await parkEvent(connection, event, message, this.#options.held());
    } catch (error) {
      if (!isLocked(error)) throw error;
      return false;
    }
  }

  /** Adds what was set aside to lanes that are unlocked by now. @returns milliseconds until the next attempt */
  async #addDeferred(connection: Database): Promise<number> {
    const restMs = this.#deferred.restMs(performance.now());
    if (restMs > 0) return restMs;
    await this.#setTimeout(connection, passTimeoutMs.cut);
    const { owns, onGrown, onError, held } = this.#options;
    const isOurs = Map.groupBy(await this.#deferred.step(connection, held(), onError), owns);
    const grown = (isOwn: boolean) =>
      (isOurs.get(isOwn) ?? []).map((lane): GrownLane => ({ lane, owner: null, tenant: null }));
    onGrown(grown(true));
    this.#markLater(grown(false));
    return this.#deferred.restMs(performance.now());
  }

  /** Makes lanes due in the next turn. Those that this node leases then are loaded. */
  #markLater(lanes: GrownLane[]): void {
    if (lanes.length === 0) return;
    this.#unmarked.push({ lanes, onMarked: () => this.#options.onGrown(leasedOf(lanes)) });
  }

  #handOver({ additions, events }: FanOutPass): void {
    const { owns, assignTo, onPass, onGrown } = this.#options;
    const node = assignTo();
    const own: LaneAddition[] = [];
    const others: LaneAddition[] = [];
    for (const addition of additions) (owns(addition.lane) ? own : others).push(addition);
    for (const addition of own) addition.owner = node;
    const begun = this.#begun;
    const onMarked = () => {
      // Rights that ended during this pass are known until another one begins (`onBegin`).
      if (begun === this.#begun) return onPass(others, events);
      onPass([], events);
      onGrown(leasedOf(others));
    };
    if (others.length > 0) this.#unmarked.push({ lanes: others, onMarked });
    onPass(own, others.length > 0 ? [] : events);
  }

  /**
   * Marks the lanes of earlier passes that this node does not lease. Continues after an outage. After a crash the next leader
   * searches for such lanes. A locked lane is tried again.
   */
  async #markDue(connection: Database): Promise<void> {
    const all = this.#unmarked;
    this.#unmarked = [];
    for (const [index, each] of all.entries()) {
      try {
        const locked = await markDue(connection, each.lanes, this.#options.assignTo());
        each.onMarked();
        this.#markLater(locked);
      } catch (error) {
        if (error instanceof LeaseLostError || !(await this.#isOfContent(connection, error))) {
          this.#unmarked.push(...all.slice(index));
          throw error;
        }
        // The sweep of all lanes finds them.
        this.#options.onError(new Error('lanes with new deliveries could not be made due', { cause: error }));
        each.onMarked();
      }
    }
  }

  async #setTimeout(connection: Database, ms: number): Promise<void> {
    if (ms === this.#timeoutMs) return;
    await sql.raw(`set statement_timeout = ${ms}`).execute(connection);
    this.#timeoutMs = ms;
  }
}

const leasedOf = (lanes: readonly GrownLane[]) => lanes.filter(({ owner }) => owner !== null);
