/**
 * Converts bodies to earlier versions in a thread of its own, one at a time. Accounts take turns. The thread is started by the first
 * conversion, and again after it had to be stopped: a conversion may take a second and has little memory.
 *
 *   waiting → sent to the thread → converted | failed (thrown, wrong, too slow, thread died)
 *   three of an account's conversions too slow or died → its conversions of the kind to the version fail at once, for a minute, then two …
 *   ten in a row of any account → those of all accounts, likewise
 */

import { Worker } from 'node:worker_threads';
import { LRUCache } from 'lru-cache';
import type { ConversionRequest, ConversionResponse } from '../../events/conversion.ts';
import type { ConversionSource } from '../../events/conversion_source.ts';

/** Milliseconds for one conversion, and for the start of the thread. */
const conversionMsMax = 1_000;
const startMsMax = 60_000;
const timerSteps = 4;
/**
 * How often conversions of a kind to a version may stop the thread before they fail at once: those of one account, whose user may
 * have chosen the content, and those of all. Milliseconds for which they then fail: the first time, and at most.
 */
const stopsMax = { account: 3, all: 10 };
const brokenMs = { first: 60_000, max: 3_600_000 };
/** Maximum number of entries for accounts, and for kinds and versions. */
const rememberedMax = 10_000;
/** Maximum size of V8's heap in the thread, in MiB. */
const heapMebibytesMax = 128;

/** A body could not be converted. The message is for the operator. */
export class ConversionError extends Error {
  override readonly name = 'ConversionError';
}

const stopping = 'the server stops';

interface Stops {
  count: number;
  at: number;
}

interface Waiting {
  request: ConversionRequest;
  /** Empty for events without an account. */
  account: string;
  resolve: (body: Buffer) => void;
  reject: (error: ConversionError) => void;
}

export class Converter {
  readonly #source: ConversionSource | null;
  /** By account, in the order of their turns. */
  readonly #waiting = new Map<string, Waiting[]>();
  /** Conversions that stopped the thread: how often, and when last. A success clears those of all accounts. */
  readonly #stops = {
    account: new LRUCache<string, Stops>({ max: rememberedMax, ttl: 2 * brokenMs.max }),
    all: new LRUCache<string, Stops>({ max: rememberedMax, ttl: 2 * brokenMs.max }),
  };
  #current: Waiting | undefined;
  #thread: Worker | undefined;
  #isReady = false;
  #timer: NodeJS.Timeout | undefined;
  #isStopped = false;

  /** @param source null if no file declares the platform; then every conversion fails */
  constructor(source: ConversionSource | null) {
    this.#source = source;
  }

  /** @param account the owner of the event @throws ConversionError */
  convert(request: ConversionRequest, account: string): Promise<Buffer> {
    const { promise, resolve, reject } = Promise.withResolvers<Buffer>();
    const waiting = { request, account, resolve, reject };
    const others = this.#waiting.get(account);
    if (others === undefined) this.#waiting.set(account, [waiting]);
    else others.push(waiting);
    this.#next();
    return promise;
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    await this.#end(new ConversionError(stopping));
  }

  #next(): void {
    while (this.#current === undefined) {
      const waiting = this.#take();
      if (waiting === undefined) return;
      const problem = this.#problemOf(waiting);
      if (problem === undefined) this.#begin(waiting);
      else waiting.reject(new ConversionError(problem));
    }
  }

  /** The account goes to the end of the turns. */
  #take(): Waiting | undefined {
    const [turn] = this.#waiting;
    if (turn === undefined) return undefined;
    const [account, queue] = turn;
    const waiting = queue.shift();
    this.#waiting.delete(account);
    if (queue.length > 0) this.#waiting.set(account, queue);
    return waiting;
  }

  #problemOf(waiting: Waiting): string | undefined {
    if (this.#source === null) return 'the platform was not loaded from a file';
    if (this.#isStopped) return stopping;
    for (const scope of ['account', 'all'] as const) {
      const { count, at } = this.#stops[scope].get(keyOf(waiting, scope)) ?? { count: 0, at: 0 };
      const isBroken =
        count >= stopsMax[scope] && performance.now() < at + pauseAfter(count - stopsMax[scope]);
      if (isBroken) return `it was too slow or used too much memory ${count} times`;
    }
    return undefined;
  }

  #begin(waiting: Waiting): void {
    this.#current = waiting;
    this.#thread ??= this.#open(this.#source as ConversionSource);
    if (this.#isReady) this.#post(waiting.request);
  }

  #post(request: ConversionRequest): void {
    this.#setTimer(conversionMsMax, `it took longer than ${conversionMsMax} ms`);
    this.#thread?.postMessage(request);
  }

  /** Counts steps, so that a process that was paused does not take the pause for the thread's time. */
  #setTimer(ms: number, message: string): void {
    clearInterval(this.#timer);
    let steps = 0;
    this.#timer = setInterval(() => {
      steps += 1;
      if (steps === timerSteps) void this.#end(new ConversionError(message));
    }, ms / timerSteps);
  }

  #open({ thread: entry, file }: ConversionSource): Worker {
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
      if (thread !== this.#thread) return;
      void this.#end(new ConversionError((error as Error)?.message ?? 'its thread ended'));
    };
    thread.on('error', onDeath).on('exit', onDeath);
    return thread;
  }

  #receive(message: 'ready' | ConversionResponse): void {
    clearInterval(this.#timer);
    if (message === 'ready') {
      this.#isReady = true;
      if (this.#current !== undefined) this.#post(this.#current.request);
      return;
    }
    const current = this.#current;
    this.#current = undefined;
    if (current !== undefined) this.#stops.all.delete(keyOf(current, 'all'));
    if ('body' in message) current?.resolve(Buffer.from(message.body));
    else current?.reject(new ConversionError(message.error));
    this.#next();
  }

  #remember(stopped: Waiting): void {
    const at = performance.now();
    for (const scope of ['account', 'all'] as const) {
      const key = keyOf(stopped, scope);
      this.#stops[scope].set(key, { count: (this.#stops[scope].get(key)?.count ?? 0) + 1, at });
    }
  }

  /** Ends the thread and the conversion in it. The next conversion gets a new thread. */
  async #end(error: ConversionError): Promise<void> {
    const thread = this.#thread;
    const current = this.#current;
    clearInterval(this.#timer);
    this.#thread = undefined;
    this.#current = undefined;
    this.#isReady = false;
    if (current !== undefined) {
      this.#remember(current);
      current.reject(error);
    }
    const ended = thread?.terminate();
    this.#next();
    await ended;
  }
}

function keyOf({ request: { kind, from, to }, account }: Waiting, scope: keyof typeof stopsMax): string {
  return scope === 'all' ? `${kind} ${from} ${to}` : `${kind} ${from} ${to} ${account}`;
}

function pauseAfter(stops: number): number {
  return Math.min(brokenMs.first * 2 ** stops, brokenMs.max);
}
