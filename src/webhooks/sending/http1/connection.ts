/**
 * A connection that speaks HTTP/1.1 (RFC 9112), one exchange at a time. The request is one piece of bytes where it is
 * not large, so that it costs one call of the system. What comes while nothing is under way ends the connection.
 *
 *   idle → (request written) → waiting for the answer → idle;   closed at any point
 */

import type { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import type { GuardedConnection } from '../../../egress/connector.ts';
import { type Connection, type Exchange, ProtocolError, type ResponseParts } from '../connection.ts';
import type { HeadCache } from './response_head.ts';
import { ResponseReader } from './response_reader.ts';

/** Bytes up to which head and body are put together. */
const pieceBytesMax = 65_536;

/**
 * Where requests are put together. The system has taken a request as soon as it is written, so the next one may be
 * put where it stood; where the system has not, this memory is left to the socket.
 */
let piece = Buffer.allocUnsafeSlow(pieceBytesMax);

export class Http1Connection implements Connection {
  readonly timings: GuardedConnection['timings'];
  readonly openedAt = performance.now();
  readonly #socket: Socket;
  readonly #host: string;
  readonly #answer: ResponseReader;
  readonly #idleMsMax: number;
  #exchange: Exchange | null = null;
  #isUsable = true;
  idleSince = 0;
  idleMs: number;

  /**
   * @param memory shared by the connections of one origin
   * @param idleMsMax milliseconds that it may be kept idle at most
   */
  constructor(opened: GuardedConnection, origin: URL, memory: HeadCache, idleMsMax: number) {
    this.timings = opened.timings;
    this.#socket = opened.socket;
    this.#host = `host: ${origin.host}\r\nconnection: keep-alive\r\n`;
    this.#answer = new ResponseReader(memory);
    this.#idleMsMax = idleMsMax;
    this.idleMs = idleMsMax;
    this.#socket
      .on('data', (chunk: Buffer) => this.#take(chunk))
      .on('end', () => this.#end())
      .on('error', (error) => this.#fail(error))
      .on('close', () => this.#fail(new Error('the connection was closed')));
    // A tunnel through a proxy was paused.
    this.#socket.resume();
  }

  get isUsable(): boolean {
    return this.#isUsable;
  }

  get parts(): ResponseParts {
    const { head, body } = this.#answer;
    return head === null
      ? { status: null, headers: null, headersText: null, body: null }
      : { status: head.status, headers: head.headers, headersText: head.headersText, body };
  }

  start(exchange: Exchange): void {
    this.#exchange = exchange;
    this.#answer.reset();
    const { path, headers, body } = exchange.request;
    const head = `POST ${path} HTTP/1.1\r\n${this.#host}${headers}content-length: ${body.length}\r\n\r\n`;
    const socket = this.#socket;
    const bytes = head.length + body.length;
    if (bytes > pieceBytesMax) {
      socket.cork();
      socket.write(head, 'latin1');
      socket.write(body);
      socket.uncork();
      return;
    }
    // What is encrypted is written later.
    const isKept = socket instanceof TLSSocket;
    const target = isKept ? Buffer.allocUnsafe(bytes) : piece;
    target.write(head, 0, head.length, 'latin1');
    body.copy(target, head.length);
    socket.write(target.length === bytes ? target : target.subarray(0, bytes));
    if (!isKept && socket.writableLength > 0) piece = Buffer.allocUnsafeSlow(pieceBytesMax);
  }

  destroy(): void {
    this.#isUsable = false;
    this.#exchange = null;
    this.#socket.destroy();
  }

  #take(chunk: Buffer): void {
    const exchange = this.#exchange;
    // Nobody asked for it, and it must not be taken for the answer to what comes next.
    if (exchange === null) {
      this.destroy();
      return;
    }
    const answer = this.#answer;
    const hadHead = answer.head !== null;
    const reading = answer.take(chunk);
    if (!hadHead && answer.head !== null) exchange.onHead();
    if (reading === 'more') return;
    if (reading === 'wrong') {
      this.#fail(new ProtocolError('the answer is not HTTP'));
      return;
    }
    this.#exchange = null;
    const isReusable = reading === 'done' && answer.isReusable && this.#socket.writableLength === 0;
    if (isReusable) this.idleMs = Math.min(answer.head?.keepAliveMs ?? this.#idleMsMax, this.#idleMsMax);
    else this.#isUsable = false;
    exchange.onResponse(reading === 'enough', isReusable);
  }

  #end(): void {
    this.#isUsable = false;
    const exchange = this.#exchange;
    const ending = this.#answer.end();
    if (exchange === null) {
      this.destroy();
    } else if (ending === 'done') {
      this.#exchange = null;
      exchange.onResponse(false, false);
    } else if (ending === 'wrong') this.#fail(new ProtocolError('the answer is not HTTP'));
    else this.#fail(new Error('the connection ended before the answer'));
  }

  #fail(error: Error): void {
    this.#isUsable = false;
    const exchange = this.#exchange;
    this.#exchange = null;
    this.#socket.destroy();
    exchange?.onFailure(error, this.#answer.hasBegun);
  }
}
