/**
 * The relay publishes the waiting events of an outbox in order, and deletes them when the server has stored them.
 *
 *   idle → (wake, or the poll interval) → lease → read → publish → delete → … → no event waits → release → idle
 *                                                     ↘ failed → release → pause → lease
 *
 * The relay deletes an event after the server has stored it. A relay that is killed in between publishes the event again with
 * the same id, and the server stores each id once.
 *
 * Several relays can share an outbox; one of them has the lease. A relay that loses the lease while a request is in flight
 * does no harm: the new holder publishes the same events first, and the server ignores the repeated ids.
 */

import { randomUUID } from 'node:crypto';
import { runPass } from './pass.ts';
import { type RelayOptions, readOptions, type Settings } from './relay_options.ts';
import { createWaiter } from './waiter.ts';

export interface RelayResult {
  published: number;
  rejected: number;
  /** Another relay has the lease. */
  isHeldElsewhere: boolean;
}

export interface Relay {
  /** Starts publishing. The relay runs until `stop`. */
  start(): void;
  /** Publishes without waiting for the next poll. Call it after a commit. Returns immediately. */
  wake(): void;
  /**
   * Publishes the waiting events and returns. Use it instead of `start` in scheduled tasks.
   * @throws errors of the publisher and of the database; no event is lost
   */
  runOnce(): Promise<RelayResult>;
  /**
   * Stops the relay. Waits for the request in flight and aborts it after `timeoutMs` (default 10,000); the next relay then
   * publishes its events again. With `drain`, publishes the waiting events first; a failure ends the drain.
   */
  stop(options?: StopOptions): Promise<void>;
}

export interface StopOptions {
  drain?: boolean;
  timeoutMs?: number;
}

/** The first pause after a failure. Each further failure doubles it. */
const pauseFirstMs = 500;
/** The longest `Retry-After` that the relay respects. */
const retryAfterMaxMs = 3_600_000;
const stopTimeoutDefaultMs = 10_000;

/** @throws TypeError when an option is missing or invalid */
export function createRelay(options: RelayOptions): Relay {
  const relay = new StoreRelay(readOptions(options));
  return {
    start: () => relay.start(),
    wake: () => relay.wake(),
    runOnce: () => relay.runOnce(),
    stop: (stopOptions) => relay.stop(stopOptions),
  };
}

class StoreRelay {
  readonly #settings: Settings;
  readonly #waiter = createWaiter();
  readonly #ending = new AbortController();
  /** Identifies this relay in the lease. */
  readonly #holder = randomUUID();
  #loop: Promise<void> | undefined;
  /** The current or last pass. Passes run one after the other. */
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
    this.#assertRunning();
    this.#loop ??= this.#run();
  }

  wake(): void {
    this.#waiter.wake();
  }

  async runOnce(): Promise<RelayResult> {
    this.#assertRunning();
    return this.#runPass();
  }

  async stop({ drain = false, timeoutMs = stopTimeoutDefaultMs }: StopOptions = {}): Promise<void> {
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

  #assertRunning(): void {
    if (this.#isEnding) throw new Error('the relay is stopped');
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
      // A slow server can succeed with a smaller request. A rejected request fails at any size.
      if (!isRejection(error)) this.#batchEvents = Math.ceil(this.#batchEvents / 2);
      throw error;
    }
  }

  /** Doubles the pause with each failure, randomizes half of it, and respects `Retry-After`. @returns milliseconds */
  #pauseAfter(error: Error): number {
    const { pauseMaxMs, onError } = this.#settings;
    const doubled = Math.min(pauseMaxMs, pauseFirstMs * 2 ** Math.min(this.#failures, 30));
    const retryAfterMs = Math.min(retryAfterMaxMs, retryAfterOf(error));
    const retryInMs = Math.round(Math.max(retryAfterMs, doubled / 2 + (Math.random() * doubled) / 2));
    this.#failures += 1;
    if (!this.#ending.signal.aborted) onError(error, { failures: this.#failures, retryInMs });
    return retryInMs;
  }
}

/** Whether the error is a response with a status below 500, according to the `PublishError` of `nuncio/protect`. */
function isRejection(error: unknown): boolean {
  const { status } = (error ?? {}) as { status?: unknown };
  return typeof status === 'number' && status < 500;
}

/** `Retry-After` of the response in milliseconds, from a `PublishError` of `nuncio/protect`; otherwise 0. */
function retryAfterOf(error: Error): number {
  const { retryAfterMs } = error as { retryAfterMs?: unknown };
  return typeof retryAfterMs === 'number' && retryAfterMs > 0 ? retryAfterMs : 0;
}

function toError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
