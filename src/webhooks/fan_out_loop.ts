/**
 * Who fans out: one node of all, the one that holds an advisory lock on a connection of its own. When the node or
 * its connection is gone, so is the lock, and another takes over within a second.
 *
 *   asking for the lock (every second) → leading: pass after pass while there is something, then waiting to be woken
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import type { Database } from '../database/database.ts';
import { type FanOutPass, fanOut, type KindArrays } from './fan_out.ts';

/** An arbitrary number that says "fanning out" to every node of a database. */
const lockKey = 7_236_501_129n;
/** Milliseconds between looks into the outbox that nobody asked for, and between tries to lead. */
const pollMs = 1_000;
/** Milliseconds without a sign of life after which a part of the worker is taken to be down. */
export const silentMsMax = 10_000;

export interface FanOutLoopOptions {
  db: Database;
  kinds: KindArrays;
  /** The node that is to hold lanes that nobody holds; null while it has enough to do. */
  holder: () => string | null;
  onPass: (pass: FanOutPass) => void;
  onError: (error: Error) => void;
}

export class FanOutLoop {
  readonly #options: FanOutLoopOptions;
  #isStopped = false;
  #isWoken = false;
  #resume: (() => void) | undefined;
  #running: Promise<void> = Promise.resolve();
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
    try {
      while (!this.#isStopped) {
        this.#isWoken = false;
        const pass = await fanOut(connection, this.#options.kinds, this.#options.holder());
        this.#aliveAt = performance.now();
        if (!pass.isEmpty) this.#options.onPass(pass);
        if (pass.isEmpty) await this.#wait(true);
      }
    } finally {
      await sql`select pg_advisory_unlock(${lockKey}::bigint)`.execute(connection).catch(() => {});
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
