/**
 * The engine as the server sees it: somewhere else, reached by messages. It runs in a thread of its own, so that
 * requests (a batch of a thousand events is read and checked in some ten milliseconds) and deliveries do not wait for
 * each other, and the second processor of a machine is used. A thread that dies (an error that nobody expected, or no
 * memory left) is started again, and the server goes on meanwhile; an engine that keeps dying ends the process.
 *
 *   made (the thread loads its code) → started ⇄ (dead: nothing is delivered, /readyz says so) → stopped
 *   started → ended by itself, in another epoch of the database → started again at once
 */

import type { StoredEvent } from '../../events/store.ts';
import { packEvents, transferListOf } from '../fan_out/published_batch.ts';
import type { AttemptSpan } from '../sending/attempt_span.ts';
import {
  type EngineResponses,
  type EngineSettings,
  type EngineState,
  type FromEngine,
  type ToEngine,
  weightOf,
} from './engine_messages.ts';
import { type EngineTransport, openHere, openThread } from './engine_transport.ts';
import { Restarts } from './restarts.ts';

/** Milliseconds that an answer is waited for: an engine that does not give it in time does not get on. */
const responseTimeoutMs = 2_000;

/**
 * Bytes of events and wakes that wait to be taken by the engine at most. What comes past that it is not told: it looks
 * for itself every second, and reads from the database what it was not given.
 */
const queuedBytesMax = 33_554_432;

/** Milliseconds until the next try to start an engine again, where the database was away. */
const outagePauseMs = 1_000;

export interface EngineOptions {
  settings: EngineSettings;
  /** Where it runs: a thread of its own, or this one, beside everything else. */
  place: 'thread' | 'here';
  /** For the log. */
  onWarning: (fields: Record<string, unknown>, message: string) => void;
  onError: (fields: Record<string, unknown>, message: string) => void;
  /** The engine has written events itself. */
  onWake: () => void;
  onSpan: (span: AttemptSpan) => void;
}

export class RemoteEngine {
  readonly #options: EngineOptions;
  #transport: EngineTransport;
  readonly #pending = new Map<number, (value: unknown) => void>();
  readonly #started = Promise.withResolvers<void>();
  readonly #stopped = Promise.withResolvers<void>();
  #count = 0;
  #queuedBytes = 0;
  /** Whether an engine was started once: from then on one that dies is started again. */
  #isStarted = false;
  /** Whether the engine works, as far as it has told. */
  #isUp = false;
  #isStopping = false;
  /** Of this engine, and of those that died before it, whose leases nobody else may wait for. */
  #node: string | undefined;
  #deadNodes: string[] = [];
  /** What a thread that is being ended could not go on after. */
  #cause: unknown;
  #isOutage = false;
  /** Whether it ends because the database has begun another epoch, and not for a fault of its own. */
  #isNewEpoch = false;
  readonly #restarts = new Restarts();
  #restartTimer: NodeJS.Timeout | undefined;

  constructor(options: EngineOptions) {
    this.#options = options;
    // Whoever starts hears of it; before, nobody does.
    this.#started.promise.catch(() => {});
    this.#transport = this.#open();
  }

  /** @throws Error of the database where it cannot be reached */
  async start(): Promise<void> {
    this.#transport.postMessage({ type: 'start' });
    await this.#started.promise;
  }

  /** Of events and wakes that the engine was told and has not taken, about: bounded, also where it stands still. */
  get queuedBytes(): number {
    return this.#queuedBytes;
  }

  /** There are new events. */
  wake(): void {
    this.#postIfRoom({ type: 'wake' });
  }

  /** Events that were just stored, so that they need not be read. @param events those of one transaction */
  remember(events: readonly StoredEvent[]): void {
    if (events.length === 0 || this.#queuedBytes >= queuedBytesMax) return;
    const batch = packEvents(events);
    this.#postIfRoom({ type: 'published', batch }, transferListOf(batch));
  }

  /** The bodies of these events were erased. */
  forget(positions: number[]): void {
    this.#transport.postMessage({ type: 'erased', positions });
  }

  /** There is a new recovery. */
  recover(): void {
    this.#transport.postMessage({ type: 'recover' });
  }

  async state(): Promise<EngineState> {
    return (await this.#ask('state')) ?? { fanOut: false, sending: false };
  }

  /** In Prometheus' text format; without the engine's own where it does not respond. */
  async metrics(): Promise<string> {
    const name = 'nuncio_engine_restarts_total';
    const restarts = [
      `# HELP ${name} Times that the delivery engine died and was started again.`,
      `# TYPE ${name} counter`,
      `${name} ${this.#restarts.count}`,
    ];
    return [...restarts, (await this.#ask('metrics')) ?? ''].join('\n');
  }

  /** Finishes what is under way. */
  async stop(): Promise<void> {
    const isDead = this.#isStarted && !this.#isUp;
    this.#isStopping = true;
    clearTimeout(this.#restartTimer);
    this.#transport.postMessage({ type: 'stop' });
    // One that died has nothing to finish; one that is being started again has begun nothing.
    if (!isDead) await this.#stopped.promise;
    await this.#transport.end();
  }

  async #ask<K extends keyof EngineResponses>(what: K): Promise<EngineResponses[K] | undefined> {
    if (!this.#isUp || this.#isStopping) return undefined;
    this.#count += 1;
    const id = this.#count;
    const { promise, resolve } = Promise.withResolvers<unknown>();
    this.#pending.set(id, resolve);
    const timer = setTimeout(() => resolve(undefined), responseTimeoutMs);
    this.#transport.postMessage({ type: 'ask', id, what });
    const answer = await promise;
    clearTimeout(timer);
    this.#pending.delete(id);
    return answer as EngineResponses[K] | undefined;
  }

  #postIfRoom(message: ToEngine, transferList?: ArrayBuffer[]): void {
    if (this.#queuedBytes >= queuedBytesMax) return;
    this.#queuedBytes += weightOf(message);
    this.#transport.postMessage(message, transferList);
  }

  #receive(message: FromEngine): void {
    const { onWarning, onWake, onSpan } = this.#options;
    if (message.type === 'node') this.#node = message.id;
    else if (message.type === 'started') this.#onStarted();
    else if (message.type === 'new_epoch') this.#onNewEpoch();
    else if (message.type === 'failed') this.#onFailed(message.error, message.isOutage);
    else if (message.type === 'warning') onWarning(message.fields, message.message);
    else if (message.type === 'wake') onWake();
    else if (message.type === 'span') onSpan(message.span);
    else if (message.type === 'received') this.#queuedBytes -= message.bytes;
    else if (message.type === 'response') this.#pending.get(message.id)?.(message.value);
    else this.#stopped.resolve();
  }

  #open(): EngineTransport {
    const { settings, place } = this.#options;
    const predecessors = this.#deadNodes;
    const onMessage = (message: FromEngine) => {
      if (this.#transport === transport) this.#receive(message);
    };
    const transport =
      place === 'here'
        ? openHere({ ...settings, predecessors }, onMessage)
        : openThread({ ...settings, predecessors }, onMessage, (error) =>
            this.#onDeath(this.#cause ?? error),
          );
    return transport;
  }

  #onStarted(): void {
    this.#isStarted = true;
    this.#isUp = true;
    this.#deadNodes = [];
    this.#started.resolve();
  }

  /** The engine cannot go on. */
  #onFailed(error: unknown, isOutage: boolean): void {
    if (this.#options.place === 'here' || !this.#isStarted || this.#isStopping) {
      this.#giveUp(error);
      return;
    }
    this.#cause = error;
    // While the database is away no engine can start: that says nothing of the engine.
    this.#isOutage = isOutage && !this.#isUp;
    // What it holds ends with it.
    this.#transport.end().catch(() => {});
  }

  /** The engine belongs to an epoch of the database that is over. */
  #onNewEpoch(): void {
    this.#isUp = false;
    this.#isNewEpoch = true;
    const ended = this.#transport.end();
    if (this.#options.place === 'here') this.#onDeath(undefined);
    else ended.catch(() => {});
  }

  /** The thread is gone. What was in flight is attempted again by the next one. */
  #onDeath(error: unknown): void {
    const isOutage = this.#isOutage;
    const isRenewal = this.#isNewEpoch;
    this.#isUp = false;
    this.#cause = undefined;
    this.#isOutage = false;
    this.#isNewEpoch = false;
    if (!this.#isStarted || this.#isStopping) {
      this.#giveUp(error);
      return;
    }
    if (this.#node !== undefined) this.#deadNodes.push(this.#node);
    this.#queuedBytes = 0;
    for (const resolve of this.#pending.values()) resolve(undefined);
    if (isRenewal) {
      this.#startAgain();
      return;
    }
    const pauseMs = isOutage ? outagePauseMs : this.#restarts.next(performance.now());
    if (pauseMs === undefined) throw error;
    const { message } = error as Error;
    this.#options.onError({ err: error, restarts: this.#restarts.count }, `delivery engine died: ${message}`);
    this.#restartTimer = setTimeout(() => this.#startAgain(), pauseMs);
  }

  #startAgain(): void {
    this.#transport = this.#open();
    this.#transport.postMessage({ type: 'start' });
  }

  #giveUp(error: unknown): void {
    this.#started.reject(error);
    this.#stopped.resolve();
    if (this.#isStarted && !this.#isStopping) throw error;
  }
}
