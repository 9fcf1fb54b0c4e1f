/** An HTTP/2 connection (RFC 9113), driven by `undici`. Like HTTP/1.1 it carries one exchange at a time. */

import { Client, type Dispatcher } from 'undici';
import type { GuardedConnection } from '../../egress/connector.ts';
import { type Connection, type Exchange, ProtocolError, type ResponseParts } from './connection.ts';
import type { ResponseHeaders } from './http1/response_head.ts';
import { responseBodyBytesMax, responseChunksMax, responseHeadBytesMax } from './http1/response_reader.ts';

export class Http2Connection implements Connection, Dispatcher.DispatchHandler {
  readonly timings: GuardedConnection['timings'];
  readonly openedAt = performance.now();
  readonly #client: Client;
  readonly idleMs: number;
  idleSince = 0;
  #isUsable = true;
  #exchange: Exchange | null = null;
  /** Whether any response has arrived, also an interim one. */
  #hasBegun = false;
  #controller: Dispatcher.DispatchController | undefined;
  #status: number | null = null;
  #headers: ResponseHeaders | null = null;
  #chunks: Buffer[] = [];
  #bytes = 0;

  constructor({ socket, timings }: GuardedConnection, origin: URL, idleMs: number) {
    this.timings = timings;
    this.idleMs = idleMs;
    let isTaken = false;
    this.#client = new Client(origin, {
      connect: (_options, callback) => {
        // This client has exactly one connection and never opens another.
        if (isTaken) return callback(new Error('the connection was closed'), null);
        isTaken = true;
        callback(null, socket as Parameters<typeof callback>[1] & object);
      },
      pipelining: 1,
      headersTimeout: 0,
      bodyTimeout: 0,
      maxHeaderSize: responseHeadBytesMax,
      keepAliveTimeout: idleMs,
      allowH2: true,
    });
    socket.once('close', () => {
      this.#isUsable = false;
    });
  }

  get isUsable(): boolean {
    return this.#isUsable;
  }

  get parts(): ResponseParts {
    const headers = this.#headers;
    return {
      status: this.#status,
      headers,
      headersText: headers === null ? null : JSON.stringify(headers),
      body: this.#bytes === 0 ? null : Buffer.concat(this.#chunks),
    };
  }

  start(exchange: Exchange): void {
    this.#exchange = exchange;
    this.#hasBegun = false;
    this.#status = null;
    this.#headers = null;
    this.#chunks = [];
    this.#bytes = 0;
    const { path, headers, body } = exchange.request;
    const lines = headers.split('\r\n').filter((line) => line !== '');
    const pairs = lines.flatMap((line) => {
      const colon = line.indexOf(':');
      return [line.slice(0, colon), line.slice(colon + 1).trim()];
    });
    try {
      this.#client.dispatch({ method: 'POST', path, headers: pairs, body }, this);
    } catch (error) {
      queueMicrotask(() => this.onResponseError(undefined, error as Error));
    }
  }

  destroy(): void {
    this.#isUsable = false;
    this.#exchange = null;
    void this.#client.destroy();
  }

  /** Called just before the request is sent. A new connection waits for the peer's settings until then. */
  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    const exchange = this.#exchange;
    if (exchange === null || exchange.mayBegin) return;
    this.#exchange = null;
    this.#isUsable = false;
    controller.abort(new Error('the exchange was cancelled'));
    exchange.cancel(this);
  }

  onResponseStart(
    controller: Dispatcher.DispatchController,
    status: number,
    headers: Record<string, string | string[] | undefined>,
  ): void {
    this.#hasBegun = true;
    // 102 and 103 precede the final response.
    if (status < 200) return;
    if (headerListBytes(headers) > responseHeadBytesMax) {
      controller.abort(new ProtocolError('the header section is too large'));
      return;
    }
    this.#status = status;
    this.#headers = headers as ResponseHeaders;
    this.#exchange?.onHead();
  }

  onResponseData(_controller: Dispatcher.DispatchController, chunk: Buffer): void {
    const { responseBytesMax = responseBodyBytesMax } = this.#exchange?.request ?? {};
    const room = responseBytesMax - this.#bytes;
    if (this.#chunks.length === responseChunksMax) this.#chunks = [Buffer.concat(this.#chunks)];
    // A copy, because the chunk may be a view that would keep a large buffer alive.
    const part = Buffer.from(chunk.subarray(0, room));
    this.#chunks.push(part);
    this.#bytes += part.length;
    if (chunk.length > room) this.#finish(true);
  }

  onResponseEnd(): void {
    this.#finish(false);
  }

  onResponseError(_controller: Dispatcher.DispatchController | undefined, error: Error): void {
    const exchange = this.#exchange;
    this.#exchange = null;
    this.#isUsable = false;
    exchange?.onFailure(error, this.#hasBegun || isStreamEnd(error));
  }

  #finish(isTruncated: boolean): void {
    const exchange = this.#exchange;
    this.#exchange = null;
    if (isTruncated) {
      this.#isUsable = false;
      this.#controller?.abort(new Error('the body exceeds what is kept'));
    }
    exchange?.onResponse(isTruncated, !isTruncated && this.#isUsable);
  }
}

/**
 * Whether the peer ended the stream, and not the connection: that is a response to the request. `undici` itself repeats
 * requests whose stream says that they were not processed (RFC 9113 section 8.7).
 */
function isStreamEnd({ code }: NodeJS.ErrnoException): boolean {
  return code === 'ERR_HTTP2_STREAM_ERROR' || code === 'UND_ERR_INFO';
}

/** The size of a header section by RFC 9113 section 6.5.2: names, values, and 32 bytes per field. */
function headerListBytes(headers: Record<string, string | string[] | undefined>): number {
  let bytes = 0;
  for (const [name, value] of Object.entries(headers)) {
    for (const each of [value].flat()) bytes += name.length + (each?.length ?? 0) + 32;
  }
  return bytes;
}
