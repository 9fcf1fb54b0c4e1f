/**
 * An HTTP/1.1 connection (RFC 9112) that carries one exchange at a time. A request of up to 64 KiB is one buffer, so it costs
 * one system call. Bytes that arrive while no exchange is in flight close the connection.
 *
 *   idle → request written → waiting for the response → idle
 *   any state → responded: lingering (closing.ts) → closed
 *             → closed
 */

import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import { closeAfterResponse, closeAtOnce } from '../closing.ts';
import type { GuardedConnection } from '../connector.ts';
import { type Connection, type Exchange, ProtocolError, type ResponseParts } from './interface.ts';
import type { HeadCache } from './response_head.ts';
import { ResponseReader } from './response_reader.ts';

/** Requests up to this size are assembled in one buffer. */
const bufferBytesMax = 65_536;
/**
 * A request up to this size is sent before the host can respond (RFC 6928), so a host whose response is too long gets no time to read more: systems keep what
 * it sends meanwhile.
 */
const firstFlightBytes = 14_000;
/** A request up to this size is one TLS record. */
const recordBytesMax = 16_384;

/**
 * Shared buffer in which requests are assembled. Usually the kernel takes a request as soon as it is written, and the
 * buffer can be reused. If it does not, the socket keeps the buffer and a new one is allocated.
 */
let requestBuffer = Buffer.allocUnsafeSlow(bufferBytesMax);

export class Http1Connection implements Connection {
  readonly timings: GuardedConnection['timings'];
  readonly openedFor: string | null;
  readonly openedAt = performance.now();
  readonly #socket: Socket;
  readonly #user: GuardedConnection['user'];
  readonly #host: string;
  readonly #reader: ResponseReader;
  readonly #idleMsMax: number;
  #exchange: Exchange | null = null;
  #isUsable = true;
  /** When the last response arrived or, if it never did in whole, when the exchange ended. */
  #respondedAt = 0;
  #isLingering = false;
  /** Whether there may be more of the response. */
  #isCut = false;
  #requestBytes = 0;
  /** Requests so far, and those that the system has taken. */
  #started = 0;
  #written = 0;
  /** Whether a response means that the system has taken the request: TLS reports a write a turn of the event loop later, when the response may have arrived. */
  #isOneRecord = false;
  idleSince = 0;
  idleMs: number;

  /**
   * @param headCache cache of response heads, shared by the connections of one origin
   * @param idleMsMax maximum milliseconds that the connection may stay idle; 0 for a single exchange
   */
  constructor(opened: GuardedConnection, origin: URL, headCache: HeadCache, idleMsMax: number) {
    this.timings = opened.timings;
    this.#socket = opened.socket;
    this.#user = opened.user;
    this.openedFor = opened.user.tenant;
    this.#host = `host: ${origin.host}\r\nconnection: ${idleMsMax > 0 ? 'keep-alive' : 'close'}\r\n`;
    this.#reader = new ResponseReader(headCache);
    this.#idleMsMax = idleMsMax;
    this.idleMs = idleMsMax;
    this.#socket
      .on('data', (chunk: Buffer) => this.#take(chunk))
      .on('end', () => this.#end())
      .on('error', (error) => this.#fail(error))
      .on('close', () => this.#fail(new Error('the connection was closed')));
    // A tunnel through a proxy arrives paused.
    this.#socket.resume();
  }

  get isUsable(): boolean {
    return this.#isUsable;
  }

  get parts(): ResponseParts {
    const { head, body } = this.#reader;
    return head === null
      ? { status: null, headers: null, headersText: null, body: null }
      : { status: head.status, headers: head.headers, headersText: head.headersText, body };
  }

  start(exchange: Exchange): void {
    this.#exchange = exchange;
    this.#isCut = false;
    this.#started += 1;
    const { method = 'POST', path, headers, body, responseBytesMax, tenant = null } = exchange.request;
    this.#user.tenant = tenant;
    this.#reader.reset(responseBytesMax);
    const length = method === 'GET' ? '' : `content-length: ${body.length}\r\n`;
    const head = `${method} ${path} HTTP/1.1\r\n${this.#host}${headers}${length}\r\n`;
    const socket = this.#socket;
    const bytes = head.length + body.length;
    this.#requestBytes = bytes;
    const isEncrypted = socket instanceof TLSSocket;
    this.#isOneRecord = isEncrypted && bytes <= recordBytesMax;
    if (bytes > bufferBytesMax) {
      socket.cork();
      socket.write(head, 'latin1');
      socket.write(body, this.#onWritten);
      socket.uncork();
      return;
    }
    // TLS encrypts and writes later, so the shared buffer cannot be reused.
    const target = isEncrypted ? Buffer.allocUnsafe(bytes) : requestBuffer;
    target.write(head, 0, head.length, 'latin1');
    body.copy(target, head.length);
    socket.write(target.length === bytes ? target : target.subarray(0, bytes), this.#onWritten);
    if (!isEncrypted && socket.writableLength > 0) requestBuffer = Buffer.allocUnsafeSlow(bufferBytesMax);
  }

  destroy(mayLinger = true): void {
    if (this.#isLingering) return;
    this.#isUsable = false;
    if (this.#exchange !== null) {
      this.#exchange = null;
      this.#isCut = true;
      this.#respondedAt = performance.now();
    }
    this.#isLingering =
      mayLinger && this.#reader.head !== null && !(this.#isCut && this.#requestBytes <= firstFlightBytes);
    if (this.#isLingering) closeAfterResponse(this.#socket, this.#respondedAt, this.openedFor);
    else closeAtOnce(this.#socket);
  }

  readonly #onWritten = (error?: Error | null): void => {
    if (!error) this.#written += 1;
  };

  #take(chunk: Buffer): void {
    const exchange = this.#exchange;
    // Unsolicited bytes must not become the response to the next request.
    if (exchange === null) {
      this.destroy();
      this.#socket.pause();
      return;
    }
    const reader = this.#reader;
    const hadHead = reader.head !== null;
    const reading = reader.take(chunk);
    if (!hadHead && reader.head !== null) exchange.onHead();
    if (reading === 'more') return;
    if (reading === 'invalid') {
      this.#fail(new ProtocolError('the response is not HTTP'));
      return;
    }
    this.#exchange = null;
    this.#isCut = reading === 'full';
    this.#respondedAt = performance.now();
    const isTaken = this.#isOneRecord || this.#socket.writableLength === 0;
    const isReusable = reading === 'done' && reader.isReusable && isTaken;
    if (isReusable) this.idleMs = Math.min(reader.head?.keepAliveMs ?? this.#idleMsMax, this.#idleMsMax);
    else this.#isUsable = false;
    exchange.onResponse(reading === 'full', isReusable);
  }

  #end(): void {
    this.#isUsable = false;
    const exchange = this.#exchange;
    const ending = this.#reader.end();
    if (exchange === null) {
      if (this.#socket.writableLength === 0) closeAtOnce(this.#socket);
      else this.destroy();
    } else if (ending === 'done') {
      this.#exchange = null;
      this.#respondedAt = performance.now();
      exchange.onResponse(false, false);
    } else if (ending === 'invalid') this.#fail(new ProtocolError('the response is not HTTP'));
    else this.#fail(new Error('the connection closed before the response was complete'));
  }

  #fail(error: Error): void {
    this.#isUsable = false;
    const exchange = this.#exchange;
    this.#exchange = null;
    closeAtOnce(this.#socket);
    // A failed write closes the socket before it is read: an early response (RFC 9112 section 9.5) may be lost with it.
    exchange?.onFailure(error, this.#reader.hasBegun || this.#written < this.#started);
  }
}
