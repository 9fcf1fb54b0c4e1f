/** A stream on a TCP connection: what is written goes to the connection, and a subclass passes on what arrives, as it likes. */

import type { Socket } from 'node:net';
import { Duplex } from 'node:stream';

export abstract class TcpStream extends Duplex {
  protected readonly tcp: Socket;

  /** @param tcp connected; possibly paused, with bytes that have arrived */
  constructor(tcp: Socket, options?: { allowHalfOpen: boolean }) {
    super(options);
    this.tcp = tcp;
    tcp
      .on('data', (chunk: Buffer) => this.takeChunk(chunk))
      .on('end', () => this.takeEnd())
      .on('error', (error) => this.destroy(error))
      .on('close', () => this.destroy());
  }

  /** Called with what has arrived. */
  protected abstract takeChunk(chunk: Buffer): void;

  /** Called when the peer has ended. */
  protected abstract takeEnd(): void;

  override _write(chunk: Buffer, _encoding: string, done: (error?: Error | null) => void): void {
    this.tcp.write(chunk, done);
  }

  override _writev(chunks: { chunk: Buffer }[], done: (error?: Error | null) => void): void {
    this.tcp.cork();
    for (const { chunk } of chunks.slice(0, -1)) this.tcp.write(chunk);
    this.tcp.write(chunks.at(-1)?.chunk as Buffer, done);
    this.tcp.uncork();
  }

  override _final(done: (error?: Error | null) => void): void {
    this.tcp.end(done);
  }

  override _destroy(error: Error | null, done: (error?: Error | null) => void): void {
    this.tcp.destroy();
    done(error);
  }
}
