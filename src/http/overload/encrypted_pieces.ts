/**
 * TLS connections of the server whose encrypted bytes go to OpenSSL in small pieces, by turns. Node.js would hand over all that has arrived,
 * 64 KiB at a time, and OpenSSL processes it at once: 7 ms for records of one byte, and 33 ms for requests to change the keys.
 *
 *   arrived → its turn (read_turns.ts) → (certificates of the client: checked →) decrypted, parsed → arrived …
 *
 * A server that asks for client certificates verifies whatever chain anybody sends, in the thread of all requests: 90 slow certificates take 170 ms. So
 * they have the limits of those of hosts (egress/certificate_check.ts).
 */

import { AsyncLocalStorage } from 'node:async_hooks';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { Server, TLSSocket } from 'node:tls';
import { CertificateCheck } from '../../egress/certificate_check.ts';
import { TcpStream } from '../../shared/tcp_stream.ts';

/** A piece ends few small records, or one of the maximum size. */
const pieceBytesMax = 4_096;

/** @param inTurn called for each piece of a connection. It calls the work once, at once or later. @param isServed whether the handshake is complete */
export function decryptInTurns(
  server: Server,
  inTurn: (tcp: Socket, work: () => void, isServed: boolean) => void,
): void {
  // A program may pass any Duplex to the TLS server as a connection. Those that it accepts itself go to the same listener, which is its first.
  const [startTls] = server.listeners('connection') as ((connection: Duplex) => void)[];
  if (startTls === undefined) throw new Error('the TLS server has no listener for connections');
  server.off('connection', startTls);
  // The types of Node.js do not name it.
  const { requestCert: asksForCertificates = false } = server as { requestCert?: boolean };
  const accepted = new AsyncLocalStorage<EncryptedPieces>();
  if (asksForCertificates) {
    server.on('keylog', (line: Buffer, tls: TLSSocket) =>
      accepted.getStore()?.takeKeys(line.toString('latin1'), tls.getCipher()?.standardName),
    );
  }
  server.on('connection', (tcp: Socket) => {
    tcp.allowHalfOpen = true;
    const check = asksForCertificates ? new CertificateCheck('client') : null;
    const pieces = new EncryptedPieces(tcp, check, (work, isServed) => inTurn(tcp, work, isServed));
    accepted.run(pieces, () => startTls.call(server, pieces));
    // TLS has taken its own behaviour from the stream, and ends it after what is still to be sent.
    pieces.allowHalfOpen = true;
  });
  server.prependListener('secureConnection', (tls: TLSSocket) => {
    const pieces = accepted.getStore();
    if (pieces === undefined) tls.destroy(new Error('the TCP connection of a TLS connection is unknown'));
    else pieces.serve(tls);
  });
}

class EncryptedPieces extends TcpStream {
  /** Null once everything passes. */
  #check: CertificateCheck | null;
  #isChecking = false;
  readonly #inTurn: (work: () => void, isServed: boolean) => void;
  readonly #addresses: PropertyDescriptorMap;
  #tls: TLSSocket | undefined;
  #pieces: Buffer[] = [];
  #isWaiting = false;
  #isWanted = false;
  #endsNext = false;

  constructor(
    tcp: Socket,
    check: CertificateCheck | null,
    inTurn: (work: () => void, isServed: boolean) => void,
  ) {
    super(tcp, { allowHalfOpen: false });
    this.#check = check;
    this.#inTurn = inTurn;
    this.#addresses = addressesOf(tcp);
  }

  /** The handshake is complete. TLS sockets have no addresses if they are not on a TCP socket. */
  serve(tls: TLSSocket): void {
    this.#tls = tls;
    Object.defineProperties(tls, this.#addresses);
  }

  /** Takes a line of the key log, which may decrypt certificates that have arrived. */
  takeKeys(line: string, suite: string | undefined): void {
    this.#passChecked((check) => check.takeKeys(line, suite));
  }

  override _read(): void {
    this.#isWanted = true;
    this.#pass();
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.#pieces = [];
    super._destroy(error, done);
  }

  protected override takeChunk(chunk: Buffer): void {
    for (let at = 0; at < chunk.length; at += pieceBytesMax)
      this.#pieces.push(chunk.subarray(at, at + pieceBytesMax));
    this.#pass();
    if (this.#isWaiting || this.#pieces.length > 0) this.tcp.pause();
  }

  protected override takeEnd(): void {
    this.#endsNext = true;
    this.#pass();
  }

  /** Passes the next piece on when it is its turn, and then the others. */
  #pass(): void {
    if (this.#isWaiting || !this.#isWanted || this.destroyed) return;
    const piece = this.#pieces.shift();
    if (piece !== undefined) {
      this.#isWaiting = true;
      this.#inTurn(() => {
        this.#isWaiting = false;
        if (this.destroyed) return;
        this.#decrypt(piece);
        queueMicrotask(() => this.#pass());
      }, this.#tls !== undefined);
    } else if (this.#endsNext) {
      this.#endsNext = false;
      this.push(null);
    } else this.tcp.resume();
  }

  /**
   * After its own end, TLS needs nothing of the client but the end. Node.js ends the process when OpenSSL then responds to a request to change
   * the keys (`doWrite` of `JSStreamSocket`), and no `catch` gets the error.
   */
  #decrypt(piece: Buffer): void {
    if (this.#check !== null) this.#passChecked((check) => check.take(piece));
    else if (this.#tls?.writableEnded !== true) this.#isWanted = this.push(piece);
  }

  /** Each record is pushed before the next one is read: OpenSSL may report keys in between, which calls this again. */
  #passChecked(step: (check: CertificateCheck) => void): void {
    const check = this.#check;
    if (check === null || this.destroyed) return;
    try {
      step(check);
      if (this.#isChecking) return;
      this.#isChecking = true;
      while (!this.destroyed && !check.isDone) {
        const bytes = check.next();
        if (bytes === null) break;
        this.#isWanted = this.push(bytes);
      }
      this.#isChecking = false;
      if (!check.isDone || this.destroyed) return;
      this.#check = null;
      if (check.rest.length > 0) this.#isWanted = this.push(check.rest);
    } catch (error) {
      this.destroy(error as Error);
    }
  }
}

function addressesOf({
  remoteAddress,
  remotePort,
  remoteFamily,
  localAddress,
  localPort,
}: Socket): PropertyDescriptorMap {
  return {
    remoteAddress: { value: remoteAddress },
    remotePort: { value: remotePort },
    remoteFamily: { value: remoteFamily },
    localAddress: { value: localAddress },
    localPort: { value: localPort },
  };
}
