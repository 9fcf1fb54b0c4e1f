/**
 * Sending: one POST and its answer, over guarded connections. Connections are kept alive and belong to one origin; each
 * carries one exchange at a time. One absolute timer covers the whole exchange. Redirects are not followed, nothing is
 * decompressed, no more than the first 16 KiB of an answer are read.
 *
 *   exchange: waiting for a connection → sent → head → body → done;   done at any point by error or timer
 *   connection: opening → in use ⇄ (resting for a turn of the event loop → idle) → closed
 */

import {
  type ConnectorOptions,
  type ConnectTimings,
  connectGuarded,
  type GuardedConnection,
} from '../../egress/connector.ts';
import { EgressError } from '../../egress/error.ts';
import { AddressLimits, type AddressQuotas, addressKey } from './address_limits.ts';
import type { AttemptError } from './attempt_error.ts';
import type { AttemptSpan } from './attempt_span.ts';
import { type Connection, type Exchange, type OutgoingRequest, ProtocolError } from './connection.ts';
import { Http1Connection } from './http1/connection.ts';
import type { HeadCache, ResponseHeaders } from './http1/response_reader.ts';

/** Milliseconds for a whole exchange, from resolving the name to the end of the answer. */
export const exchangeTimeoutMs = 15_000;
/** Milliseconds after which an idle connection is closed, and between looks for those; connections kept idle at most. */
const idleMsMax = 20_000;
const pruneMs = 1_000;
const idleConnectionsMax = 1_000;
/** Milliseconds between looks at the clock: how late the timer may be. */
const timerGrainMs = 50;

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

const unstoppable: Stoppable = { stopCount: 0 };

export interface SenderOptions extends ConnectorOptions {
  /** Told of each attempt that is over and stoppable of a trace. */
  onSpan?: (span: AttemptSpan) => void;
  /** Whether an exchange may begin at this moment: asked last of all, before its first byte. */
  mayBegin?: () => boolean;
  /** Without limits where left out. */
  addresses?: AddressQuotas;
}

/** What the connections to one origin have in common. */
interface OriginPool {
  origin: URL;
  /** The one used last at the end. */
  idle: Connection[];
  memory: HeadCache;
}

export class Sender {
  readonly #options: SenderOptions;
  readonly #pools = new Map<string, OriginPool>();
  readonly #addresses: AddressLimits | undefined;
  /** Whom connections are to, as `addressKey` tells. */
  readonly #keys = new WeakMap<Connection, string>();
  #idleCount = 0;
  /** In the order in which they began, so that the first is the first to be late. */
  readonly #exchanges = new Set<SentExchange<unknown>>();
  /** Those that wait for the end of this turn of the event loop. */
  #waiting: SentExchange<unknown>[] = [];
  readonly #timer: NodeJS.Timeout;
  #prunedAt = 0;

  constructor(options: SenderOptions) {
    this.#options = options;
    this.#addresses = options.addresses && new AddressLimits(options.addresses);
    this.#timer = setInterval(() => this.#tick(), timerGrainMs);
    this.#timer.unref();
  }

  /**
   * @param done called once, never before this returns
   * @param context handed to `done`: one function can serve all
   */
  send<T>(
    request: OutgoingRequest,
    done: (answer: ExchangeResult, context: T) => void,
    context: T,
    stoppable: Stoppable = unstoppable,
  ): void {
    const pool = this.#poolOf(request.origin);
    const exchange = new SentExchange(request, stoppable, pool, done, context, this.#owner);
    this.#exchanges.add(exchange as SentExchange<unknown>);
    // What came over a connection since its last answer is seen before anything is sent over it (in this turn of the
    // event loop: RFC 9112 section 9.2 has bytes that nobody asked for belong to no answer).
    if (this.#waiting.length === 0) setImmediate(this.#startWaiting);
    this.#waiting.push(exchange as SentExchange<unknown>);
  }

  /** Closes the connections; exchanges under way are cut off. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    for (const { idle } of this.#pools.values()) for (const connection of idle) connection.destroy();
    for (const exchange of this.#exchanges) exchange.via?.destroy();
    this.#pools.clear();
  }

  #poolOf(origin: string): OriginPool {
    let pool = this.#pools.get(origin);
    if (pool === undefined) {
      pool = { origin: new URL(origin), idle: [], memory: { bytes: null, head: null } };
      this.#pools.set(origin, pool);
    }
    return pool;
  }

  readonly #startWaiting = (): void => {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const exchange of waiting) {
      if (exchange.isOver) continue;
      const connection = this.#takeIdle(exchange.pool);
      if (connection === undefined) this.#open(exchange);
      else this.#begin(exchange, connection);
    }
  };

  /** The last moment before the first byte. */
  #begin(exchange: SentExchange<unknown>, connection: Connection): void {
    if (exchange.mayBegin) exchange.begin(connection);
    else exchange.cancel(connection);
  }

  #takeIdle({ idle }: OriginPool): Connection | undefined {
    for (;;) {
      const connection = idle.pop();
      if (connection === undefined) return undefined;
      this.#idleCount -= 1;
      if (connection.isUsable) return connection;
      connection.destroy();
    }
  }

  #open(exchange: SentExchange<unknown>): void {
    const { pool } = exchange;
    const limits = this.#addresses;
    let key: string | undefined;
    const admit = async ([address = '']: readonly string[]) => {
      const wanted = addressKey(address, pool.origin.port);
      await limits?.acquire(wanted);
      key = wanted;
      if (exchange.isOver) throw new EgressError('connect_timeout');
    };
    connectGuarded(pool.origin, this.#options, limits && admit).then(
      (opened) => {
        if (key !== undefined && !this.#countConnection(opened, pool, key)) {
          exchange.onFailure(new EgressError('connect_error'), false);
          return;
        }
        this.#use(opened, exchange).catch((error: Error) => {
          opened.socket.destroy();
          exchange.onFailure(error, false);
        });
      },
      (error: Error) => {
        if (key !== undefined) limits?.release(key);
        exchange.onFailure(error, false);
      },
    );
  }

  async #use(opened: GuardedConnection, exchange: SentExchange<unknown>): Promise<void> {
    const { pool } = exchange;
    const connection = await createConnection(opened, pool);
    this.#keys.set(connection, addressKey(opened.address, pool.origin.port));
    if (exchange.isOver) connection.destroy();
    else this.#begin(exchange, connection);
  }

  /** Counts a connection for as long as it is open. @returns whether it may stay */
  #countConnection(
    { socket, address }: GuardedConnection,
    { origin }: OriginPool,
    expected: string,
  ): boolean {
    const limits = this.#addresses as AddressLimits;
    const key = addressKey(address, origin.port);
    const hasRoom = limits.move(expected, key);
    if (socket.closed) limits.release(key);
    else socket.once('close', () => limits.release(key));
    if (!hasRoom) socket.destroy();
    return hasRoom;
  }

  /** @returns whether the connection may carry another exchange, as far as its address is concerned */
  #recordAddressResult(connection: Connection, { status, error }: ExchangeResult): boolean {
    const key = this.#keys.get(connection);
    if (this.#addresses === undefined || key === undefined) return true;
    if (error === null && status !== null && Math.floor(status / 100) === 2) this.#addresses.accepted(key);
    return this.#addresses.isKnown(key);
  }

  readonly #owner: ExchangeOwner = {
    mayBegin: () => this.#options.mayBegin?.() !== false,
    onEnd: (exchange, isReusable) => {
      const { via, request, pool } = exchange;
      this.#exchanges.delete(exchange);
      if (via !== null)
        this.#returnConnection(via, pool, this.#recordAddressResult(via, exchange) && isReusable);
      if (request.traced !== null && !exchange.isCancelled) this.#reportSpan(request, exchange);
    },
    onTryAgain: (exchange) => this.#open(exchange),
  };

  #returnConnection(connection: Connection, pool: OriginPool, isReusable: boolean): void {
    if (!isReusable || this.#idleCount >= idleConnectionsMax) {
      connection.destroy();
      return;
    }
    connection.idleSince = performance.now();
    pool.idle.push(connection);
    this.#idleCount += 1;
  }

  #reportSpan(
    { traced, origin }: OutgoingRequest,
    { startedAt, endedAt, status, error }: ExchangeResult,
  ): void {
    if (traced === null) return;
    const { timeOrigin } = performance;
    this.#options.onSpan?.({
      ...traced,
      origin,
      startedAt: timeOrigin + startedAt,
      endedAt: timeOrigin + endedAt,
      status,
      error,
    });
  }

  #tick(): void {
    const now = performance.now();
    this.#addresses?.tick(now);
    for (const exchange of this.#exchanges) {
      if (now - exchange.startedAt < exchangeTimeoutMs) break;
      exchange.expire();
    }
    if (now - this.#prunedAt < pruneMs) return;
    this.#prunedAt = now;
    const used = new Set<OriginPool>();
    for (const { pool } of this.#exchanges) used.add(pool);
    for (const [origin, pool] of this.#pools) {
      const kept = pool.idle.filter((connection) => {
        const isFresh = connection.isUsable && now - connection.idleSince < connection.idleMs;
        if (!isFresh) connection.destroy();
        return isFresh;
      });
      this.#idleCount -= pool.idle.length - kept.length;
      pool.idle = kept;
      if (kept.length === 0 && !used.has(pool)) this.#pools.delete(origin);
    }
  }
}

/** By what was agreed on in the handshake. The client for HTTP/2 takes 12 MiB, and is loaded when a subscriber speaks it. */
async function createConnection(
  opened: GuardedConnection,
  { origin, memory }: OriginPool,
): Promise<Connection> {
  const { alpnProtocol } = opened.socket as { alpnProtocol?: string | false | null };
  if (alpnProtocol !== 'h2') return new Http1Connection(opened, origin, memory, idleMsMax);
  const { Http2Connection } = await import('./http2_connection.ts');
  // The other side may have gone while it was loaded the first time.
  if (opened.socket.destroyed) throw new Error('the connection was closed');
  return new Http2Connection(opened, origin, idleMsMax);
}

interface ExchangeOwner {
  mayBegin: () => boolean;
  /** @param isReusable whether its connection can carry another one */
  onEnd: (exchange: SentExchange<unknown>, isReusable: boolean) => void;
  /** Another connection may do what a kept one could not. */
  onTryAgain: (exchange: SentExchange<unknown>) => void;
}

/** One exchange, and in the end its answer. */
class SentExchange<T> implements Exchange, ExchangeResult {
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
