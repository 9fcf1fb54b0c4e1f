/**
 * Runs fan-out on one node at a time. The leader holds a lease (database/lease.ts), and each pass is fenced by it: it does nothing
 * if another node has become leader. A leader that stops releases the lease, and another node takes it within a quarter of a
 * second. The lease of a leader that was killed or paused expires after three seconds.
 *
 * A turn of the leader (leader.ts) starts at once under a light load. Under a heavy load, turns start every few milliseconds, so
 * that each handles many events.
 *
 *   follower: tries to take the lease every 250 ms → leader: turn after turn while there are events, then waits to be woken
 */

import { setTimeout as sleep } from 'node:timers/promises';
import type { Database } from '../../database/database.ts';
import { Lease, LeaseLostError } from '../../database/lease.ts';
import { QueueVacuum } from '../../database/queue_vacuum.ts';
import { Leader, type LeaderOptions } from './leader.ts';
import type { Visit } from './outbox_selection.ts';
import { Pace } from './pace.ts';

/** Milliseconds between reads of the outbox without a wake-up. */
const pollMs = 1_000;
/** Milliseconds between attempts to become leader. Until one succeeds, the deliveries of a dead leader's events wait. */
const followMs = 250;
/** Average milliseconds between the starts of two turns under load, if the first one left nothing behind. */
const paceMs = 5;
/** Turns that may start in close succession after a quiet time. */
const turnsAtOnce = 3;
/**
 * Maximum milliseconds of a turn. After that the leader no longer renews its lease. The database cancels statements sooner, so a
 * longer turn means a frozen connection.
 */
const turnMsMax = 20_000;
/** Milliseconds without progress after which a part of the worker counts as down. */
export const downAfterMs = 10_000;

export interface FanOutLoopOptions extends Omit<LeaderOptions, 'held'> {
  db: Database;
  /** The connection to lead on. It fails soon if no result arrives: then this node, or another one, leads on a new connection. */
  leaderDb: Database;
  /** This node's id. */
  node: string;
  /**
   * This node became leader, or is no longer leader. The previous leader may have died between the two statements of a pass.
   */
  onLeadership: (leads: boolean) => void;
}

export class FanOutLoop {
  readonly #options: FanOutLoopOptions;
  readonly #lease: Lease;
  readonly #leader: Leader;
  #isStopped = false;
  #isAbandoned = false;
  #leads = false;
  #isWoken = false;
  #resume: (() => void) | undefined;
  #running: Promise<void> = Promise.resolve();
  readonly #vacuum: QueueVacuum;
  readonly #pace = new Pace(paceMs, turnsAtOnce);
  /** Time of the last finished turn, or of the last check that another node is leader. */
  #aliveAt = Number.NEGATIVE_INFINITY;
  /** When the leader began its current turn. */
  #turnBegunAt = Number.NEGATIVE_INFINITY;

  constructor(options: FanOutLoopOptions) {
    this.#options = options;
    const { db, node, onError } = options;
    const mayRenew = () => performance.now() - this.#turnBegunAt < turnMsMax;
    this.#lease = new Lease({ db, name: 'fan-out', holder: node, mayRenew, onError });
    this.#leader = new Leader({ ...options, held: () => this.#lease.held });
    this.#vacuum = new QueueVacuum(db, 'outbox');
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

  /** Accounts with waiting events, the longest waiting ones first, if this node is the leader. */
  get waiting(): Visit[] | undefined {
    return this.#leads ? this.#leader.waiting : undefined;
  }

  /** New events are in the outbox. */
  wake(): void {
    this.#isWoken = true;
    this.#resume?.();
  }

  /** Stops after the current turn. */
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
          await this.#options.leaderDb.connection().execute((connection) => this.#lead(connection));
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
      await this.#leader.begin(connection);
      while (!this.#isStopped) {
        await this.#keepPace();
        this.#turnBegunAt = performance.now();
        if (!this.#lease.isHeld) throw new LeaseLostError();
        this.#isWoken = false;
        this.#pace.start(this.#turnBegunAt);
        const { rows, restMs } = await this.#leader.turn(connection);
        this.#aliveAt = performance.now();
        this.#vacuum.count(rows);
        this.#vacuum.start(restMs > 0 && !this.#isWoken);
        if (restMs === 0) this.#pace.skip();
        else await this.#wait(true, Math.min(restMs, pollMs));
      }
    } finally {
      this.#leads = false;
      this.#options.onLeadership(false);
      if (!this.#isAbandoned) await this.#lease.release();
      await this.#leader.end(connection);
    }
  }

  /** Waits only if several turns were very recent. */
  async #keepPace(): Promise<void> {
    const restMs = this.#pace.waitMs(performance.now());
    if (restMs > 0 && !this.#isStopped) await sleep(restMs);
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
