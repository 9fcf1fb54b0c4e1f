/**
 * A TCP connection whose first bytes go through the check of certificates (certificate_check.ts) before OpenSSL has them.
 *
 *   checking → certificates checked: waiting for a turn (handshake_turns.ts) → passing everything on
 *   any state → destroyed
 */

import type { Socket } from 'node:net';
import { Duplex } from 'node:stream';
import { CertificateCheck } from './certificate_check.ts';
import { takeHandshakeTurn } from './handshake_turns.ts';

export class CheckedStream extends Duplex {
  readonly #tcp: Socket;
  readonly #address: string;
  /** Null once everything passes. */
  #check: CertificateCheck | null = new CertificateCheck();
  #isWaiting = false;
  #isPassing = false;

  /** @param tcp connected; possibly paused, with bytes that have arrived @param address of the host, in the form of `canonicalAddress` */
  constructor(tcp: Socket, address: string) {
    super();
    this.#tcp = tcp;
    this.#address = address;
    tcp
      .on('data', (chunk: Buffer) => this.#take(chunk))
      .on('end', () => this.push(null))
      .on('error', (error) => this.destroy(error))
      .on('close', () => this.destroy());
  }

  /** Takes a line of the key log. */
  takeKeys(line: Buffer): void {
    this.#try((check) => check.takeKeys(line.toString('latin1')));
  }

  override _read(): void {
    if (!this.#isWaiting) this.#tcp.resume();
  }

  override _write(chunk: Buffer, _encoding: string, done: (error?: Error | null) => void): void {
    this.#tcp.write(chunk, done);
  }

  override _writev(chunks: { chunk: Buffer }[], done: (error?: Error | null) => void): void {
    this.#tcp.cork();
    for (const { chunk } of chunks.slice(0, -1)) this.#tcp.write(chunk);
    this.#tcp.write(chunks.at(-1)?.chunk as Buffer, done);
    this.#tcp.uncork();
  }

  override _final(done: (error?: Error | null) => void): void {
    this.#tcp.end(done);
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#tcp.destroy();
    done(error);
  }

  #take(chunk: Buffer): void {
    if (this.#check !== null) this.#try((check) => check.take(chunk));
    else if (!this.push(chunk)) this.#tcp.pause();
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
    this.#tcp.pause();
    takeHandshakeTurn(this.#address, this.#tcp.remotePort ?? 0, () => {
      if (this.destroyed) return;
      this.#isWaiting = false;
      this.#check = null;
      this.push(Buffer.concat([bytes, check.rest]));
      this.#tcp.resume();
    });
  }
}
