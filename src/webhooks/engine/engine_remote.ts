/**
 * The engine as the server sees it: somewhere else, reached by messages. It runs in a thread of its own, so that
 * requests (a batch of a thousand events is read and checked in some ten milliseconds) and deliveries do not wait for
 * each other, and the second processor of a machine is used. What it cannot go on after ends the process, as an error
 * of the server's own would.
 *
 *   made (the thread loads its code) → started → stopped
 */

import { MessageChannel, Worker } from 'node:worker_threads';
import type { StoredEvent } from '../../events/publish.ts';
import { heldBy, packEvents } from '../fan_out/published_batch.ts';
import type { AttemptSpan } from '../sending/attempt_span.ts';
import { runEngine } from './engine.ts';
import {
  type EngineAnswers,
  type EngineSettings,
  type EngineState,
  type FromEngine,
  type ToEngine,
  weightOf,
} from './engine_messages.ts';

/** Milliseconds that an answer is waited for: an engine that does not give it in time does not get on. */
const answerTimeoutMs = 2_000;

/**
 * Bytes of events and wakes that wait to be taken by the engine at most. What comes past that it is not told: it looks
 * for itself every second, and reads from the database what it was not given.
 */
const untakenBytesMax = 33_554_432;

/**
 * Mebibytes for young objects at most (twice V8's own measure): what a delivery needs from its start to the writing of
 * its outcome should not outlive two collections, after which it would be copied to the old ones.
 */
const youngMebibytesMax = 96;
/**
 * And for all others at most. Far more than the engine has (50 MiB were live with a backlog of a million; bodies stand
 * elsewhere): by this number V8 decides how much may become garbage before it looks for it.
 */
const oldMebibytesMax = 1_024;

export interface EngineOptions {
  settings: EngineSettings;
  /** Where it runs: a thread of its own, or this one, beside everything else. */
  place: 'thread' | 'here';
  /** For the log. */
  onWarning: (fields: Record<string, unknown>, message: string) => void;
  /** The engine has written events itself. */
  onWake: () => void;
  onSpan: (span: AttemptSpan) => void;
}

/** What carries the messages. */
interface Carrier {
  postMessage: (message: ToEngine, handedOver?: ArrayBuffer[]) => void;
  end: () => Promise<void>;
}

export class RemoteEngine {
  readonly #options: EngineOptions;
  readonly #carrier: Carrier;
  readonly #asked = new Map<number, (value: unknown) => void>();
  readonly #started = Promise.withResolvers<void>();
  readonly #stopped = Promise.withResolvers<void>();
  #count = 0;
  #untakenBytes = 0;
  #isStarted = false;
  #isStopping = false;

  constructor(options: EngineOptions) {
    this.#options = options;
    // Whoever starts hears of it; before, nobody does.
    this.#started.promise.catch(() => {});
    const onMessage = (message: FromEngine) => this.#take(message);
    this.#carrier =
      options.place === 'thread'
        ? openThread(options.settings, onMessage, (error) => this.#fail(error))
        : openHere(options.settings, onMessage);
  }

  /** @throws Error of the database where it cannot be reached */
  async start(): Promise<void> {
    this.#carrier.postMessage({ type: 'start' });
    await this.#started.promise;
    this.#isStarted = true;
  }

  /** Of events and wakes that the engine was told and has not taken, about: bounded, also where it stands still. */
  get untakenBytes(): number {
    return this.#untakenBytes;
  }

  /** There are new events. */
  wake(): void {
    this.#tellIfRoom({ type: 'wake' });
  }

  /** Events that were just stored, so that they need not be read. @param events those of one transaction */
  remember(events: readonly StoredEvent[]): void {
    if (events.length === 0 || this.#untakenBytes >= untakenBytesMax) return;
    const batch = packEvents(events);
    this.#tellIfRoom({ type: 'published', batch }, heldBy(batch));
  }

  /** The bodies of these events were erased. */
  forget(positions: number[]): void {
    this.#carrier.postMessage({ type: 'erased', positions });
  }

  /** There is a new recovery. */
  recover(): void {
    this.#carrier.postMessage({ type: 'recover' });
  }

  async state(): Promise<EngineState> {
    return (await this.#ask('state')) ?? { fanOut: false, sending: false };
  }

  /** In Prometheus' text format; empty where the engine does not answer. */
  async metrics(): Promise<string> {
    return (await this.#ask('metrics')) ?? '';
  }

  /** Finishes what is under way. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#carrier.postMessage({ type: 'stop' });
    await this.#stopped.promise;
    await this.#carrier.end();
  }

  async #ask<K extends keyof EngineAnswers>(what: K): Promise<EngineAnswers[K] | undefined> {
    if (!this.#isStarted || this.#isStopping) return undefined;
    this.#count += 1;
    const id = this.#count;
    const { promise, resolve } = Promise.withResolvers<unknown>();
    this.#asked.set(id, resolve);
    const timer = setTimeout(() => resolve(undefined), answerTimeoutMs);
    this.#carrier.postMessage({ type: 'ask', id, what });
    const answer = await promise;
    clearTimeout(timer);
    this.#asked.delete(id);
    return answer as EngineAnswers[K] | undefined;
  }

  #tellIfRoom(message: ToEngine, handedOver?: ArrayBuffer[]): void {
    if (this.#untakenBytes >= untakenBytesMax) return;
    this.#untakenBytes += weightOf(message);
    this.#carrier.postMessage(message, handedOver);
  }

  #take(message: FromEngine): void {
    const { onWarning, onWake, onSpan } = this.#options;
    if (message.type === 'started') this.#started.resolve();
    else if (message.type === 'failed') this.#fail(message.error);
    else if (message.type === 'warning') onWarning(message.fields, message.message);
    else if (message.type === 'wake') onWake();
    else if (message.type === 'span') onSpan(message.span);
    else if (message.type === 'taken') this.#untakenBytes -= message.bytes;
    else if (message.type === 'answer') this.#asked.get(message.id)?.(message.value);
    else this.#stopped.resolve();
  }

  /** What is under way is repeated by whoever holds the lanes next. */
  #fail(error: unknown): void {
    this.#started.reject(error);
    this.#stopped.resolve();
    if (this.#isStarted && !this.#isStopping) throw error;
  }
}

function openThread(
  settings: EngineSettings,
  onMessage: (message: FromEngine) => void,
  onEnd: (error: unknown) => void,
): Carrier {
  // What npm publishes is JavaScript.
  const file = import.meta.url.endsWith('.ts') ? './engine_thread.ts' : './engine_thread.js';
  const thread = new Worker(new URL(file, import.meta.url), {
    workerData: settings,
    name: 'engine',
    resourceLimits: { maxYoungGenerationSizeMb: youngMebibytesMax, maxOldGenerationSizeMb: oldMebibytesMax },
  });
  thread.on('message', onMessage).on('error', onEnd);
  thread.on('exit', () => onEnd(new Error('the thread of the delivery engine has ended')));
  return {
    postMessage: (message, handedOver) => thread.postMessage(message, handedOver ?? []),
    async end() {
      await thread.terminate();
    },
  };
}

function openHere(settings: EngineSettings, onMessage: (message: FromEngine) => void): Carrier {
  const { port1, port2 } = new MessageChannel();
  runEngine(settings, port2);
  port1.on('message', onMessage);
  return {
    postMessage: (message, handedOver) => port1.postMessage(message, handedOver ?? []),
    end: async () => port1.close(),
  };
}
