/**
 * What is said between the server and its engine (engine.ts), which runs in a thread of its own: all of it is copied
 * or handed over, nothing is shared.
 */

import type { ConnectorOptions } from '../../egress/connector.ts';
import type { KindArrays } from '../fan_out/fan_out.ts';
import type { PublishedBatch } from '../fan_out/published_batch.ts';
import type { AttemptSpan } from '../sending/attempt_span.ts';
import type { HeaderNames } from '../sending/delivery_request.ts';
import type { Quotas } from '../subscriptions/quotas.ts';

/** All that an engine has to know at its start. */
export interface EngineSettings {
  databaseUrl: string;
  /** Connections to the database at most, beside the one for notifications. */
  connectionsMax: number;
  /** Key material. */
  secret: Uint8Array;
  /** How subscribers are connected to. */
  egress: ConnectorOptions;
  retryScheduleSeconds: readonly number[];
  headerNames: HeaderNames;
  quotas: Quotas;
  kinds: KindArrays;
  /** Those that a recovery may bring from before a subscription was. */
  replayableKinds: KindArrays;
  /** Nodes that engines of this process were, which have died. */
  predecessors?: readonly string[];
  /** Of this node, as the operator has named it. */
  nodeName?: string | null;
}

/** Which parts of the engine do what they are there for. */
export interface EngineState {
  fanOut: boolean;
  sending: boolean;
}

/** What an engine can be asked, and what it answers. */
export interface EngineResponses {
  state: EngineState;
  /** In Prometheus' text format. */
  metrics: string;
}

export type ToEngine =
  | { type: 'start' }
  /** There are new events. */
  | { type: 'wake' }
  | { type: 'published'; batch: PublishedBatch }
  /** Their bodies are no more. */
  | { type: 'erased'; positions: number[] }
  /** There is a new recovery. */
  | { type: 'recover' }
  | { type: 'ask'; id: number; what: keyof EngineResponses }
  | { type: 'stop' };

export type FromEngine =
  /** Its id among those that send, told before it joins them. */
  | { type: 'node'; id: string }
  | { type: 'started' }
  /** @property isOutage whether the database was away: the next try may succeed */
  | { type: 'failed'; error: unknown; isOutage: boolean }
  /** For the log. */
  | { type: 'warning'; fields: Record<string, unknown>; message: string }
  /** The engine has written events itself. */
  | { type: 'wake' }
  | { type: 'span'; span: AttemptSpan }
  /** So many bytes of events and wakes, as `weightOf` counts them, have been taken since this was told last. */
  | { type: 'received'; bytes: number }
  /** Undefined where it cannot be told. */
  | { type: 'response'; id: number; value: EngineResponses[keyof EngineResponses] | undefined }
  /** The database is not the one that it was: the engine has ended itself, and another one is to start. */
  | { type: 'new_epoch' }
  | { type: 'stopped' };

/** Bytes that a message takes beside the bodies in it, about, and each event of it. */
const messageBytes = 200;
const eventBytes = 200;

/** What a message that may be left out takes while it waits to be read, in bytes; 0 for all others. */
export function weightOf(message: ToEngine): number {
  if (message.type === 'wake') return messageBytes;
  if (message.type !== 'published') return 0;
  return messageBytes + message.batch.bodies.length + message.batch.ids.length * eventBytes;
}
