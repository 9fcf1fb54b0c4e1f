/**
 * Messages between the server and its engine (engine.ts), which run in different threads. Messages are copied or
 * transferred; nothing is shared.
 */

import type { ConnectorOptions } from '../../egress/connector.ts';
import type { ClientCertificate } from '../../egress/tls.ts';
import type { KindArrays } from '../fan_out/fan_out.ts';
import type { PublishedBatch } from '../fan_out/published_batch.ts';
import type { AgentMessageSettings } from '../sending/agent_message.ts';
import type { AttemptSpan } from '../sending/attempt_span.ts';
import type { PresentationSettings } from '../sending/presentation.ts';
import type { HeaderNames } from '../subscriptions/delivery_headers.ts';
import type { Quotas } from '../subscriptions/quotas.ts';
import type { DescribedError } from './described_error.ts';

/** Everything that an engine needs at start. */
export interface EngineSettings {
  databaseUrl: string;
  /** Maximum database connections, besides the one for notifications. */
  connectionsMax: number;
  /** Key material. */
  secret: Uint8Array;
  /** How the engine connects to subscribers. */
  egress: ConnectorOptions;
  clientCertificate: ClientCertificate | null;
  retryScheduleSeconds: readonly number[];
  headerNames: HeaderNames;
  presentation: PresentationSettings;
  quotas: Quotas;
  agents: AgentMessageSettings;
  kinds: KindArrays;
  /** Kinds that a recovery may replay. */
  replayableKinds: KindArrays;
  /** Node ids of earlier engines of this process, which have died. */
  predecessors?: readonly string[];
  /** The name that the operator gave this node. */
  nodeName?: string | null;
  /** Whether to return memory when the thread rests. Blocks it for some 100 ms. */
  collectsGarbage?: boolean;
}

/** Which parts of the engine are working. */
export interface EngineState {
  fanOut: boolean;
  sending: boolean;
}

/** The requests that an engine responds to, and its responses. */
export interface EngineResponses {
  state: EngineState;
  /** In Prometheus text format. */
  metrics: string;
}

export type ToEngine =
  | { type: 'start' }
  /** New events are in the outbox. */
  | { type: 'wake' }
  | { type: 'published'; batch: PublishedBatch }
  /** The bodies of these events were erased. */
  | { type: 'erased'; positions: number[] }
  /** A recovery was started. */
  | { type: 'recover' }
  | { type: 'ask'; id: number; what: keyof EngineResponses }
  | { type: 'stop' };

export type FromEngine =
  /** The engine's node id, sent before the engine joins the other nodes. */
  | { type: 'node'; id: string }
  | { type: 'started' }
  /** @property isOutage whether the database was unavailable, so that the next start may succeed */
  | { type: 'failed'; error: unknown; isOutage: boolean }
  /** For the server's log. */
  | { type: 'warning'; fields: Record<string, unknown>; message: string; error?: DescribedError }
  /** The engine published events itself. */
  | { type: 'wake' }
  /** Whether this engine fans out, from now on. */
  | { type: 'leadership'; leads: boolean }
  | { type: 'span'; span: AttemptSpan }
  /** Notifications proved false. */
  | { type: 'false_hints'; channel: string; count: number }
  /** Bytes of messages received since the last such message, as `messageBytes` counts them. */
  | { type: 'received'; bytes: number }
  /** Undefined if the engine cannot respond. */
  | { type: 'response'; id: number; value: EngineResponses[keyof EngineResponses] | undefined }
  /** The database is in a new epoch. The engine has ended and must be replaced. */
  | { type: 'new_epoch' }
  | { type: 'stopped' };

/** Approximate overhead in bytes of a message, and of each event in it. */
const messageOverheadBytes = 200;
const eventBytes = 200;

/** The memory in bytes that an optional message uses while it is queued; 0 for messages that must be sent. */
export function messageBytes(message: ToEngine): number {
  if (message.type === 'wake') return messageOverheadBytes;
  if (message.type !== 'published') return 0;
  return messageOverheadBytes + message.batch.bodies.length + message.batch.ids.length * eventBytes;
}
