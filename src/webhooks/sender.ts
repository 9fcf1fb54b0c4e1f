/**
 * Sending: one POST and its answer, by `undici` clients over the guarded connector. Connections are kept alive and
 * belong to one origin; each carries one exchange at a time. One absolute timer covers the whole exchange. Redirects
 * are not followed, nothing is decompressed, no more than the first 16 KiB of an answer are read.
 *
 *   exchange: waiting for a connection → sent → headers → body → done;   done at any point by error or timer
 */

import { Client, type Dispatcher } from 'undici';
import { type ConnectorOptions, type ConnectTimings, createGuardedConnector } from '../egress/connector.ts';
import { EgressError } from '../egress/error.ts';
import type { AttemptError } from './attempt_error.ts';
import type { AttemptSpan, TracedAttempt } from './attempt_span.ts';

/** Milliseconds for a whole exchange, from resolving the name to the end of the answer. */
export const exchangeTimeoutMs = 15_000;
/** Bytes of an answer's body that are kept, and of its header block that are taken. */
export const responseBodyBytesMax = 16_384;
const responseHeaderBytesMax = 16_384;
/** Milliseconds after which an idle connection is closed; connections kept idle at most. */
const idleMs = 20_000;
const idleConnectionsMax = 1_000;
/** Milliseconds between looks at the clock: how late the timer may be. */
const timerGrainMs = 50;

export interface OutgoingRequest {
  /** Like `https://example.com:8443`. */
  origin: string;
  path: string;
  /** Names and values by turns. */
  headers: string[];
  body: Buffer;
  /** Null where it is not part of a trace. */
  traced: TracedAttempt | null;
}

export interface Answer {
  /** Of the process's own clock (`performance.now`), in milliseconds. */
  startedAt: number;
  endedAt: number;
  firstByteAt: number | null;
  status: number | null;
  headers: Record<string, string | string[] | undefined> | null;
  body: Buffer | null;
  truncated: boolean;
  /** Null where an answer came, whatever its status. */
  error: Exclude<AttemptError, 'unexpected_status'> | null;
  /** What the certificate or handshake lacked. */
  reason: string | null;
  /** Where the exchange had to open one. */
  connection: ConnectTimings | null;
  /** Whether nothing was sent, because it was not to be sent any more once there was a connection. */
  isCalledOff: boolean;
}

/** What an exchange is part of: it is called off where this has been stopped before its first byte. */
export interface Stoppable {
  /** How often. */
  readonly stops: number;
}

interface Connection {
  origin: string;
  client: Client;
  timings: ConnectTimings | null;
  openedAt: number;
  idleSince: number;
}

const unstoppable: Stoppable = { stops: 0 };

export interface SenderOptions extends ConnectorOptions {
  /** Told of each attempt that is over and part of a trace. */
  onSpan?: (span: AttemptSpan) => void;
  /** Whether an exchange may begin at this moment: asked last of all, before its first byte. */
  mayBegin?: () => boolean;
}

export class Sender {
  readonly #options: SenderOptions;
  /** Idle connections of each origin, the one used last at the end. */
  readonly #idle = new Map<string, Connection[]>();
  #idleCount = 0;
  /** In the order in which they began, so that the first is the first to be late. */
  readonly #exchanges = new Set<Exchange>();
  readonly #timer: NodeJS.Timeout;
  #prunedAt = 0;

  constructor(options: SenderOptions) {
    this.#options = options;
    this.#timer = setInterval(() => this.#tick(), timerGrainMs);
    this.#timer.unref();
  }

  /** @param done called once, never before this returns */
  send(request: OutgoingRequest, done: (answer: Answer) => void, part: Stoppable = unstoppable): void {
    const mayBegin = this.#options.mayBegin ?? (() => true);
    const exchange = new Exchange(
      request,
      part,
      mayBegin,
      this.#take(request.origin),
      (finished, isClean) => {
        if (finished.mayTryAgain) return this.#tryAgain(finished);
        this.#exchanges.delete(finished);
        this.#give(finished.connection, isClean);
        const { answer } = finished;
        if (request.traced !== null && !answer.isCalledOff)
          this.#tellSpan(request.traced, request.origin, answer);
        done(answer);
      },
    );
    this.#exchanges.add(exchange);
    exchange.start();
  }

  /** Closes the connections; exchanges under way are cut off. */
  async close(): Promise<void> {
    clearInterval(this.#timer);
    const clients = [...this.#idle.values()].flat().map(({ client }) => client);
    for (const { connection } of this.#exchanges) clients.push(connection.client);
    this.#idle.clear();
    await Promise.allSettled(clients.map((client) => client.destroy()));
  }

  #tellSpan(traced: TracedAttempt, origin: string, { startedAt, endedAt, status, error }: Answer): void {
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

  /** A kept connection that the other side had closed meanwhile: once more on a new one, as part of the same attempt. */
  #tryAgain(exchange: Exchange): void {
    void exchange.connection.client.destroy();
    exchange.connection = this.#open(exchange.request.origin);
    exchange.start();
  }

  #take(origin: string): Connection {
    const connection = this.#idle.get(origin)?.pop();
    if (connection === undefined) return this.#open(origin);
    this.#idleCount -= 1;
    return connection;
  }

  #open(origin: string): Connection {
    const connection: Connection = {
      origin,
      timings: null,
      openedAt: 0,
      idleSince: 0,
      client: new Client(origin, {
        connect: createGuardedConnector({
          ...this.#options,
          onConnected: (timings) => {
            connection.timings = timings;
            connection.openedAt = performance.now();
          },
        }),
        pipelining: 1,
        // The one timer is ours.
        headersTimeout: 0,
        bodyTimeout: 0,
        maxHeaderSize: responseHeaderBytesMax,
        keepAliveTimeout: idleMs,
        keepAliveMaxTimeout: 60_000,
        allowH2: true,
      }),
    };
    return connection;
  }

  #give(connection: Connection, isClean: boolean): void {
    if (!isClean || this.#idleCount >= idleConnectionsMax) {
      void connection.client.destroy();
      return;
    }
    connection.idleSince = performance.now();
    const list = this.#idle.get(connection.origin);
    if (list === undefined) this.#idle.set(connection.origin, [connection]);
    else list.push(connection);
    this.#idleCount += 1;
  }

  #tick(): void {
    const now = performance.now();
    for (const exchange of this.#exchanges) {
      if (now - exchange.startedAt < exchangeTimeoutMs) break;
      exchange.expire();
    }
    if (now - this.#prunedAt < 5_000) return;
    this.#prunedAt = now;
    for (const [origin, list] of this.#idle) {
      const kept = list.filter((connection) => {
        const isFresh = now - connection.idleSince < idleMs;
        if (!isFresh) void connection.client.destroy();
        return isFresh;
      });
      this.#idleCount -= list.length - kept.length;
      if (kept.length === 0) this.#idle.delete(origin);
      else this.#idle.set(origin, kept);
    }
  }
}

type Finish = (exchange: Exchange, isClean: boolean) => void;

class Exchange implements Dispatcher.DispatchHandler {
  readonly request: OutgoingRequest;
  connection: Connection;
  readonly startedAt = performance.now();
  mayTryAgain = false;
  readonly #part: Stoppable;
  readonly #stops: number;
  readonly #mayBegin: () => boolean;
  #isCalledOff = false;
  readonly #finish: Finish;
  #controller: Dispatcher.DispatchController | undefined;
  #isFinished = false;
  #isSecondTry = false;
  #firstByteAt: number | null = null;
  #status: number | null = null;
  #headers: Answer['headers'] = null;
  #chunks: Buffer[] = [];
  #bytes = 0;
  #truncated = false;
  #error: Answer['error'] = null;
  #reason: string | null = null;

  constructor(
    request: OutgoingRequest,
    part: Stoppable,
    mayBegin: () => boolean,
    connection: Connection,
    finish: Finish,
  ) {
    this.request = request;
    this.#part = part;
    this.#stops = part.stops;
    this.#mayBegin = mayBegin;
    this.connection = connection;
    this.#finish = finish;
  }

  start(): void {
    const { path, headers, body } = this.request;
    this.mayTryAgain = false;
    try {
      this.connection.client.dispatch({ method: 'POST', path, headers, body }, this);
    } catch (error) {
      queueMicrotask(() => this.onResponseError(this.#controller as never, error as Error));
    }
  }

  get answer(): Answer {
    const { timings, openedAt } = this.connection;
    return {
      startedAt: this.startedAt,
      endedAt: performance.now(),
      firstByteAt: this.#firstByteAt,
      status: this.#status,
      headers: this.#headers,
      body:
        this.#bytes === 0
          ? null
          : this.#chunks.length === 1
            ? (this.#chunks[0] as Buffer)
            : Buffer.concat(this.#chunks),
      truncated: this.#truncated,
      error: this.#error,
      reason: this.#reason,
      connection: openedAt >= this.startedAt ? timings : null,
      isCalledOff: this.#isCalledOff,
    };
  }

  /** The time is over. What is known by now decides: a status that came is an answer. */
  expire(): void {
    if (this.#status === null) this.#error = 'timeout';
    else this.#truncated = true;
    this.#end(false);
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    if (this.#part.stops === this.#stops && this.#mayBegin()) return;
    this.#isCalledOff = true;
    controller.abort(new Error('called off'));
  }

  onResponseStart(
    _controller: Dispatcher.DispatchController,
    status: number,
    headers: Record<string, string | string[] | undefined>,
  ): void {
    // 100, 102 and 103 come before the answer.
    if (status < 200) return;
    this.#firstByteAt = performance.now();
    this.#status = status;
    this.#headers = headers;
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    const room = responseBodyBytesMax - this.#bytes;
    if (chunk.length <= room) {
      // A copy: the chunk is a view of a large buffer that would live as long as it.
      this.#chunks.push(Buffer.from(chunk));
      this.#bytes += chunk.length;
      return;
    }
    this.#chunks.push(Buffer.from(chunk.subarray(0, room)));
    this.#bytes += room;
    this.#truncated = true;
    this.#end(false);
  }

  onResponseEnd(): void {
    this.#end(true);
  }

  onResponseError(_controller: Dispatcher.DispatchController, error: Error): void {
    if (this.#isFinished) return;
    if (this.#isCalledOff) {
      queueMicrotask(() => this.#end(false));
      return;
    }
    const { openedAt } = this.connection;
    const wasKept = openedAt > 0 && openedAt < this.startedAt;
    this.#error = classify(error);
    if (this.#error === 'connection_error' && wasKept && this.#status === null && !this.#isSecondTry) {
      this.#isSecondTry = true;
      this.mayTryAgain = true;
      this.#error = null;
      this.#finish(this, false);
      return;
    }
    this.#reason = error instanceof EgressError ? (error.reason ?? null) : null;
    this.#end(false);
  }

  /** @param isClean whether the connection can carry another exchange */
  #end(isClean: boolean): void {
    if (this.#isFinished) return;
    this.#isFinished = true;
    if (!isClean) this.#controller?.abort(new Error('no more is read'));
    this.#finish(this, isClean);
  }
}

function classify(error: Error): Exclude<AttemptError, 'unexpected_status'> {
  if (error instanceof EgressError) return error.code;
  const code = (error as NodeJS.ErrnoException).code ?? '';
  if (error.name === 'HTTPParserError' || code.startsWith('HPE_')) return 'protocol_error';
  if (code === 'UND_ERR_HEADERS_OVERFLOW' || code === 'UND_ERR_RES_CONTENT_LENGTH_MISMATCH')
    return 'protocol_error';
  if (code.startsWith('ERR_TLS') || code.startsWith('ERR_SSL')) return 'tls_error';
  return 'connection_error';
}
