/**
 * Who fans out: one node of all, the one that owns an advisory lock on a connection of its own. When the node or
 * its connection is gone, so is the lock, and another takes over within a second.
 *
 * A pass begins at once when there was none for some milliseconds. Under load it waits for those, so that it serves many
 * events. A pass that the database cannot finish is cut (pass_size.ts), and a single event that fails is parked.
 *
 *   asking for the lock (every second) → leading: pass after pass while there is something, then waiting to be woken
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { QueueVacuum } from '../../database/queue_vacuum.ts';
import { type FanOutPass, fanOut, type KindArrays, type LaneAddition } from './fan_out.ts';
import { markDue } from './mark_due.ts';
import { findNextEvent, type NextEvent, parkEvent } from './parked_events.ts';
import { isLocked, isPassTooLarge, PassSize } from './pass_size.ts';
import { Rotation } from './rotation.ts';

/** Milliseconds between looks into the outbox that nobody asked for, and between tries to lead. */
const pollMs = 1_000;
/** Milliseconds from the beginning of a pass that left nothing behind to the next one, at least. */
const paceMs = 5;
/** Milliseconds after which the database ends a pass: one of many events, and one of a single event. */
const passTimeoutMs = { many: 4_000, single: 9_000 };
/** Milliseconds that a pass waits for a lane that somebody else has locked. */
const lockTimeoutMs = 1_000;
/**
 * Seconds after which the database ends the session of a leader that asks nothing, and with it the lock: its node is
 * paused or cut off. A leader with nothing to do asks every `pollMs`.
 */
const leaderIdleSecondsMax = 8;
/** Milliseconds without a sign of life after which a part of the worker is taken to be down. */
export const downAfterMs = 10_000;

export interface FanOutLoopOptions {
  db: Database;
  kinds: KindArrays;
  /** The node that is to hold lanes that nobody owns; null while it has enough to do. */
  assignTo: () => string | null;
  /** Whether this node surely owns the lane, so that nobody needs to be asked who is to send. */
  owns: (lane: number) => boolean;
  /** This node fans out from now on: who did before it may have died between the two statements of a pass. */
  onLead: () => void;
  /** A pass is about to read who may have the events. */
  onBegin: () => void;
  /** The additions of a pass: at once those to lanes that this node owns, the others when they are marked. */
  onPass: (additions: LaneAddition[], events: number[]) => void;
  onError: (error: Error) => void;
}

export class FanOutLoop {
  readonly #options: FanOutLoopOptions;
  #isStopped = false;
  #leads = false;
  #isWoken = false;
  #resume: (() => void) | undefined;
  #running: Promise<void> = Promise.resolve();
  readonly #rotation = new Rotation(new Date().toISOString().slice(0, 10));
  readonly #size = new PassSize();
  readonly #vacuum = new QueueVacuum('outbox');
  #begunAt = Number.NEGATIVE_INFINITY;
  /** Passes that are committed, of which some lanes are still to be marked. */
  readonly #unmarked: Pick<FanOutPass, 'additions' | 'events'>[] = [];
  /** When it last did what was to be done, or found that another does it. */
  #aliveAt = Number.NEGATIVE_INFINITY;

  constructor(options: FanOutLoopOptions) {
    this.#options = options;
  }

  start(): void {
    this.#aliveAt = performance.now();
    this.#running = this.#run();
  }

  /** Whether this node fans out, or stands ready to when the one that does is gone. */
  get isUp(): boolean {
    return !this.#isStopped && performance.now() - this.#aliveAt < downAfterMs;
  }

  /** Whether this node fans out. */
  get leads(): boolean {
    return this.#leads;
  }

  /** There are new events. */
  wake(): void {
    this.#isWoken = true;
    this.#resume?.();
  }

  /** Finishes the pass under way. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.wake();
    await this.#running;
  }

  async #run(): Promise<void> {
    while (!this.#isStopped) {
      try {
        await this.#options.db.connection().execute((connection) => this.#lead(connection));
      } catch (error) {
        if (this.#isStopped) return;
        this.#options.onError(error as Error);
        await sleep(200);
      }
    }
  }

  async #lead(connection: Database): Promise<void> {
    const { rows } = await sql<{ leads: boolean }>`
      select pg_try_advisory_lock(lock_key('fan-out')) as leads`.execute(connection);
    if (!rows[0]?.leads) {
      this.#aliveAt = performance.now();
      await this.#wait(false);
      return;
    }
    this.#leads = true;
    this.#options.onLead();
    try {
      await sql.raw(`set idle_session_timeout = '${leaderIdleSecondsMax}s'`).execute(connection);
      await sql.raw(`set lock_timeout = ${lockTimeoutMs}`).execute(connection);
      // The plan does not depend on the values, and making it anew would take longer than most passes.
      await sql`set plan_cache_mode = force_generic_plan`.execute(connection);
      await setPassTimeout(connection, passTimeoutMs.many);
      await this.#markDue(connection);
      while (!this.#isStopped) {
        await this.#keepPace();
        this.#isWoken = false;
        const isDrained = await this.#pass(connection);
        await this.#vacuum.run(connection, isDrained && !this.#isWoken);
        if (isDrained) await this.#wait(true);
      }
    } finally {
      this.#leads = false;
      await sql`select pg_advisory_unlock(lock_key('fan-out'))`.execute(connection).catch(() => {});
      await sql`reset idle_session_timeout`.execute(connection).catch(() => {});
      await sql`reset lock_timeout`.execute(connection).catch(() => {});
      await sql`reset plan_cache_mode`.execute(connection).catch(() => {});
      await sql`reset statement_timeout`.execute(connection).catch(() => {});
    }
  }

  /** No timer where there was no pass lately. */
  async #keepPace(): Promise<void> {
    const restMs = this.#begunAt + paceMs - performance.now();
    if (restMs > 0 && !this.#isStopped) await sleep(restMs);
  }

  /** @returns whether nothing is left to do */
  async #pass(connection: Database): Promise<boolean> {
    const { onBegin, kinds } = this.#options;
    const { limits, isSingle } = this.#size;
    const range = this.#rotation.range(limits);
    const next = isSingle ? await findNextEvent(connection, range) : undefined;
    if (isSingle) await setPassTimeout(connection, passTimeoutMs.single);
    this.#begunAt = performance.now();
    onBegin();
    let pass: FanOutPass;
    try {
      pass = await fanOut(connection, kinds, range);
    } catch (error) {
      if (!isPassTooLarge(error)) throw error;
      await this.#recoverFrom(connection, error as Error, next);
      return false;
    } finally {
      if (isSingle) await setPassTimeout(connection, passTimeoutMs.many);
    }
    this.#aliveAt = performance.now();
    const isDrained = this.#rotation.advance(pass);
    if (isDrained) this.#size.reset();
    else {
      this.#size.grow();
      this.#begunAt = Number.NEGATIVE_INFINITY;
    }
    this.#vacuum.count(pass.rows);
    this.#handOver(pass);
    await this.#markDue(connection);
    return isDrained && this.#unmarked.length === 0;
  }

  /**
   * After a pass that the database could not finish: takes less the next time, or parks the one event that it was, unless a
   * lane was locked. That the event can be parked shows that the database works.
   */
  async #recoverFrom(connection: Database, cause: Error, next: NextEvent | undefined): Promise<void> {
    const { onError } = this.#options;
    // To be told to take less is to get on; to wait for a lock is not.
    if (!isLocked(cause)) this.#aliveAt = performance.now();
    onError(new Error('a pass of the fan-out failed', { cause }));
    if (!this.#size.isSingle) {
      this.#size.cut();
      return;
    }
    const after = await findNextEvent(connection, this.#rotation.range(this.#size.limits));
    // An older one may have come in between, so that it was not this one that failed.
    if (next === undefined || after?.id !== next.id || after.position !== next.position) return;
    if (isLocked(cause)) {
      // Its account waits for the next rotation.
      this.#rotation.skip(next.turn);
      return;
    }
    if (!(await parkEvent(connection, next, cause.message))) return;
    this.#size.grow();
    const { position, turn } = next;
    onError(Object.assign(new Error('the fan-out parked an event', { cause }), { position, turn }));
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
   * Lanes that this node does not hold, of the pass before. Where the database was away, it is done when it is back;
   * where the process has died, whoever fans out next has them looked for.
   */
  async #markDue(connection: Database): Promise<void> {
    const { assignTo, onPass, onError } = this.#options;
    for (let [first] = this.#unmarked; first !== undefined; [first] = this.#unmarked) {
      try {
        await markDue(connection, first.additions, assignTo());
      } catch (error) {
        if (!isLocked(error)) throw error;
        onError(new Error('lanes that were added to are locked', { cause: error }));
        return;
      }
      this.#unmarked.shift();
      onPass(first.additions, first.events);
    }
  }

  async #wait(untilWoken: boolean): Promise<void> {
    if (this.#isStopped || (untilWoken && this.#isWoken)) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, pollMs);
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
