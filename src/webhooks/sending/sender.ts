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
import type { AnswerHeaders, HeadMemory } from './http1_answer.ts';
import { Http1Connection } from './http1_connection.ts';

/** Milliseconds for a whole exchange, from resolving the name to the end of the answer. */
export const exchangeTimeoutMs = 15_000;
/** Milliseconds after which an idle connection is closed, and between looks for those; connections kept idle at most. */
const idleMsMax = 20_000;
const pruneMs = 1_000;
const idleConnectionsMax = 1_000;
/** Milliseconds between looks at the clock: how late the timer may be. */
const timerGrainMs = 50;

export interface Answer {
  /** Of the process's own clock (`performance.now`), in milliseconds. */
  readonly startedAt: number;
  readonly endedAt: number;
  readonly firstByteAt: number | null;
  readonly status: number | null;
  readonly headers: AnswerHeaders | null;
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
  readonly isCalledOff: boolean;
}

/** What an exchange is part of: it is called off where this has been stopped before its first byte. */
export interface Stoppable {
  /** How often. */
  readonly stops: number;
}

const unstoppable: Stoppable = { stops: 0 };

export interface SenderOptions extends ConnectorOptions {
  /** Told of each attempt that is over and part of a trace. */
  onSpan?: (span: AttemptSpan) => void;
  /** Whether an exchange may begin at this moment: asked last of all, before its first byte. */
  mayBegin?: () => boolean;
  /** Without limits where left out. */
  addresses?: AddressQuotas;
}

/** What the connections to one origin have in common. */
interface Place {
  origin: URL;
  /** The one used last at the end. */
  idle: Connection[];
  memory: HeadMemory;
}

export class Sender {
  readonly #options: SenderOptions;
  readonly #places = new Map<string, Place>();
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
    done: (answer: Answer, context: T) => void,
    context: T,
    part: Stoppable = unstoppable,
  ): void {
    const place = this.#placeOf(request.origin);
    const exchange = new SentExchange(request, part, place, done, context, this.#owner);
    this.#exchanges.add(exchange as SentExchange<unknown>);
    // What came over a connection since its last answer is seen before anything is sent over it (in this turn of the
    // event loop: RFC 9112 section 9.2 has bytes that nobody asked for belong to no answer).
    if (this.#waiting.length === 0) setImmediate(this.#startWaiting);
    this.#waiting.push(exchange as SentExchange<unknown>);
  }

  /** Closes the connections; exchanges under way are cut off. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    for (const { idle } of this.#places.values()) for (const connection of idle) connection.destroy();
    for (const exchange of this.#exchanges) exchange.via?.destroy();
    this.#places.clear();
  }

  #placeOf(origin: string): Place {
    let place = this.#places.get(origin);
    if (place === undefined) {
      place = { origin: new URL(origin), idle: [], memory: { bytes: null, head: null } };
      this.#places.set(origin, place);
    }
    return place;
  }

  readonly #startWaiting = (): void => {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const exchange of waiting) {
      if (exchange.isOver) continue;
      const connection = this.#takeIdle(exchange.place);
      if (connection === undefined) this.#open(exchange);
      else this.#begin(exchange, connection);
    }
  };

  /** The last moment before the first byte. */
  #begin(exchange: SentExchange<unknown>, connection: Connection): void {
    if (exchange.mayBegin) exchange.begin(connection);
    else exchange.callOff(connection);
  }

  #takeIdle({ idle }: Place): Connection | undefined {
    for (;;) {
      const connection = idle.pop();
      if (connection === undefined) return undefined;
      this.#idleCount -= 1;
      if (connection.isUsable) return connection;
      connection.destroy();
    }
  }

  #open(exchange: SentExchange<unknown>): void {
    const { place } = exchange;
    const limits = this.#addresses;
    let key: string | undefined;
    const admit = async ([address = '']: readonly string[]) => {
      const wanted = addressKey(address, place.origin.port);
      await limits?.acquire(wanted);
      key = wanted;
      if (exchange.isOver) throw new EgressError('connect_timeout');
    };
    connectGuarded(place.origin, this.#options, limits && admit).then(
      (opened) => {
        if (key !== undefined && !this.#hold(opened, place, key)) {
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
    const { place } = exchange;
    const connection = await speak(opened, place);
    this.#keys.set(connection, addressKey(opened.address, place.origin.port));
    if (exchange.isOver) connection.destroy();
    else this.#begin(exchange, connection);
  }

  /** Counts a connection for as long as it is open. @returns whether it may stay */
  #hold({ socket, address }: GuardedConnection, { origin }: Place, expected: string): boolean {
    const limits = this.#addresses as AddressLimits;
    const key = addressKey(address, origin.port);
    const hasRoom = limits.move(expected, key);
    if (socket.closed) limits.release(key);
    else socket.once('close', () => limits.release(key));
    if (!hasRoom) socket.destroy();
    return hasRoom;
  }

  /** @returns whether the connection may carry another exchange, as far as its address is concerned */
  #judgeAddress(connection: Connection, { status, error }: Answer): boolean {
    const key = this.#keys.get(connection);
    if (this.#addresses === undefined || key === undefined) return true;
    if (error === null && status !== null && Math.floor(status / 100) === 2) this.#addresses.accepted(key);
    return this.#addresses.isKnown(key);
  }

  readonly #owner: ExchangeOwner = {
    mayBegin: () => this.#options.mayBegin?.() !== false,
    onEnd: (exchange, mayGoOn) => {
      const { via, request, place } = exchange;
      this.#exchanges.delete(exchange);
      if (via !== null) this.#give(via, place, this.#judgeAddress(via, exchange) && mayGoOn);
      if (request.traced !== null && !exchange.isCalledOff) this.#tellSpan(request, exchange);
    },
    onTryAgain: (exchange) => this.#open(exchange),
  };

  #give(connection: Connection, place: Place, mayGoOn: boolean): void {
    if (!mayGoOn || this.#idleCount >= idleConnectionsMax) {
      connection.destroy();
      return;
    }
    connection.idleSince = performance.now();
    place.idle.push(connection);
    this.#idleCount += 1;
  }

  #tellSpan({ traced, origin }: OutgoingRequest, { startedAt, endedAt, status, error }: Answer): void {
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
    const used = new Set<Place>();
    for (const { place } of this.#exchanges) used.add(place);
    for (const [origin, place] of this.#places) {
      const kept = place.idle.filter((connection) => {
        const isFresh = connection.isUsable && now - connection.idleSince < connection.idleMs;
        if (!isFresh) connection.destroy();
        return isFresh;
      });
      this.#idleCount -= place.idle.length - kept.length;
      place.idle = kept;
      if (kept.length === 0 && !used.has(place)) this.#places.delete(origin);
    }
  }
}

/** By what was agreed on in the handshake. The client for HTTP/2 takes 12 MiB, and is loaded when a subscriber speaks it. */
async function speak(opened: GuardedConnection, { origin, memory }: Place): Promise<Connection> {
  const { alpnProtocol } = opened.socket as { alpnProtocol?: string | false | null };
  if (alpnProtocol !== 'h2') return new Http1Connection(opened, origin, memory, idleMsMax);
  const { Http2Connection } = await import('./http2_connection.ts');
  // The other side may have gone while it was loaded the first time.
  if (opened.socket.destroyed) throw new Error('the connection was closed');
  return new Http2Connection(opened, origin, idleMsMax);
}

interface ExchangeOwner {
  mayBegin: () => boolean;
  /** @param mayGoOn whether its connection can carry another one */
  onEnd: (exchange: SentExchange<unknown>, mayGoOn: boolean) => void;
  /** Another connection may do what a kept one could not. */
  onTryAgain: (exchange: SentExchange<unknown>) => void;
}

/** One exchange, and in the end its answer. */
class SentExchange<T> implements Exchange, Answer {
  readonly request: OutgoingRequest;
  readonly place: Place;
  readonly startedAt = performance.now();
  endedAt = 0;
  firstByteAt: number | null = null;
  status: number | null = null;
  headers: AnswerHeaders | null = null;
  headersText: string | null = null;
  body: Buffer | null = null;
  truncated = false;
  error: Answer['error'] = null;
  reason: string | null = null;
  /** What carries it. */
  via: Connection | null = null;
  isOver = false;
  isCalledOff = false;
  readonly #part: Stoppable;
  readonly #stops: number;
  #isSecondTry = false;
  readonly #done: (answer: Answer, context: T) => void;
  readonly #context: T;
  readonly #owner: ExchangeOwner;

  constructor(
    request: OutgoingRequest,
    part: Stoppable,
    place: Place,
    done: (answer: Answer, context: T) => void,
    context: T,
    owner: ExchangeOwner,
  ) {
    this.request = request;
    this.#part = part;
    this.#stops = part.stops;
    this.place = place;
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

  /** Whether what it is part of was not stopped since, and nothing else speaks against it. */
  get mayBegin(): boolean {
    return this.#part.stops === this.#stops && this.#owner.mayBegin();
  }

  /** Nothing is sent; the connection can carry another one. What was sent before, over one that broke, was an attempt. */
  callOff(connection: Connection): void {
    if (this.isOver) return;
    if (this.#isSecondTry) this.error = 'connection_error';
    else this.isCalledOff = true;
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

  onAnswer(isCut: boolean, mayGoOn: boolean): void {
    this.truncated = isCut;
    this.#end(mayGoOn);
  }

  onFailure(error: Error, hasBegun: boolean): void {
    if (this.isOver) return;
    const code = classify(error);
    // A kept connection that the other side had closed meanwhile: once more, on a new one, as part of the same attempt.
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

  #end(mayGoOn: boolean): void {
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
    this.#owner.onEnd(this as SentExchange<unknown>, mayGoOn);
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
