/**
 * Who fans out: one node of all, the one that holds an advisory lock on a connection of its own. When the node or
 * its connection is gone, so is the lock, and another takes over within a second.
 *
 *   asking for the lock (every second) → leading: pass after pass while there is something, then waiting to be woken
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { type FanOutPass, fanOut, type KindArrays, type LaneAddition, markDue } from './fan_out.ts';

/** An arbitrary number that says "fanning out" to every node of a database. */
const lockKey = 7_236_501_129n;
/** Milliseconds between looks into the outbox that nobody asked for, and between tries to lead. */
const pollMs = 1_000;
/**
 * Seconds after which the database ends the session of a leader that asks nothing, and with it the lock: its node is
 * paused or cut off. A leader with nothing to do asks every `pollMs`.
 */
const leaderIdleSecondsMax = 8;
/** Milliseconds without a sign of life after which a part of the worker is taken to be down. */
export const silentMsMax = 10_000;

export interface FanOutLoopOptions {
  db: Database;
  kinds: KindArrays;
  /** The node that is to hold lanes that nobody holds; null while it has enough to do. */
  holder: () => string | null;
  /** Whether this node surely holds the lane, so that nobody needs to be asked who is to send. */
  holds: (lane: number) => boolean;
  /** This node fans out from now on: who did before it may have died between the two statements of a pass. */
  onLead: () => void;
  /** A pass is about to read who may have the events. */
  onBegin: () => void;
  /** The additions of a pass: at once those to lanes that this node holds, the others when they are marked. */
  onPass: (additions: LaneAddition[], events: number[]) => void;
  onError: (error: Error) => void;
}

export class FanOutLoop {
  readonly #options: FanOutLoopOptions;
  #isStopped = false;
  #isWoken = false;
  #resume: (() => void) | undefined;
  #running: Promise<void> = Promise.resolve();
  /** The day that the outbox was of when it was last looked into. */
  #day = new Date().toISOString().slice(0, 10);
  /** A pass that is committed, of which some lanes are still to be marked. */
  #unmarked: Pick<FanOutPass, 'additions' | 'events'> | undefined;
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
    return !this.#isStopped && performance.now() - this.#aliveAt < silentMsMax;
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
      select pg_try_advisory_lock(${lockKey}::bigint) as leads`.execute(connection);
    if (!rows[0]?.leads) {
      this.#aliveAt = performance.now();
      await this.#wait(false);
      return;
    }
    this.#options.onLead();
    try {
      await sql.raw(`set idle_session_timeout = '${leaderIdleSecondsMax}s'`).execute(connection);
      while (!this.#isStopped) {
        this.#isWoken = false;
        await this.#mark(connection);
        this.#options.onBegin();
        const pass = await fanOut(connection, this.#options.kinds, this.#day);
        this.#aliveAt = performance.now();
        if (pass.day === null) await this.#wait(true);
        else if (pass.day !== this.#day) this.#day = pass.day;
        else this.#hand(pass);
      }
      await this.#mark(connection);
    } finally {
      await sql`select pg_advisory_unlock(${lockKey}::bigint)`.execute(connection).catch(() => {});
      await sql`reset idle_session_timeout`.execute(connection).catch(() => {});
    }
  }

  #hand({ additions, events }: FanOutPass): void {
    const { holds, holder, onPass } = this.#options;
    const node = holder();
    const own: LaneAddition[] = [];
    const others: LaneAddition[] = [];
    for (const addition of additions) (holds(addition.lane) ? own : others).push(addition);
    for (const addition of own) addition.owner = node;
    if (others.length > 0) this.#unmarked = { additions: others, events };
    onPass(own, others.length > 0 ? [] : events);
  }

  /**
   * Lanes that this node does not hold, of the pass before. Where the database was away, it is done when it is back;
   * where the process has died, whoever fans out next has them looked for.
   */
  async #mark(connection: Database): Promise<void> {
    const { holder, onPass } = this.#options;
    if (this.#unmarked === undefined) return;
    const { additions, events } = this.#unmarked;
    await markDue(connection, additions, holder());
    this.#unmarked = undefined;
    onPass(additions, events);
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
