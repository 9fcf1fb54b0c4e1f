/** What carries exchanges, one at a time, whatever the version of HTTP that was agreed on. */

import type { ConnectTimings } from '../../egress/connector.ts';
import type { TracedAttempt } from './attempt_span.ts';
import type { ResponseHeaders } from './http1/response_head.ts';

/** A POST. */
export interface OutgoingRequest {
  /** Like `https://example.com:8443`. */
  origin: string;
  path: string;
  /** Lines like `content-type: application/json`, each with its end (CRLF). */
  headers: string;
  body: Buffer;
  /** Null where it is not part of a trace. */
  traced: TracedAttempt | null;
}

/** What has come of an answer. */
export interface ResponseParts {
  /** Null until a head has come. */
  status: number | null;
  headers: ResponseHeaders | null;
  /** The headers as JSON. */
  headersText: string | null;
  body: Buffer | null;
}

/** Who waits for an answer: exactly one of these is called, once, never before `start` returns. */
export interface Exchange {
  readonly request: OutgoingRequest;
  /** Whether it may still begin: asked again where its first byte had to wait for the other side. */
  readonly mayBegin: boolean;
  /** It may not, and nothing of it was sent. */
  cancel(connection: Connection): void;
  /** The first bytes of the head that counts are here. */
  onHead(): void;
  /** @param isTruncated where the body goes on beyond what is kept @param isReusable whether the connection can be used again */
  onResponse(isTruncated: boolean, isReusable: boolean): void;
  /** @param hasBegun whether any byte of an answer had come */
  onFailure(error: Error, hasBegun: boolean): void;
}

export interface Connection {
  readonly timings: ConnectTimings;
  readonly openedAt: number;
  /** Since when nothing is under way. */
  idleSince: number;
  /** Milliseconds that it may be kept idle. */
  idleMs: number;
  /** False once the other side has ended it, or has sent what nobody had asked for. */
  readonly isUsable: boolean;
  start(exchange: Exchange): void;
  /** What has come of the answer to the exchange that was started last. */
  readonly parts: ResponseParts;
  destroy(): void;
}

/** Is not HTTP, or goes beyond a limit. */
export class ProtocolError extends Error {
  override readonly name = 'ProtocolError';
}
