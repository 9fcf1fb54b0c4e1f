/**
 * A TCP connection whose first bytes go through the check of certificates (certificate_check.ts) before OpenSSL has them. Later ones have
 * limits (record_limit.ts), and are passed on in small pieces, so that OpenSSL does not process much at once.
 *
 *   checking → certificates checked: waiting for a turn (tls_turns.ts) → passing pieces on ⇄ waiting for a turn
 *   any state → destroyed
 */

import type { Socket } from 'node:net';
import { TcpStream } from '../shared/tcp_stream.ts';
import { CertificateCheck } from './certificate_check.ts';
import { closeAtOnce } from './closing.ts';
import { EgressError } from './error.ts';
import { RecordLimit } from './record_limit.ts';
import { type PeerOfTenant, takeHandshakeTurn, takeRecordTurn } from './tls_turns.ts';

/** A piece ends few small records, or one of the maximum size. */
const pieceBytesMax = 4_096;

export class CheckedStream extends TcpStream {
  readonly #peer: PeerOfTenant;
  /** Null from the turn of the handshake on. */
  #isOver: (() => boolean) | null;
  /** Null once everything passes. */
  #check: CertificateCheck | null = new CertificateCheck('server');
  #limit: RecordLimit | null = null;
  /** What has arrived of checked records and waits for a turn. */
  #pieces: Buffer[] = [];
  #isWaiting = false;
  /** When the wait for the turn of the handshake began and ended, on the monotonic clock. */
  #waitedFrom: number | null = null;
  #waitedTo: number | null = null;
  #isPassing = false;
  #hasEnded = false;

  /** @param tcp connected; possibly paused, with bytes that have arrived @param isOver whether nobody wants the connection any more */
  constructor(tcp: Socket, peer: PeerOfTenant, isOver: () => boolean = () => false) {
    super(tcp);
    // What waits for a turn is passed on although the host has ended.
    tcp.allowHalfOpen = true;
    this.#peer = peer;
    this.#isOver = isOver;
  }

  /** Milliseconds for which the handshake has waited for its turn. The host did not cause them. */
  get waitedMs(): number {
    return this.#waitedFrom === null ? 0 : (this.#waitedTo ?? performance.now()) - this.#waitedFrom;
  }

  /** Takes a line of the key log. */
  takeKeys(line: Buffer): void {
    this.#try((check) => check.takeKeys(line.toString('latin1')));
  }

  /** Takes a ticket for later connections, which OpenSSL has read. */
  takeTicket(): void {
    this.#refuse(this.#limit?.takeTicket() ?? null);
  }

  /** The handshake is complete. */
  endHandshake(): void {
    this.#limit?.endHandshake();
  }

  override _read(): void {
    if (!this.#isWaiting) this.tcp.resume();
  }

  override _write(chunk: Buffer, encoding: string, done: (error?: Error | null) => void): void {
    this.#limit?.sent(chunk);
    super._write(chunk, encoding, done);
  }

  override _writev(chunks: { chunk: Buffer }[], done: (error?: Error | null) => void): void {
    for (const { chunk } of chunks) this.#limit?.sent(chunk);
    super._writev(chunks, done);
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    closeAtOnce(this.tcp);
    done(error);
  }

  protected override takeEnd(): void {
    this.#hasEnded = true;
    if (!this.#isWaiting) this.push(null);
  }

  protected override takeChunk(chunk: Buffer): void {
    if (this.#limit === null) this.#try((check) => check.take(chunk));
    else this.#passPieces(this.#limit, chunk);
  }

  /** @param reason null for none */
  #refuse(reason: string | null): void {
    if (reason !== null) this.destroy(new EgressError('tls_error', { reason }));
  }

  /** Counts bytes and passes them on, now or in later turns. */
  #passPieces(limit: RecordLimit, bytes: Buffer): void {
    this.#refuse(limit.take(bytes));
    for (let at = 0; at < bytes.length; at += pieceBytesMax)
      this.#pieces.push(bytes.subarray(at, at + pieceBytesMax));
    this.#passNext();
  }

  #passNext(): void {
    while (!this.#isWaiting && !this.destroyed) {
      const piece = this.#pieces.shift();
      if (piece === undefined) {
        if (this.#hasEnded) this.push(null);
        return;
      }
      this.#isWaiting = true;
      let isNow = true;
      const isPassed = takeRecordTurn(this.#peer, piece.length, () => {
        this.#isWaiting = false;
        if (this.destroyed) return;
        if (!this.push(piece)) this.tcp.pause();
        else if (!isNow && this.#pieces.length === 0 && !this.#hasEnded) this.tcp.resume();
        if (!isNow) this.#passNext();
      });
      isNow = false;
      if (!isPassed) this.tcp.pause();
    }
  }

  #try(step: (check: CertificateCheck) => void): void {
    if (this.#check === null) return;
    try {
      step(this.#check);
      this.#pass(this.#check);
    } catch (error) {
      this.destroy(error as Error);
    }
  }

  /** Each record is pushed before the next one is read: OpenSSL may report keys in between, which calls this again. */
  #pass(check: CertificateCheck): void {
    if (this.#isPassing || this.#isWaiting) return;
    this.#isPassing = true;
    while (!this.destroyed && !check.isDone) {
      const bytes = check.next();
      if (bytes === null) break;
      if (check.isDone) this.#wait(check, bytes);
      else this.push(bytes);
    }
    this.#isPassing = false;
  }

  #wait(check: CertificateCheck, bytes: Buffer): void {
    this.#isWaiting = true;
    this.tcp.pause();
    this.#waitedFrom = performance.now();
    takeHandshakeTurn(this.#peer, () => {
      this.#waitedTo = performance.now();
      if (this.#isOver?.() === true) this.destroy(new EgressError('connect_error'));
      this.#isOver = null;
      if (this.destroyed) return false;
      this.#isWaiting = false;
      this.#check = null;
      const limit = new RecordLimit(check.isTls13);
      this.#limit = limit;
      this.push(bytes);
      if (!this.#hasEnded) this.tcp.resume();
      this.#passPieces(limit, check.rest);
      return true;
    });
  }
}
