/**
 * The server's side of the engine. The engine runs in its own thread, so that requests and deliveries do not wait for each
 * other (parsing a batch of a thousand events takes some ten milliseconds) and a second processor is used. If the thread dies
 * from an unexpected error or lack of memory, it is restarted while the server keeps running. An engine that keeps dying ends
 * the process.
 *
 *   created (the thread loads its code) → started ⇄ dead (nothing is delivered, and /readyz reports it) → stopped
 *   started → ended in a new epoch of the database → restarted at once
 */

import type { StoredEvent } from '../../events/store.ts';
import { packEvents, transferListOf } from '../fan_out/published_batch.ts';
import type { AttemptSpan } from '../sending/attempt_span.ts';
import { reviveError } from './described_error.ts';
import {
  type EngineResponses,
  type EngineSettings,
  type EngineState,
  type FromEngine,
  messageBytes,
  type ToEngine,
} from './engine_messages.ts';
import { type EngineTransport, openHere, openThread } from './engine_transport.ts';
import { Restarts } from './restarts.ts';

/** Milliseconds to wait for a response. An engine that does not respond in time is not working. */
const responseTimeoutMs = 2_000;

/**
 * Maximum bytes of events and wake-ups that are queued for the engine. Beyond that they are not sent: the engine
 * polls every second and reads the events from the database.
 */
const queuedBytesMax = 33_554_432;

/** Milliseconds before an engine is restarted after a database outage. */
const outagePauseMs = 1_000;

/** Kept by the server's side, because the engine's own metrics end with it. */
export const restartMetric = {
  name: 'nuncio_engine_restarts_total',
  type: 'counter',
  help: 'Times that the delivery engine died and was started again.',
} as const;

export interface EngineOptions {
  settings: EngineSettings;
  /** In a thread of its own, or in the server's thread. */
  place: 'thread' | 'here';
  /** For the server's log. */
  onWarning: (fields: Record<string, unknown>, message: string) => void;
  onError: (fields: Record<string, unknown>, message: string) => void;
  /** The engine published events itself. */
  onWake: () => void;
  /** The engine became the leader of the fan-out, or is no longer the leader. */
  onLeadership: (leads: boolean) => void;
  onSpan: (span: AttemptSpan) => void;
  /** Notifications on a channel proved false. */
  onFalseHints: (channel: string, count: number) => void;
}

export class EngineHandle {
  readonly #options: EngineOptions;
  #transport: EngineTransport;
  readonly #pending = new Map<number, (value: unknown) => void>();
  readonly #started = Promise.withResolvers<void>();
  readonly #stopped = Promise.withResolvers<void>();
  #count = 0;
  #queuedBytes = 0;
  /** Whether an engine has started once. From then on, one that dies is restarted. */
  #isStarted = false;
  /** Whether the current engine is running. */
  #isUp = false;
  #isStopping = false;
  /** The node id of the current engine, and those of engines that died, whose leases must be released. */
  #node: string | undefined;
  #deadNodes: string[] = [];
  /** The error of a thread that is being terminated. */
  #cause: unknown;
  #isOutage = false;
  /** Whether the engine ends because of a new database epoch and not because of an error. */
  #isNewEpoch = false;
  readonly #restarts = new Restarts();
  #restartTimer: NodeJS.Timeout | undefined;

  constructor(options: EngineOptions) {
    this.#options = options;
    // Only `start` reports the error.
    this.#started.promise.catch(() => {});
    this.#transport = this.#open();
  }

  /** @throws Error of the database if it cannot be reached */
  async start(): Promise<void> {
    this.#transport.postMessage({ type: 'start' });
    await this.#started.promise;
  }

  /** Approximate bytes that are queued for the engine. Bounded even if the engine hangs. */
  get queuedBytes(): number {
    return this.#queuedBytes;
  }

  /** New events are in the outbox. */
  wake(): void {
    this.#postIfRoom({ type: 'wake' });
  }

  /**
   * Passes on events that were just stored, so that the engine need not read them.
   * @param events events of one transaction
   */
  remember(events: readonly StoredEvent[]): void {
    if (events.length === 0 || this.#queuedBytes >= queuedBytesMax) return;
    const batch = packEvents(events);
    this.#postIfRoom({ type: 'published', batch }, transferListOf(batch));
  }

  /** The bodies of these events were erased. */
  forget(positions: number[]): void {
    this.#transport.postMessage({ type: 'erased', positions });
  }

  /** A recovery was started. */
  recover(): void {
    this.#transport.postMessage({ type: 'recover' });
  }

  async state(): Promise<EngineState> {
    return (await this.#ask('state')) ?? { fanOut: false, sending: false };
  }

  /** In Prometheus text format; without the engine's own metrics if it does not respond. */
  async metrics(): Promise<string> {
    const { name, type, help } = restartMetric;
    const restarts = [`# HELP ${name} ${help}`, `# TYPE ${name} ${type}`, `${name} ${this.#restarts.count}`];
    return [...restarts, (await this.#ask('metrics')) ?? ''].join('\n');
  }

  /** Stops the engine after attempts in flight have finished. */
  async stop(): Promise<void> {
    const isDead = this.#isStarted && !this.#isUp;
    this.#isStopping = true;
    clearTimeout(this.#restartTimer);
    this.#transport.postMessage({ type: 'stop' });
    // A dead engine has nothing to finish, and one that is restarting has started nothing.
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
    const response = await promise;
    clearTimeout(timer);
    this.#pending.delete(id);
    return response as EngineResponses[K] | undefined;
  }

  #postIfRoom(message: ToEngine, transferList?: ArrayBuffer[]): void {
    if (this.#queuedBytes >= queuedBytesMax) return;
    this.#queuedBytes += messageBytes(message);
    this.#transport.postMessage(message, transferList);
  }

  #receive(message: FromEngine): void {
    const { onWarning, onWake, onLeadership, onSpan, onFalseHints } = this.#options;
    if (message.type === 'node') this.#node = message.id;
    else if (message.type === 'started') this.#onStarted();
    else if (message.type === 'new_epoch') this.#onNewEpoch();
    else if (message.type === 'failed') this.#onFailed(message.error, message.isOutage);
    else if (message.type === 'warning') {
      const { fields, message: text, error } = message;
      onWarning(error === undefined ? fields : { ...fields, err: reviveError(error) }, text);
    } else if (message.type === 'wake') onWake();
    else if (message.type === 'leadership') onLeadership(message.leads);
    else if (message.type === 'span') onSpan(message.span);
    else if (message.type === 'false_hints') onFalseHints(message.channel, message.count);
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

  /** The engine reported an error after which it cannot continue. */
  #onFailed(error: unknown, isOutage: boolean): void {
    if (this.#options.place === 'here' || !this.#isStarted || this.#isStopping) {
      this.#giveUp(error);
      return;
    }
    this.#cause = error;
    // No engine can start while the database is unavailable. This does not count as a failure of the engine.
    this.#isOutage = isOutage && !this.#isUp;
    // The engine's attempts and connections end with the thread.
    this.#transport.end().catch(() => {});
  }

  /** The engine belongs to an earlier epoch of the database. */
  #onNewEpoch(): void {
    this.#isUp = false;
    this.#isNewEpoch = true;
    const ended = this.#transport.end();
    if (this.#options.place === 'here') this.#onDeath(undefined);
    else ended.catch(() => {});
  }

  /** The thread is gone. The next engine attempts again what was in flight. */
  #onDeath(error: unknown): void {
    const isOutage = this.#isOutage;
    const isNewEpoch = this.#isNewEpoch;
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
    this.#options.onLeadership(false);
    for (const resolve of this.#pending.values()) resolve(undefined);
    if (isNewEpoch) {
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
