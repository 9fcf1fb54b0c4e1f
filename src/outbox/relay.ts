/**
 * The relay: publishes what waits in an outbox, in order, and deletes it when the server has it.
 *
 *   idle → (wake, or the poll interval) → lease → read → publish → delete → … → nothing waits → release → idle
 *                                                     ↘ failed → release → pause → lease
 *
 * An event is deleted after the server has taken it, so a relay that dies publishes some events again. They have the same
 * ids, and the server stores each id once.
 *
 * Of several relays on one outbox one has the lease. A relay that loses it while it publishes does no harm: whoever took the
 * lease publishes the same events first, and what the late request brings is known already.
 */

import { randomUUID } from 'node:crypto';
import { runPass } from './pass.ts';
import { type RelayOptions, readOptions, type Settings } from './relay_options.ts';
import { createWaiter } from './waiter.ts';

export interface RelayResult {
  published: number;
  rejected: number;
  /** Another relay has the lease, and publishes. */
  isHeldElsewhere: boolean;
}

export interface Relay {
  /** Begins to publish, now and until `stop`. */
  start(): void;
  /** Says that an event was committed, so that it need not wait for the next look. Returns at once. */
  wake(): void;
  /**
   * Publishes what waits and returns. For tasks that run now and then, instead of `start`.
   * @throws what the publisher or the database throws; nothing is lost
   */
  runOnce(): Promise<RelayResult>;
  /**
   * Ends. The request in flight is finished, and aborted after `timeoutMs` (default 10,000): its events are then published again
   * by the next relay. With `drain` everything that waits is published first, unless that fails.
   */
  stop(options?: StopOptions): Promise<void>;
}

export interface StopOptions {
  drain?: boolean;
  timeoutMs?: number;
}

/** Milliseconds of the first pause after a failure, which doubles; and of the longest that the server can ask for. */
const pauseFirstMs = 500;
const retryAfterMaxMs = 3_600_000;
const stopTimeoutDefault = 10_000;

/** @throws TypeError when an option is missing or not what it may be */
export function createRelay(options: RelayOptions): Relay {
  const relay = new StoreRelay(readOptions(options));
  return {
    start: () => relay.start(),
    wake: () => relay.wake(),
    runOnce: () => relay.runOnce(),
    stop: (how) => relay.stop(how),
  };
}

class StoreRelay {
  readonly #settings: Settings;
  readonly #waiter = createWaiter();
  readonly #ending = new AbortController();
  /** Names this relay in the lease. */
  readonly #holder = randomUUID();
  #loop: Promise<void> | undefined;
  /** The pass that runs, or the last one: passes run one after the other. */
  #pass: Promise<unknown> = Promise.resolve();
  #batchEvents: number;
  #failures = 0;
  #isEnding = false;
  #isDraining = false;

  constructor(settings: Settings) {
    this.#settings = settings;
    this.#batchEvents = settings.batchEvents;
  }

  start(): void {
    this.#mustRun();
    this.#loop ??= this.#run();
  }

  wake(): void {
    this.#waiter.wake();
  }

  async runOnce(): Promise<RelayResult> {
    this.#mustRun();
    return this.#runPass();
  }

  async stop({ drain = false, timeoutMs = stopTimeoutDefault }: StopOptions = {}): Promise<void> {
    this.#isEnding = true;
    this.#isDraining = drain;
    this.#waiter.end();
    const timer = setTimeout(() => this.#ending.abort(), timeoutMs);
    try {
      await this.#loop;
      await this.#pass.catch(() => {});
    } finally {
      clearTimeout(timer);
    }
  }

  #mustRun(): void {
    if (this.#isEnding) throw new Error('the relay was stopped');
  }

  async #run(): Promise<void> {
    while (!this.#isEnding) {
      this.#waiter.reset();
      const { published, rejected, error } = await this.#tryPass();
      if (error !== undefined) await this.#waiter.pause(this.#pauseAfter(error));
      else if (published + rejected === 0) await this.#waiter.idle(this.#settings.pollMs);
    }
    if (this.#isDraining) await this.#tryPass();
  }

  async #tryPass(): Promise<RelayResult & { error?: Error }> {
    try {
      return await this.#runPass();
    } catch (error) {
      return { published: 0, rejected: 0, isHeldElsewhere: false, error: toError(error) };
    }
  }

  #runPass(): Promise<RelayResult> {
    const pass = this.#pass.catch(() => {}).then(() => this.#doPass());
    this.#pass = pass;
    return pass;
  }

  async #doPass(): Promise<RelayResult> {
    const result = { published: 0, rejected: 0, isHeldElsewhere: false };
    try {
      await runPass({
        settings: this.#settings,
        holder: this.#holder,
        signal: this.#ending.signal,
        isEnding: () => (this.#isEnding && !this.#isDraining) || this.#ending.signal.aborted,
        batchEvents: () => this.#batchEvents,
        onBatch: () => {
          this.#failures = 0;
          this.#batchEvents = Math.min(this.#settings.batchEvents, this.#batchEvents * 2);
        },
        result,
      });
      return result;
    } catch (error) {
      // A slow server may manage a smaller request. One that it rejects fails at any size.
      if (!isRejection(error)) this.#batchEvents = Math.ceil(this.#batchEvents / 2);
      throw error;
    }
  }

  /** Milliseconds: doubled with each failure, up to a half at random, and not before the server wants to be asked again. */
  #pauseAfter(error: Error): number {
    const { pauseMaxMs, onError } = this.#settings;
    const doubled = Math.min(pauseMaxMs, pauseFirstMs * 2 ** Math.min(this.#failures, 30));
    const asked = Math.min(retryAfterMaxMs, retryAfterOf(error));
    const retryInMs = Math.round(Math.max(asked, doubled / 2 + (Math.random() * doubled) / 2));
    this.#failures += 1;
    if (!this.#ending.signal.aborted) onError(error, { failures: this.#failures, retryInMs });
    return retryInMs;
  }
}

/** Whether the server answered with a status below 500, as a `PublishError` of `nuncio/protect` tells. */
function isRejection(error: unknown): boolean {
  const { status } = (error ?? {}) as { status?: unknown };
  return typeof status === 'number' && status < 500;
}

/** What a `PublishError` of `nuncio/protect` tells. */
function retryAfterOf(error: Error): number {
  const { retryAfterMs } = error as { retryAfterMs?: unknown };
  return typeof retryAfterMs === 'number' && retryAfterMs > 0 ? retryAfterMs : 0;
}

function toError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
