/**
 * Runs fan-out on one node at a time. The leader holds a lease (database/lease.ts), and each pass is fenced by it: it does nothing
 * if another node has become leader. A leader that stops releases the lease, and another node takes it within a quarter of a
 * second. The lease of a leader that was killed or paused expires after three seconds.
 *
 * A pass starts at once under a light load. Under a heavy load, passes start every few milliseconds, so that each handles many
 * events. A pass that the database cannot finish is made smaller (pass_size.ts), and a single event that fails is parked.
 *
 *   follower: tries to take the lease every 250 ms → leader: pass after pass while there are events, then waits to be woken
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { Lease, LeaseLostError } from '../../database/lease.ts';
import { QueueVacuum } from '../../database/queue_vacuum.ts';
import { type FanOutPass, fanOut, type KindArrays, type LaneAddition } from './fan_out.ts';
import { HeavyAccounts } from './heavy_accounts.ts';
import { markDue } from './mark_due.ts';
import { Pace } from './pace.ts';
import { findNextEvent, type NextEvent, parkEvent } from './parked_events.ts';
import { isLocked, isPassTooLarge, PassSize } from './pass_size.ts';
import { Rotation } from './rotation.ts';

/** Milliseconds between reads of the outbox without a wake-up. */
const pollMs = 1_000;
/** Milliseconds between attempts to become leader. Until one succeeds, the deliveries of a dead leader's events wait. */
const followMs = 250;
/** Average milliseconds between the starts of two passes under load, if the first one left nothing behind. */
const paceMs = 5;
/** Passes that may start in close succession after a quiet time. */
const passesAtOnce = 3;
/** Milliseconds after which the database cancels a pass: of many events, and of a single event. */
const passTimeoutMs = { many: 4_000, single: 9_000 };
/**
 * Maximum milliseconds of a turn: a pass and its further statements. After that the leader no longer renews its lease. The
 * database cancels statements sooner, so a longer turn means a frozen connection.
 */
const turnMsMax = 20_000;
/** Milliseconds that a pass waits for a locked lane. */
const lockTimeoutMs = 1_000;
/** Milliseconds without progress after which a part of the worker counts as down. */
export const downAfterMs = 10_000;

export interface FanOutLoopOptions {
  db: Database;
  /** This node's id. */
  node: string;
  kinds: KindArrays;
  /** The node that leases lanes which no node leases yet; null if this node has no room for more. */
  assignTo: () => string | null;
  /** Whether this node has enough to send for a while. */
  isBehind: () => boolean;
  /** Whether this node certainly leases the lane, so that the database need not be asked. */
  owns: (lane: number) => boolean;
  /**
   * This node became leader, or is no longer leader. The previous leader may have died between the two statements of a pass.
   */
  onLeadership: (leads: boolean) => void;
  /** A pass is about to read who may get the events. */
  onBegin: () => void;
  /**
   * Receives the additions of a pass. Those to lanes that this node leases arrive at once, the others when their lanes are
   * marked.
   */
  onPass: (additions: LaneAddition[], events: number[]) => void;
  onError: (error: Error) => void;
}

export class FanOutLoop {
  readonly #options: FanOutLoopOptions;
  readonly #lease: Lease;
  #isStopped = false;
  #isAbandoned = false;
  #leads = false;
  #isWoken = false;
  #resume: (() => void) | undefined;
  #running: Promise<void> = Promise.resolve();
  readonly #rotation = new Rotation(new Date().toISOString().slice(0, 10));
  readonly #size = new PassSize();
  readonly #heavy = new HeavyAccounts();
  readonly #vacuum = new QueueVacuum('outbox');
  #begunAt = Number.NEGATIVE_INFINITY;
  readonly #pace = new Pace(paceMs, passesAtOnce);
  /** Nothing can be fanned out until then, unless new events arrive. */
  #idleUntil = Number.NEGATIVE_INFINITY;
  /** Committed passes with lanes that are not marked due yet. */
  readonly #unmarked: Pick<FanOutPass, 'additions' | 'events'>[] = [];
  /** Time of the last finished pass, or of the last check that another node is leader. */
  #aliveAt = Number.NEGATIVE_INFINITY;
  /** When the leader began its current turn. */
  #turnBegunAt = Number.NEGATIVE_INFINITY;

  constructor(options: FanOutLoopOptions) {
    this.#options = options;
    const { db, node, onError } = options;
    const mayRenew = () => performance.now() - this.#turnBegunAt < turnMsMax;
    this.#lease = new Lease({ db, name: 'fan-out', holder: node, mayRenew, onError });
  }

  start(): void {
    this.#aliveAt = performance.now();
    this.#running = this.#run();
  }

  /** Whether this node fans out, or is ready to take over. */
  get isUp(): boolean {
    return !this.#isStopped && performance.now() - this.#aliveAt < downAfterMs;
  }

  /** Whether this node is the leader. */
  get leads(): boolean {
    return this.#leads;
  }

  /** New events are in the outbox. */
  wake(): void {
    this.#isWoken = true;
    this.#resume?.();
  }

  /** Stops after the current pass. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.wake();
    await this.#running;
  }

  /** Stops without writing anything. */
  abandon(): void {
    this.#isAbandoned = true;
    this.#lease.forget();
    void this.stop();
  }

  async #run(): Promise<void> {
    while (!this.#isStopped) {
      try {
        this.#turnBegunAt = performance.now();
        const holder = await this.#lease.acquire();
        if (this.#isStopped) break;
        if (holder === 'self') {
          await this.#options.db.connection().execute((connection) => this.#lead(connection));
          continue;
        }
        if (holder === 'other') this.#aliveAt = performance.now();
        await this.#wait(false, followMs);
      } catch (error) {
        if (this.#isStopped) break;
        if (error instanceof LeaseLostError) continue;
        this.#options.onError(error as Error);
        // There was no free connection to lead on.
        if (this.#lease.isHeld) await this.#lease.release();
        await sleep(200);
      }
    }
    if (this.#isAbandoned) this.#lease.forget();
    else if (this.#lease.isHeld) await this.#lease.release();
  }

  async #lead(connection: Database): Promise<void> {
    this.#leads = true;
    this.#options.onLeadership(true);
    try {
      await sql.raw(`set lock_timeout = ${lockTimeoutMs}`).execute(connection);
      // The plan does not depend on the parameters, and planning takes longer than most passes.
      await sql`set plan_cache_mode = force_generic_plan`.execute(connection);
      await setPassTimeout(connection, passTimeoutMs.many);
      await this.#markDue(connection);
      while (!this.#isStopped) {
        await this.#keepPace();
        this.#turnBegunAt = performance.now();
        if (!this.#lease.isHeld) throw new LeaseLostError();
        this.#isWoken = false;
        const isDrained = await this.#pass(connection);
        await this.#vacuum.run(connection, isDrained && !this.#isWoken);
        const restMs = this.#idleUntil - performance.now();
        if (isDrained) await this.#wait(true);
        else if (restMs > 0) await this.#wait(true, Math.min(restMs, pollMs));
      }
    } finally {
      this.#leads = false;
      this.#options.onLeadership(false);
      if (!this.#isAbandoned) await this.#lease.release();
      await sql`reset lock_timeout`.execute(connection).catch(() => {});
      await sql`reset plan_cache_mode`.execute(connection).catch(() => {});
      await sql`reset statement_timeout`.execute(connection).catch(() => {});
    }
  }

  /** Waits only if several passes were very recent. */
  async #keepPace(): Promise<void> {
    const restMs = this.#pace.waitMs(performance.now());
    if (restMs > 0 && !this.#isStopped) await sleep(restMs);
  }

  /** @returns whether nothing is left to do */
  async #pass(connection: Database): Promise<boolean> {
    const { onBegin, kinds, isBehind } = this.#options;
    const { limits, isSingle, isFull } = this.#size;
    const heavy = isFull ? this.#heavy.turns(limits, this.#rotation.after, performance.now()) : undefined;
    const range = this.#rotation.range(limits, heavy);
    const next = isSingle ? await findNextEvent(connection, range) : undefined;
    if (isSingle) await setPassTimeout(connection, passTimeoutMs.single);
    this.#begunAt = performance.now();
    this.#pace.start(this.#begunAt);
    onBegin();
    let pass: FanOutPass;
    try {
      pass = await fanOut(connection, kinds, range, this.#lease.held);
    } catch (error) {
      if (!isPassTooLarge(error)) throw error;
      await this.#recoverFrom(connection, error as Error, next);
      return false;
    } finally {
      if (isSingle) await setPassTimeout(connection, passTimeoutMs.many);
    }
    this.#aliveAt = performance.now();
    this.#heavy.learn(pass, this.#aliveAt, this.#aliveAt - this.#begunAt, isBehind());
    const remainder = this.#rotation.advance(pass);
    const isDrained = remainder === 'none';
    if (isDrained) this.#size.reset();
    else this.#size.grow();
    this.#idleUntil = remainder === 'resting' ? this.#heavy.restsUntil : Number.NEGATIVE_INFINITY;
    if (remainder === 'more') this.#pace.skip();
    this.#vacuum.count(pass.rows);
    this.#handOver(pass);
    await this.#markDue(connection);
    return isDrained && this.#unmarked.length === 0;
  }

  /**
   * Handles a pass that the database could not finish: makes the next pass smaller, or parks the event if there was only one. A
   * locked lane parks nothing. The database works if it can park the event.
   */
  async #recoverFrom(connection: Database, cause: Error, next: NextEvent | undefined): Promise<void> {
    const { onError } = this.#options;
    // Making the pass smaller is progress; waiting for a lock is not.
    if (!isLocked(cause)) this.#aliveAt = performance.now();
    onError(new Error('a fan-out pass failed', { cause }));
    if (!this.#size.isSingle) {
      this.#size.cut();
      return;
    }
    const after = await findNextEvent(connection, this.#rotation.range(this.#size.limits));
    // An older event may have arrived in between, so this one may not be the cause.
    if (next === undefined || after?.id !== next.id || after.position !== next.position) return;
    if (isLocked(cause)) {
      // The account waits for the next rotation.
      this.#rotation.skip(next.turn);
      return;
    }
    if (!(await parkEvent(connection, next, cause.message, this.#lease.held))) return;
    this.#size.grow();
    const { position, turn } = next;
    onError(Object.assign(new Error('fan-out parked an event', { cause }), { position, turn }));
  }

  #handOver({ additions, events }: FanOutPass): void {
    const { owns, assignTo, onPass } = this.#options;
    const node = assignTo();
    const own: LaneAddition[] = [];
    const others: LaneAddition[] = [];
    for (const addition of additions) (owns(addition.lane) ? own : others).push(addition);
    for (const addition of own) addition.owner = node;
    if (others.length > 0) this.#unmarked.push({ additions: others, events });
    onPass(own, others.length > 0 ? [] : events);
  }

  /**
   * Marks the lanes of earlier passes that this node does not lease. Continues after an outage. After a crash the next leader
   * searches for such lanes.
   */
  async #markDue(connection: Database): Promise<void> {
    const { assignTo, onPass, onError } = this.#options;
    for (let [first] = this.#unmarked; first !== undefined; [first] = this.#unmarked) {
      try {
        await markDue(connection, first.additions, assignTo());
      } catch (error) {
        if (!isLocked(error)) throw error;
        onError(new Error('lanes with new deliveries are locked', { cause: error }));
        return;
      }
      this.#unmarked.shift();
      onPass(first.additions, first.events);
    }
  }

  async #wait(untilWoken: boolean, ms = pollMs): Promise<void> {
    if (this.#isStopped || (untilWoken && this.#isWoken)) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#resume = () => {
        if (!untilWoken && !this.#isStopped) return;
        clearTimeout(timer);
        resolve();
      };
    });
    this.#resume = undefined;
  }
}

function setPassTimeout(connection: Database, ms: number): Promise<unknown> {
  return sql.raw(`set statement_timeout = ${ms}`).execute(connection);
}
