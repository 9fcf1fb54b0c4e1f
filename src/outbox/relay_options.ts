/** What a relay is told when it is made. */

import type { NewEvent } from './event.ts';
import type { RelayStore } from './store.ts';

/** What sends events to the server: `createPublisher` of `nuncio/protect` makes one. */
export interface RelayPublisher {
  /** Resolves when the server has stored all of the events. */
  publish(events: readonly (NewEvent & { id: string })[], options: { signal: AbortSignal }): Promise<unknown>;
}

export interface RelayOptions {
  /** What `postgresOutbox` or `sqliteOutbox` returned. */
  store: RelayStore;
  publisher: RelayPublisher;
  /** Events of one request, 1 to 1,000. Default: 500. */
  batchEvents?: number | undefined;
  /** Bytes of the bodies of one request, 1 to 8,000,000. A larger event is sent alone. Default: 1,000,000. */
  batchBytes?: number | undefined;
  /** Milliseconds between two looks for events while nothing waits, 10 to 3,600,000. Default: 1,000. */
  pollMs?: number | undefined;
  /** Milliseconds of the longest pause after failures, 100 to 3,600,000. Default: 60,000. */
  pauseMaxMs?: number | undefined;
  /** Told how many events were published. */
  onPublished?: ((published: { events: number; durationMs: number }) => void) | undefined;
  /** Told of each event that the server rejects. It is kept: see `rejected` of the outbox. */
  onRejected?: ((rejection: { id: string; kind: string; reason: string }) => void) | undefined;
  /** Told why nothing can be published, and when it is tried again. Default: a process warning, one a minute at most. */
  onError?: ((error: unknown, details: { failures: number; retryInMs: number }) => void) | undefined;
}

export type Settings = { [Name in keyof RelayOptions]-?: NonNullable<RelayOptions[Name]> };

/** Milliseconds between two warnings. */
const warningMs = 60_000;

/** @throws TypeError when an option is missing or not what it may be */
export function readOptions(options: RelayOptions): Settings {
  const { store, publisher } = options;
  if (typeof store?.read !== 'function') throw new TypeError('store must be an outbox');
  if (typeof publisher?.publish !== 'function') throw new TypeError('publisher must have the method publish');
  return {
    store,
    publisher,
    batchEvents: readNumber('batchEvents', options.batchEvents ?? 500, 1, 1_000),
    batchBytes: readNumber('batchBytes', options.batchBytes ?? 1_000_000, 1, 8_000_000),
    pollMs: readNumber('pollMs', options.pollMs ?? 1_000, 10, 3_600_000),
    pauseMaxMs: readNumber('pauseMaxMs', options.pauseMaxMs ?? 60_000, 100, 3_600_000),
    onPublished: guarded(options.onPublished),
    onRejected: guarded(options.onRejected),
    onError: guarded(options.onError ?? createWarning()),
  };
}

function readNumber(name: string, value: number, least: number, most: number): number {
  if (Number.isInteger(value) && value >= least && value <= most) return value;
  throw new TypeError(`${name} is ${value}: it may be ${least} to ${most}`);
}

/** A hook that fails must not end the relay. */
function guarded<Values extends unknown[]>(hook: ((...values: Values) => void) | undefined) {
  return (...values: Values): void => {
    try {
      hook?.(...values);
    } catch (error) {
      process.emitWarning(`a hook of the relay failed: ${(error as Error)?.message}`, 'NuncioOutbox');
    }
  };
}

function createWarning(): NonNullable<RelayOptions['onError']> {
  let warnedAt = Number.NEGATIVE_INFINITY;
  return (error) => {
    if (performance.now() - warnedAt < warningMs) return;
    warnedAt = performance.now();
    process.emitWarning(`events wait to be published: ${(error as Error).message}`, 'NuncioOutbox');
  };
}
