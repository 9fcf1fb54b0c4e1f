/**
 * One exchange: a POST request and its result. The sender assigns a connection, the connection reports to the exchange, and
 * the exchange reports its result once.
 *
 *   waiting for a connection → request written → response head → response body → done
 *   any state → done, by an error, the timer or a cancellation
 *   kept connection closed after the whole request, before any response byte → one more try on a new connection
 */

import type { ConnectTimings } from '../../egress/connector.ts';
import { EgressError } from '../../egress/error.ts';
import {
  type Connection,
  type Exchange,
  type HttpRequest,
  ProtocolError,
} from '../../egress/http1/interface.ts';
import type { HeadCache, ResponseHeaders } from '../../egress/http1/response_head.ts';
import { BagItem } from '../../shared/bag.ts';
import type { AttemptError } from './attempt_error.ts';
import type { TracedAttempt } from './attempt_span.ts';

/** Headers and body of most responses. Their results need no turns, which cost some percent of the rate of deliveries. */
const fewBytes = 512;

export interface OutgoingRequest extends HttpRequest {
  /** Like `https://example.com:8443`. */
  origin: string;
  /** Whether the connection presents the deployment's client certificate. */
  isMutual?: boolean;
  /** Null if the attempt is not traced. */
  traced: TracedAttempt | null;
}

export interface ExchangeResult {
  /** Milliseconds on the monotonic clock (`performance.now`). */
  readonly startedAt: number;
  readonly endedAt: number;
  readonly firstByteAt: number | null;
  readonly status: number | null;
  readonly headers: ResponseHeaders | null;
  /** The headers as JSON. */
  readonly headersText: string | null;
  readonly body: Buffer | null;
  readonly truncated: boolean;
  /** Null if a response arrived, whatever its status. */
  readonly error: Exclude<AttemptError, 'unexpected_status'> | null;
  /** Details of an error: of a certificate, a handshake or a request for a token. */
  readonly reason: string | null;
  /** Whether the exchange had a connection, kept or new. */
  readonly wasConnected: boolean;
  /** Timings of the connection that the exchange opened; null if it used a kept one. */
  readonly connection: ConnectTimings | null;
  /** Whether the exchange was stopped before its first byte. */
  readonly isCancelled: boolean;
}

/**
 * What can stop an exchange. An exchange is cancelled if the count has grown by the time its first byte would be
 * sent.
 */
export interface Stoppable {
  /** Grows with each stop. */
  readonly stopCount: number;
}

export const unstoppable: Stoppable = { stopCount: 0 };

/** Decides which connections one exchange may open and keep. */
export interface AddressGate {
  /**
   * Called before a connection is opened, and again if it reached another address. If the address has no room, the exchange is cancelled.
   * @param key from `addressKey`
   */
  admit(key: string): boolean;
  /** Whether the connection may carry another exchange. A 2xx always allows it. */
  readonly keepsConnection: boolean;
}

/** What may prevent an exchange. */
export interface SendRules {
  /** What can stop the exchange before its first byte. */
  stoppable?: Stoppable;
  gate?: AddressGate;
  /** Milliseconds for the whole exchange, if not `exchangeTimeoutMs`. */
  timeoutMs?: number;
}

/** The connections to one origin. */
export interface OriginPool {
  origin: URL;
  /** Whether its connections present the client certificate. */
  isMutual: boolean;
  /** The most recently used connection is last. */
  idle: Connection[];
  headCache: HeadCache;
}

export interface ExchangeOwner {
  mayBegin: () => boolean;
  /** @param isReusable whether the exchange's connection can carry another exchange */
  onEnd: (exchange: SentExchange<unknown>, isReusable: boolean) => void;
  /** The result has a response that takes long to search. @param done takes the result. Called once, at once or later */
  onLongResult: (tenant: string, done: () => void) => void;
  /** A kept connection failed before it could be used; a new one may work. */
  onTryAgain: (exchange: SentExchange<unknown>) => void;
}

/** An exchange and, in the end, its result. */
export class SentExchange<T> extends BagItem implements Exchange, ExchangeResult {
  readonly request: OutgoingRequest;
  readonly pool: OriginPool;
  readonly startedAt = performance.now();
  /** Milliseconds of waiting for a turn, which are not the subscriber's. */
  waitedMs = 0;
  endedAt = 0;
  firstByteAt: number | null = null;
  status: number | null = null;
  headers: ResponseHeaders | null = null;
  headersText: string | null = null;
  body: Buffer | null = null;
  truncated = false;
  error: ExchangeResult['error'] = null;
  reason: string | null = null;
  /** The connection that carries it. */
  via: Connection | null = null;
  isOver = false;
  isCancelled = false;
  readonly gate: AddressGate;
  readonly timeoutMs: number;
  readonly #stoppable: Stoppable;
  readonly #stopCount: number;
  #isSecondTry = false;
  readonly #done: (result: ExchangeResult, context: T) => void;
  readonly #context: T;
  readonly #owner: ExchangeOwner;

  constructor(
    request: OutgoingRequest,
    { stoppable, gate, timeoutMs }: Required<SendRules>,
    pool: OriginPool,
    done: (result: ExchangeResult, context: T) => void,
    context: T,
    owner: ExchangeOwner,
  ) {
    super();
    this.request = request;
    this.gate = gate;
    this.timeoutMs = timeoutMs;
    this.#stoppable = stoppable;
    this.#stopCount = stoppable.stopCount;
    this.pool = pool;
    this.#done = done;
    this.#context = context;
    this.#owner = owner;
  }

  get wasConnected(): boolean {
    return this.via !== null;
  }

  get connection(): ConnectTimings | null {
    return this.via !== null && this.via.openedAt >= this.startedAt ? this.via.timings : null;
  }

  /** Whether nothing stopped the exchange, and its owner allows it to begin. */
  get mayBegin(): boolean {
    return this.#stoppable.stopCount === this.#stopCount && this.#owner.mayBegin();
  }

  /**
   * Ends the exchange before its first byte; its connection stays usable. If a first try was already sent over a
   * connection that broke, the result is an error, because that try was an attempt.
   * @param connection null if none was opened
   */
  cancel(connection: Connection | null): void {
    if (this.isOver) return;
    if (this.#isSecondTry) this.error = 'connection_error';
    else this.isCancelled = true;
    this.via = connection;
    this.isOver = true;
    this.endedAt = performance.now();
    this.#owner.onEnd(this as SentExchange<unknown>, connection?.isUsable === true);
    this.#done(this, this.#context);
  }

  begin(connection: Connection): void {
    this.via = connection;
    connection.start(this);
  }

  onHead(): void {
    this.firstByteAt = performance.now();
  }

  onResponse(isTruncated: boolean, isReusable: boolean): void {
    this.truncated = isTruncated;
    this.#end(isReusable);
  }

  onFailure(error: Error, hasResponded: boolean): void {
    if (this.isOver) return;
    const code = classify(error);
    // The peer had closed a kept connection: try once more on a new one, as part of the same attempt.
    const wasKept = this.via !== null && this.via.openedAt < this.startedAt;
    if (code === 'connection_error' && wasKept && !hasResponded && !this.#isSecondTry) {
      this.#isSecondTry = true;
      this.via = null;
      this.#owner.onTryAgain(this as SentExchange<unknown>);
      return;
    }
    this.error = code;
    this.reason = error instanceof EgressError ? (error.reason ?? null) : null;
    this.#end(false);
  }

  /** The exchange timed out. If a status has arrived, the response counts. */
  expire(): void {
    if (this.via === null || this.via.parts.status === null) this.error = 'timeout';
    else this.truncated = true;
    this.#end(false);
  }

  #end(isReusable: boolean): void {
    if (this.isOver) return;
    this.isOver = true;
    this.endedAt = performance.now();
    if (this.via !== null) {
      const { status, headers, headersText, body } = this.via.parts;
      this.status = status;
      this.headers = headers;
      this.headersText = headersText;
      this.body = body;
    }
    this.#owner.onEnd(this as SentExchange<unknown>, isReusable);
    const bytes = (this.headersText?.length ?? 0) + (this.body?.length ?? 0);
    if (bytes <= fewBytes) this.#done(this, this.#context);
    else this.#owner.onLongResult(this.request.tenant ?? '', () => this.#done(this, this.#context));
  }
}

/** The result of an attempt that had no exchange. @param error null if it was cancelled */
export function unsentResult(
  startedAt: number,
  error: 'conversion_error' | 'auth_error' | 'body_too_large' | null,
  reason: string | null = null,
): ExchangeResult {
  return {
    startedAt,
    endedAt: performance.now(),
    firstByteAt: null,
    status: null,
    headers: null,
    headersText: null,
    body: null,
    truncated: false,
    error,
    reason,
    wasConnected: false,
    connection: null,
    isCancelled: error === null,
  };
}

function classify(error: Error): Exclude<AttemptError, 'unexpected_status'> {
  if (error instanceof EgressError) return error.code;
  if (error instanceof ProtocolError) return 'protocol_error';
  const code = (error as NodeJS.ErrnoException).code ?? '';
  if (code.startsWith('ERR_TLS') || code.startsWith('ERR_SSL')) return 'tls_error';
  return 'connection_error';
}
