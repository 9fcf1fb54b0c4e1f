/**
 * A thread for requests to hosts that third parties chose. Their handshakes run in it, because Node verifies certificates in the thread
 * that connects, as many and as slow ones as the host sends. It starts with the first request and ends after a minute without one.
 *
 *   none → starting → ready ⇄ idle → none
 *   any state → none: the thread died or is stuck; its requests fail, and the next one starts another
 */

import { Worker } from 'node:worker_threads';
import { EgressError } from './error.ts';
import type { FromThread, Resolution, ToThread } from './outgoing_calls.ts';
import { fromPlainError, toPlainError } from './plain_error.ts';
import type { ResolveHost } from './resolve.ts';

/** Maximum number of requests in the thread. More fail at once. */
const callsMax = 500;
/** Milliseconds without a request after which the thread ends and frees its memory. */
const idleMsMax = 60_000;
/** Milliseconds for which requests fail at once after the thread could not start. */
const startPauseMs = 10_000;
/**
 * The thread is stuck when it has been silent for so many steps, during its start or after a request whose time was over. Steps are
 * counted so that a process that was paused does not take the pause for the thread's time.
 */
const stepMs = 1_000;
const stepsMax = { start: 15, silence: 4 };
/** Maximum size of V8's heap in the thread, in MiB. Bodies are stored outside of it. */
const heapMebibytesMax = { maxYoungGenerationSizeMb: 8, maxOldGenerationSizeMb: 64 };

export interface OutgoingThreadOptions {
  /** The file that serves the requests with `serveCalls`. */
  entry: URL;
  name: string;
  /** Plain data for the file. */
  data: unknown;
  /** Milliseconds for one request. */
  timeoutMs: number;
  /** Called for names that the thread asks about with `resolveOutside`. */
  resolveHost?: ResolveHost | undefined;
}

interface Call {
  request: unknown;
  resolve: (value: unknown) => void;
  reject: (error: unknown) => void;
  timer?: NodeJS.Timeout;
  /** Whether its caller has been answered already. */
  isOver: boolean;
  stopListening: () => void;
}

export class OutgoingThread {
  readonly #options: OutgoingThreadOptions;
  readonly #calls = new Map<number, Call>();
  #lastId = 0;
  #thread: Worker | undefined;
  #isReady = false;
  #isClosed = false;
  #startsAgainAt = Number.NEGATIVE_INFINITY;
  #silentSteps = 0;
  #watch: NodeJS.Timeout | undefined;
  #idleTimer: NodeJS.Timeout | undefined;

  constructor(options: OutgoingThreadOptions) {
    this.#options = options;
  }

  /**
   * @returns what the thread answers
   * @throws what the thread throws; EgressError if it is full, died or was closed; a TimeoutError; the reason of the signal
   */
  async call(request: unknown, signal?: AbortSignal): Promise<unknown> {
    signal?.throwIfAborted();
    if (this.#isClosed || performance.now() < this.#startsAgainAt) throw new EgressError('connect_error');
    if (this.#calls.size >= callsMax) throw new EgressError('connect_timeout');
    clearTimeout(this.#idleTimer);
    this.#lastId += 1;
    const id = this.#lastId;
    const { promise, resolve, reject } = Promise.withResolvers<unknown>();
    const onAbort = () => this.#giveUp(id, signal?.reason);
    signal?.addEventListener('abort', onAbort, { once: true });
    const stopListening = () => signal?.removeEventListener('abort', onAbort);
    this.#calls.set(id, { request, resolve, reject, isOver: false, stopListening });
    try {
      this.#thread ??= this.#open();
      if (this.#isReady) this.#post(id);
    } catch (cause) {
      void this.#end(new EgressError('connect_error', { cause }));
    }
    return promise;
  }

  /** Ends the thread. Requests in it fail, and later ones. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#end(new EgressError('connect_error'));
  }

  #open(): Worker {
    const { entry, name, data } = this.#options;
    const thread = new Worker(entry, { workerData: data, name, resourceLimits: heapMebibytesMax });
    // The process may end while the thread waits for requests.
    thread.unref();
    this.#startWatch();
    thread.on('message', (message: FromThread) => {
      if (thread === this.#thread) this.#receive(message);
    });
    const onDeath = (cause: unknown) => {
      if (thread === this.#thread) void this.#end(new EgressError('connect_error', { cause }));
    };
    thread.on('error', onDeath).on('exit', onDeath);
    return thread;
  }

  /** The time of a request begins here, so that the start of the thread is not part of it. */
  #post(id: number): void {
    const call = this.#calls.get(id) as Call;
    const { timeoutMs } = this.#options;
    this.#send({ id, request: call.request });
    call.timer = setTimeout(() => {
      // An answer that has already arrived is read first.
      setImmediate(() => this.#giveUp(id, timeoutError()));
    }, timeoutMs);
  }

  /** Answers the caller. The call stays until the thread has answered, too. */
  #giveUp(id: number, reason: unknown): void {
    const call = this.#calls.get(id);
    if (call === undefined || call.isOver) return;
    this.#settle(call, () => call.reject(reason));
    if (!this.#isReady) {
      this.#calls.delete(id);
      return;
    }
    this.#send({ abort: id });
    this.#startWatch();
  }

  #receive(message: FromThread): void {
    this.#silentSteps = 0;
    if (message === 'ready') {
      this.#isReady = true;
      for (const id of this.#calls.keys()) this.#post(id);
    } else if ('resolve' in message) void this.#resolveHost(message);
    else {
      const call = this.#calls.get(message.id);
      this.#calls.delete(message.id);
      if (call !== undefined && !call.isOver)
        this.#settle(call, () =>
          'error' in message ? call.reject(fromPlainError(message.error)) : call.resolve(message.value),
        );
    }
    if (this.#calls.size > 0) return;
    clearTimeout(this.#idleTimer);
    this.#idleTimer = setTimeout(() => void this.#end(new EgressError('connect_error')), idleMsMax).unref();
  }

  #settle(call: Call, answer: () => void): void {
    call.isOver = true;
    clearTimeout(call.timer);
    call.stopListening();
    answer();
  }

  /** Ends a thread that is stuck. Runs while the thread starts, and while it has not answered requests whose callers are gone. */
  #startWatch(): void {
    if (this.#watch !== undefined) return;
    this.#silentSteps = 0;
    this.#watch = setInterval(() => {
      this.#silentSteps += 1;
      const isAwaited = !this.#isReady || [...this.#calls.values()].some(({ isOver }) => isOver);
      if (!isAwaited) this.#stopWatch();
      else if (this.#silentSteps >= (this.#isReady ? stepsMax.silence : stepsMax.start))
        void this.#end(timeoutError());
    }, stepMs);
  }

  #stopWatch(): void {
    clearInterval(this.#watch);
    this.#watch = undefined;
  }

  async #end(error: Error): Promise<void> {
    const [thread, calls] = [this.#thread, [...this.#calls.values()]];
    if (thread !== undefined && !this.#isReady) this.#startsAgainAt = performance.now() + startPauseMs;
    this.#thread = undefined;
    this.#isReady = false;
    this.#calls.clear();
    this.#stopWatch();
    clearTimeout(this.#idleTimer);
    for (const call of calls) if (!call.isOver) this.#settle(call, () => call.reject(error));
    await thread?.terminate();
  }

  async #resolveHost({ resolve, host }: { resolve: number; host: string }): Promise<void> {
    const { resolveHost } = this.#options;
    if (resolveHost === undefined) return;
    const result = await resolveHost(host).then(
      (addresses): Resolution => ({ addresses }),
      (error): Resolution => ({ error: toPlainError(error) }),
    );
    this.#send({ resolution: resolve, result });
  }

  #send(message: ToThread): void {
    this.#thread?.postMessage(message);
  }
}

/** As that of `AbortSignal.timeout`. */
function timeoutError(): DOMException {
  return new DOMException('The operation was aborted due to timeout', 'TimeoutError');
}
