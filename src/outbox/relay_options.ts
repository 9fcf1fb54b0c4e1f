/** The options of `createRelay`. */

import type { NewEvent } from './event.ts';
import type { RelayStore } from './store.ts';

/** Sends events to the server. `createPublisher` of `nuncio/protect` returns one. */
export interface RelayPublisher {
  /** Resolves when the server has stored all events. */
  publish(events: readonly (NewEvent & { id: string })[], options: { signal: AbortSignal }): Promise<unknown>;
}

export interface RelayOptions {
  /** The result of `postgresOutbox` or `sqliteOutbox`. */
  store: RelayStore;
  publisher: RelayPublisher;
  /** Maximum number of events in a request, between 1 and 1,000. Default: 500. */
  batchEvents?: number | undefined;
  /**
   * Maximum total size of the bodies in a request, between 1 and 8,000,000 bytes. A larger event is sent alone.
   * Default: 1,000,000.
   */
  batchBytes?: number | undefined;
  /** Poll interval of an idle relay, between 10 and 3,600,000 milliseconds. Default: 1,000. */
  pollMs?: number | undefined;
  /** Longest pause after failures, between 100 and 3,600,000 milliseconds. Default: 60,000. */
  pauseMaxMs?: number | undefined;
  /** Called after each request that published events. */
  onPublished?: ((published: { events: number; durationMs: number }) => void) | undefined;
  /** Called for each rejected event. The outbox keeps the event: see `rejected`. */
  onRejected?: ((rejection: { id: string; kind: string; reason: string }) => void) | undefined;
  /** Called when events cannot be published, with the time until the retry. Default: a process warning, maximum one per minute. */
  onError?: ((error: unknown, details: { failures: number; retryInMs: number }) => void) | undefined;
}

export type Settings = { [Name in keyof RelayOptions]-?: NonNullable<RelayOptions[Name]> };

/** Minimum interval between warnings. */
const warningIntervalMs = 60_000;

/** @throws TypeError when an option is missing or invalid */
export function readOptions(options: RelayOptions): Settings {
  const { store, publisher } = options;
  if (typeof store?.read !== 'function') throw new TypeError('store must be an outbox');
  if (typeof publisher?.publish !== 'function') throw new TypeError('publisher must have a publish method');
  return {
    store,
    publisher,
    batchEvents: readNumber('batchEvents', options.batchEvents ?? 500, 1, 1_000),
    batchBytes: readNumber('batchBytes', options.batchBytes ?? 1_000_000, 1, 8_000_000),
    pollMs: readNumber('pollMs', options.pollMs ?? 1_000, 10, 3_600_000),
    pauseMaxMs: readNumber('pauseMaxMs', options.pauseMaxMs ?? 60_000, 100, 3_600_000),
    onPublished: guardHook(options.onPublished),
    onRejected: guardHook(options.onRejected),
    onError: guardHook(options.onError ?? createWarning()),
  };
}

function readNumber(name: string, value: number, min: number, max: number): number {
  if (Number.isInteger(value) && value >= min && value <= max) return value;
  throw new TypeError(`${name} is ${value}: it must be an integer between ${min} and ${max}`);
}

/** Wraps a hook so that its errors become process warnings and do not stop the relay. */
function guardHook<Values extends unknown[]>(hook: ((...values: Values) => void) | undefined) {
  return (...values: Values): void => {
    try {
      hook?.(...values);
    } catch (error) {
      process.emitWarning(`a relay hook failed: ${(error as Error)?.message}`, 'NuncioOutbox');
    }
  };
}

function createWarning(): NonNullable<RelayOptions['onError']> {
  let warnedAt = Number.NEGATIVE_INFINITY;
  return (error) => {
    if (performance.now() - warnedAt < warningIntervalMs) return;
    warnedAt = performance.now();
    process.emitWarning(`cannot publish events: ${(error as Error).message}`, 'NuncioOutbox');
  };
}
