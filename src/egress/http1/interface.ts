/**
 * The interface between an exchange and the connection that carries it. A connection carries one exchange at a time.
 */

import type { ConnectTimings } from '../connector.ts';
import type { ResponseHeaders } from './response_head.ts';

/** A request to an origin. */
export interface HttpRequest {
  /** Default: `POST`. A `GET` has no body. */
  method?: 'GET' | 'POST';
  path: string;
  /** Lines like `content-type: application/json`, each with its CRLF. */
  headers: string;
  body: Buffer;
  /** Bytes of the response body that are kept, if not `responseBodyBytesMax`. */
  responseBytesMax?: number;
  /** Who causes the request; default: nobody with a name. */
  tenant?: string;
}

/** The parts of a response that have arrived. */
export interface ResponseParts {
  /** Null until the head has arrived. */
  status: number | null;
  headers: ResponseHeaders | null;
  /** The headers as JSON. */
  headersText: string | null;
  body: Buffer | null;
}

/**
 * Receives the result of a request. The connection calls exactly one of `onResponse` and `onFailure`, once,
 * and never before `start` returns.
 */
export interface Exchange {
  readonly request: HttpRequest;
  /** The final response's head has arrived. */
  onHead(): void;
  /**
   * @param isTruncated whether the body is longer than what is kept
   * @param isReusable whether the connection can carry another exchange
   */
  onResponse(isTruncated: boolean, isReusable: boolean): void;
  /** @param hasResponded whether the peer responded, or may have: the request must not be sent again */
  onFailure(error: Error, hasResponded: boolean): void;
}

export interface Connection {
  readonly timings: ConnectTimings;
  readonly openedAt: number;
  /** When the connection became idle, on the monotonic clock. */
  idleSince: number;
  /** Milliseconds that the connection may stay idle. */
  idleMs: number;
  /** False once the peer has closed the connection or sent unsolicited bytes. */
  readonly isUsable: boolean;
  /** The tenant for whose exchange it was opened. */
  readonly openedFor: string | null;
  start(exchange: Exchange): void;
  /** What has arrived of the response to the current exchange. */
  readonly parts: ResponseParts;
  /** @param mayLinger whether a host that responded early may still read the rest of the request. Default: it may */
  destroy(mayLinger?: boolean): void;
}

/** The peer's bytes are not HTTP, or exceed a limit. */
export class ProtocolError extends Error {
  override readonly name = 'ProtocolError';
}
