/**
 * Sends requests and returns their results. Each origin has a pool of kept-alive connections, and each connection carries one
 * exchange at a time. One absolute timer covers a whole exchange. The sender follows no redirects, decompresses nothing, and
 * reads at most the first 16 KiB of a response body, or what its request says.
 *
 *   exchange: see exchange.ts
 *   connection: opening → in use ⇄ idle → closed
 */

import { addressKey } from '../../egress/address_key.ts';
import { closeAtOnce } from '../../egress/closing.ts';
import { type ConnectorOptions, connectGuarded, type GuardedConnection } from '../../egress/connector.ts';
import { Http1Connection } from '../../egress/http1/connection.ts';
import type { Connection } from '../../egress/http1/interface.ts';
import { isRoomWanted, offerRoom } from '../../egress/tunnel_turns.ts';
import { Bag } from '../../shared/bag.ts';
import { NoTurnError } from '../../shared/limited_work.ts';
import type { AttemptSpan } from './attempt_span.ts';
import {
  type AddressGate,
  type ExchangeOwner,
  type ExchangeResult,
  type OriginPool,
  type OutgoingRequest,
  type SendRules,
  SentExchange,
  unstoppable,
} from './exchange.ts';
import { ResultTurns } from './result_turns.ts';

/** Milliseconds for a whole exchange, from name resolution to the end of the response. */
export const exchangeTimeoutMs = 15_000;
/** The shortest timeout that a request may have instead. */
const exchangeTimeoutMsMin = 10_000;
/**
 * Milliseconds after which an idle connection is closed; milliseconds between checks for those; maximum idle
 * connections. Beyond it, the one that was used longest ago is closed, so that hosts that are seldom used keep none from others.
 */
const idleMsMax = 20_000;
const pruneMs = 1_000;
const idleConnectionsMax = 1_000;
/** Milliseconds between timeout checks: the timer may be this late. */
const timerGrainMs = 50;

/** The client certificate is presented on the connections of requests that ask for it only. */
export interface SenderOptions extends ConnectorOptions {
  /** Called for each finished attempt that is traced. */
  onSpan?: (span: AttemptSpan) => void;
  /** Whether an exchange may begin now. Called immediately before its first byte. */
  mayBegin?: () => boolean;
  /** Maximum idle connections. */
  idleConnectionsMax?: number;
}

const anyAddress: AddressGate = { admit: () => true, keepsConnection: true };

/** Prevents a connection to an address without room. */
class NoRoom extends Error {}

export class Sender {
  readonly #options: SenderOptions;
  /** The options without the client certificate. */
  readonly #plain: ConnectorOptions;
  readonly #pools = new Map<string, OriginPool>();
  /** Those of all pools. The one that has been idle for longest is first, and is closed if there are too many. */
  readonly #idle = new Set<Connection>();
  readonly #exchanges = new Bag<SentExchange<unknown>>();
  /** Exchanges that start at the end of this turn of the event loop. */
  #waiting: SentExchange<unknown>[] = [];
  readonly #results = new ResultTurns();
  readonly #timer: NodeJS.Timeout;
  readonly #endOffer: () => void = () => {};
  #prunedAt = 0;

  constructor(options: SenderOptions) {
    const { proxy } = options;
    const idleMax = options.idleConnectionsMax ?? idleConnectionsMax;
    // Half of those through the proxy, so that new ones seldom wait for an idle one to close.
    const ofProxy = proxy === undefined ? idleMax : Math.floor(proxy.connectionsMax / 2);
    this.#options = { ...options, idleConnectionsMax: Math.min(idleMax, ofProxy) };
    if (proxy !== undefined) {
      const idle = this.#idle;
      this.#endOffer = offerRoom(proxy, {
        get idleCount() {
          return idle.size;
        },
        closeIdle: (tenant) => this.#closeOldest(tenant, false),
      });
    }
    const { clientCertificate: _certificate, ...plain } = options;
    this.#plain = plain;
    this.#timer = setInterval(() => this.#tick(), timerGrainMs);
    this.#timer.unref();
  }

  /**
   * @param done called once, never before this method returns
   * @param context passed to `done`, so that one function can serve all exchanges
   */
  send<T>(
    request: OutgoingRequest,
    done: (result: ExchangeResult, context: T) => void,
    context: T,
    { stoppable = unstoppable, gate = anyAddress, timeoutMs = exchangeTimeoutMs }: SendRules = {},
  ): void {
    const pool = this.#poolOf(request);
    const rules = { stoppable, gate, timeoutMs: Math.max(timeoutMs, exchangeTimeoutMsMin) };
    const exchange = new SentExchange(request, rules, pool, done, context, this.#owner);
    this.#exchanges.add(exchange as SentExchange<unknown>);
    // An exchange starts in the next turn, so that bytes which already arrived on an idle connection are read first.
    // Unsolicited bytes belong to no response (RFC 9112 section 9.2) and close the connection.
    if (this.#waiting.length === 0) setImmediate(this.#startWaiting);
    this.#waiting.push(exchange as SentExchange<unknown>);
  }

  /** Closes all connections. Exchanges in flight fail. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    this.#endOffer();
    for (const { idle } of this.#pools.values()) for (const connection of idle) connection.destroy();
    for (const exchange of [...this.#exchanges]) exchange.via?.destroy();
    this.#pools.clear();
  }

  #poolOf({ origin, isMutual = false }: OutgoingRequest): OriginPool {
    const key = isMutual ? `${origin} with a certificate` : origin;
    let pool = this.#pools.get(key);
    if (pool === undefined) {
      pool = { origin: new URL(origin), isMutual, idle: [], headCache: { bytes: null, head: null } };
      this.#pools.set(key, pool);
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

  /** Immediately before the first byte. */
  #begin(exchange: SentExchange<unknown>, connection: Connection): void {
    if (exchange.mayBegin) exchange.begin(connection);
    else exchange.cancel(connection);
  }

  #takeIdle({ idle }: OriginPool): Connection | undefined {
    for (;;) {
      const connection = idle.pop();
      if (connection === undefined) return undefined;
      this.#idle.delete(connection);
      if (connection.isUsable) return connection;
      connection.destroy();
    }
  }

  #open(exchange: SentExchange<unknown>): void {
    const { pool, gate } = exchange;
    const { port } = pool.origin;
    const admit = async ([address = '']: readonly string[]) => {
      if (exchange.isOver || !gate.admit(addressKey(address, port))) throw new NoRoom();
    };
    const { tenant = null } = exchange.request;
    const onTurn = (waitedMs: number) => {
      exchange.waitedMs += waitedMs;
    };
    const request = { tenant, onTurn, admit, isOver: () => exchange.isOver };
    connectGuarded(pool.origin, pool.isMutual ? this.#options : this.#plain, request)
      .then((opened) => {
        if (exchange.isOver || gate.admit(addressKey(opened.address, port)))
          return this.#use(opened, exchange);
        closeAtOnce(opened.socket);
        throw new NoRoom();
      })
      .catch((error: Error) => {
        if (error instanceof NoRoom || error instanceof NoTurnError) exchange.cancel(null);
        else exchange.onFailure(error, false);
      });
  }

  #use(opened: GuardedConnection, exchange: SentExchange<unknown>): void {
    const { origin, headCache } = exchange.pool;
    const connection = new Http1Connection(opened, origin, headCache, idleMsMax);
    if (exchange.isOver) connection.destroy();
    else this.#begin(exchange, connection);
  }

  readonly #owner: ExchangeOwner = {
    mayBegin: () => this.#options.mayBegin?.() !== false,
    onEnd: (exchange, isReusable) => {
      const { via, request, pool, gate } = exchange;
      this.#exchanges.delete(exchange);
      if (via !== null)
        this.#returnConnection(via, pool, isReusable && (isAccepted(exchange) || gate.keepsConnection));
      if (request.traced !== null && !exchange.isCancelled) this.#reportSpan(request, exchange);
    },
    onLongResult: (tenant, done) => this.#results.take(tenant, done),
    onTryAgain: (exchange) => this.#open(exchange),
  };

  #returnConnection(connection: Connection, pool: OriginPool, isReusable: boolean): void {
    const isWanted = isRoomWanted(this.#options.proxy, connection.openedFor);
    if (!isReusable || isWanted) {
      connection.destroy(!isWanted);
      return;
    }
    connection.idleSince = performance.now();
    pool.idle.push(connection);
    this.#idle.add(connection);
    if (this.#idle.size > (this.#options.idleConnectionsMax ?? idleConnectionsMax)) this.#closeOldest();
  }

  /** Its pool forgets it later. @param tenant for whom it was opened; null for anybody @returns whether there was one */
  #closeOldest(tenant: string | null = null, mayLinger = true): boolean {
    const oldest = this.#idle.values().find(({ openedFor }) => tenant === null || openedFor === tenant);
    if (oldest === undefined) return false;
    this.#idle.delete(oldest);
    oldest.destroy(mayLinger);
    return true;
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
    const late = [...this.#exchanges].filter(
      ({ startedAt, waitedMs, timeoutMs }) => now - startedAt - waitedMs >= timeoutMs,
    );
    for (const exchange of late) if (!exchange.isOver) exchange.expire();
    if (now - this.#prunedAt < pruneMs) return;
    this.#prunedAt = now;
    const used = new Set<OriginPool>();
    for (const { pool } of this.#exchanges) used.add(pool);
    for (const [origin, pool] of this.#pools) {
      const kept = pool.idle.filter((connection) => {
        const isFresh = connection.isUsable && now - connection.idleSince < connection.idleMs;
        if (isFresh) return true;
        this.#idle.delete(connection);
        connection.destroy();
        return false;
      });
      pool.idle = kept;
      if (kept.length === 0 && !used.has(pool)) this.#pools.delete(origin);
    }
  }
}

function isAccepted({ status, error }: ExchangeResult): boolean {
  return error === null && status !== null && Math.floor(status / 100) === 2;
}
