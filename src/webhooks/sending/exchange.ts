/**
 * One exchange: a POST and what came of it. The sender gives it a connection; the connection reports to it; it reports its
 * result once.
 *
 *   waiting for a connection → request written → response head → response body → done
 *   any state → done, by an error, the timer or a cancellation;   a kept connection that broke → one retry on a new one
 */

import type { ConnectTimings } from '../../egress/connector.ts';
import { EgressError } from '../../egress/error.ts';
import type { AttemptError } from './attempt_error.ts';
import { type Connection, type Exchange, type OutgoingRequest, ProtocolError } from './connection.ts';
import type { HeadCache, ResponseHeaders } from './http1/response_head.ts';

export interface ExchangeResult {
  /** Of the process's own clock (`performance.now`), in milliseconds. */
  readonly startedAt: number;
  readonly endedAt: number;
  readonly firstByteAt: number | null;
  readonly status: number | null;
  readonly headers: ResponseHeaders | null;
  /** The headers as JSON. */
  readonly headersText: string | null;
  readonly body: Buffer | null;
  readonly truncated: boolean;
  /** Null where an answer came, whatever its status. */
  readonly error: Exclude<AttemptError, 'unexpected_status'> | null;
  /** What the certificate or handshake lacked. */
  readonly reason: string | null;
  /** Whether there was one at all, kept or new. */
  readonly wasConnected: boolean;
  /** Where the exchange had to open one. */
  readonly connection: ConnectTimings | null;
  /** Whether nothing was sent, because it was not to be sent any more once there was a connection. */
  readonly isCancelled: boolean;
}

/** What an exchange is stoppable of: it is called off where this has been stopped before its first byte. */
export interface Stoppable {
  /** How often. */
  readonly stopCount: number;
}

export const unstoppable: Stoppable = { stopCount: 0 };

/** What the connections to one origin have in common. */
export interface OriginPool {
  origin: URL;
  /** The one used last at the end. */
  idle: Connection[];
  memory: HeadCache;
}

export interface ExchangeOwner {
  mayBegin: () => boolean;
  /** @param isReusable whether its connection can carry another one */
  onEnd: (exchange: SentExchange<unknown>, isReusable: boolean) => void;
  /** Another connection may do what a kept one could not. */
  onTryAgain: (exchange: SentExchange<unknown>) => void;
}

/** One exchange, and in the end its answer. */
export class SentExchange<T> implements Exchange, ExchangeResult {
  readonly request: OutgoingRequest;
  readonly pool: OriginPool;
  readonly startedAt = performance.now();
  endedAt = 0;
  firstByteAt: number | null = null;
  status: number | null = null;
  headers: ResponseHeaders | null = null;
  headersText: string | null = null;
  body: Buffer | null = null;
  truncated = false;
  error: ExchangeResult['error'] = null;
  reason: string | null = null;
  /** What carries it. */
  via: Connection | null = null;
  isOver = false;
  isCancelled = false;
  readonly #stoppable: Stoppable;
  readonly #stopCount: number;
  #isSecondTry = false;
  readonly #done: (answer: ExchangeResult, context: T) => void;
  readonly #context: T;
  readonly #owner: ExchangeOwner;

  constructor(
    request: OutgoingRequest,
    stoppable: Stoppable,
    pool: OriginPool,
    done: (answer: ExchangeResult, context: T) => void,
    context: T,
    owner: ExchangeOwner,
  ) {
    this.request = request;
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

  /** Whether what it is stoppable of was not stopped since, and nothing else speaks against it. */
  get mayBegin(): boolean {
    return this.#stoppable.stopCount === this.#stopCount && this.#owner.mayBegin();
  }

  /** Nothing is sent; the connection can carry another one. What was sent before, over one that broke, was an attempt. */
  cancel(connection: Connection): void {
    if (this.isOver) return;
    if (this.#isSecondTry) this.error = 'connection_error';
    else this.isCancelled = true;
    this.via = connection;
    this.isOver = true;
    this.endedAt = performance.now();
    this.#owner.onEnd(this as SentExchange<unknown>, connection.isUsable);
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

  onFailure(error: Error, hasBegun: boolean): void {
    if (this.isOver) return;
    const code = classify(error);
    // A kept connection that the other side had closed meanwhile: once more, on a new one, as stoppable of the same attempt.
    const wasKept = this.via !== null && this.via.openedAt < this.startedAt;
    if (code === 'connection_error' && wasKept && !hasBegun && !this.#isSecondTry) {
      this.#isSecondTry = true;
      this.via = null;
      this.#owner.onTryAgain(this as SentExchange<unknown>);
      return;
    }
    this.error = code;
    this.reason = error instanceof EgressError ? (error.reason ?? null) : null;
    this.#end(false);
  }

  /** The time is over. What is known by now decides: a status that came is an answer. */
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
    this.#done(this, this.#context);
  }
}

function classify(error: Error): Exclude<AttemptError, 'unexpected_status'> {
  if (error instanceof EgressError) return error.code;
  if (error instanceof ProtocolError) return 'protocol_error';
  const code = (error as NodeJS.ErrnoException).code ?? '';
  if (error.name === 'HTTPParserError' || code.startsWith('HPE_')) return 'protocol_error';
  if (code === 'UND_ERR_HEADERS_OVERFLOW' || code === 'UND_ERR_RES_CONTENT_LENGTH_MISMATCH')
    return 'protocol_error';
  if (code.startsWith('ERR_TLS') || code.startsWith('ERR_SSL')) return 'tls_error';
  return 'connection_error';
}
