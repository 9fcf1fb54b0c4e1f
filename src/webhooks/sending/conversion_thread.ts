/**
 * A thread that converts bodies, one at a time. It is started by the first conversion, and again after it had to be stopped: a
 * conversion has limited time and memory.
 *
 *   idle → (starting) → converting → converted | failed (thrown, wrong) | stopped (too slow, or the thread ended)
 */

import { Worker } from 'node:worker_threads';
import type { ConversionRequest, ConversionResponse, ConversionTimes } from '../../events/conversion.ts';
import type { ConversionSource } from '../../events/conversion_source.ts';

/** Milliseconds for the start of the thread, and for which conversions fail at once after it could not start. */
const startMsMax = 60_000;
const startPauseMs = 10_000;
const timerSteps = 4;
/** Maximum size of V8's heap in the thread, in MiB. */
const heapMebibytesMax = 128;

/** With the time of the next start if it was stopped. `wasStopped`: the conversion stopped the thread. */
export type ConversionResult = ({ body: Buffer } | { error: string; wasStopped: boolean }) & ConversionTimes;

export const noTime: ConversionTimes = { ms: 0, processorMs: 0 };

interface Current {
  request: ConversionRequest;
  resolve: (result: ConversionResult) => void;
}

export class ConversionThread {
  readonly #source: ConversionSource;
  readonly #msMax: number;
  readonly #idleMsMax: number | null;
  #thread: Worker | undefined;
  #isReady = false;
  #current: Current | undefined;
  #timer: NodeJS.Timeout | undefined;
  #idleTimer: NodeJS.Timeout | undefined;
  #startedAt = 0;
  /** How long the last start took. */
  #startMs = 0;
  #startsAgainAt = Number.NEGATIVE_INFINITY;

  /**
   * @param msMax milliseconds for one conversion
   * @param idleMsMax milliseconds without one after which the thread ends and frees its memory; null to keep it
   */
  constructor(source: ConversionSource, msMax: number, idleMsMax: number | null) {
    this.#source = source;
    this.#msMax = msMax;
    this.#idleMsMax = idleMsMax;
  }

  /** Call it only when the previous conversion has ended. */
  async convert(request: ConversionRequest): Promise<ConversionResult> {
    if (performance.now() < this.#startsAgainAt)
      return { error: 'the thread of the conversions did not start', wasStopped: false, ...noTime };
    clearTimeout(this.#idleTimer);
    const { promise, resolve } = Promise.withResolvers<ConversionResult>();
    this.#current = { request, resolve };
    this.#thread ??= this.#open();
    if (this.#isReady) this.#post(this.#current);
    return promise;
  }

  /** Ends the thread and the conversion in it. */
  async end(error: string): Promise<void> {
    const [thread, current, wasReady] = [this.#thread, this.#current, this.#isReady];
    clearInterval(this.#timer);
    clearTimeout(this.#idleTimer);
    this.#thread = undefined;
    this.#current = undefined;
    this.#isReady = false;
    if (thread !== undefined && !wasReady) this.#startsAgainAt = performance.now() + startPauseMs;
    // A thread that did not start was stopped by no conversion.
    const ms = wasReady ? this.#msMax + this.#startMs : 0;
    current?.resolve({ error, wasStopped: wasReady, ms, processorMs: ms });
    await thread?.terminate();
  }

  #post(current: Current): void {
    this.#setTimer(this.#msMax, `it took longer than ${this.#msMax} ms`);
    this.#thread?.postMessage(current.request);
  }

  /** Counts steps, so that a process that was paused does not take the pause for the thread's time. */
  #setTimer(ms: number, message: string): void {
    clearInterval(this.#timer);
    let steps = 0;
    this.#timer = setInterval(() => {
      steps += 1;
      if (steps === timerSteps) void this.end(message);
    }, ms / timerSteps);
  }

  #open(): Worker {
    const { thread: entry, file } = this.#source;
    this.#startedAt = performance.now();
    const thread = new Worker(new URL(entry), {
      workerData: { file },
      name: 'conversions',
      resourceLimits: { maxOldGenerationSizeMb: heapMebibytesMax },
    });
    // The process may end while a thread waits for work.
    thread.unref();
    this.#setTimer(startMsMax, 'its thread did not start');
    thread.on('message', (message: 'ready' | ConversionResponse) => {
      if (thread === this.#thread) this.#receive(message);
    });
    const onDeath = (error: unknown) => {
      if (thread === this.#thread) void this.end((error as Error)?.message ?? 'its thread ended');
    };
    thread.on('error', onDeath).on('exit', onDeath);
    return thread;
  }

  #receive(message: 'ready' | ConversionResponse): void {
    clearInterval(this.#timer);
    const current = this.#current;
    if (message === 'ready') {
      this.#isReady = true;
      this.#startMs = performance.now() - this.#startedAt;
      if (current !== undefined) this.#post(current);
      return;
    }
    this.#current = undefined;
    if (this.#idleMsMax !== null)
      this.#idleTimer = setTimeout(() => void this.end('it was idle'), this.#idleMsMax).unref();
    if (current === undefined) return;
    current.resolve(
      'body' in message ? { ...message, body: Buffer.from(message.body) } : { ...message, wasStopped: false },
    );
  }
}
