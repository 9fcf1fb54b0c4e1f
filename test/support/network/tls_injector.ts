/**
 * A TLS host whose connections get additional records: between the host and its client, a relay encrypts what a test wants to send, with the
 * host's own keys. Node's TLS sends no such records.
 */

import { createCipheriv, createHmac } from 'node:crypto';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer as createTcp, type Socket } from 'node:net';
import { createServer as createTls, type TLSSocket } from 'node:tls';
import type { ServedChain } from './certificate_chain.ts';

/** Types of records and of handshake messages. */
export const handshakeRecord = 22;
const changeCipherRecord = 20;
const encryptedRecord = 23;

/** The smallest `NewSessionTicket` (RFC 8446 section 4.6.1), and a `HelloRequest` (RFC 5246 section 7.4.1.1). */
export const ticketMessage = Buffer.from('0400000e00001c20000000000000014100' + '00', 'hex');
export const helloRequestMessage = Buffer.alloc(4);

/** As many messages as fit in one record. */
export function fullRecord(message: Buffer): Buffer {
  return Buffer.concat(Array.from({ length: Math.floor(16_383 / message.length) }, () => message));
}

/** Encrypts a handshake record for the client. */
export type Encrypt = (content: Buffer) => Buffer;

export interface InjectorOptions {
  chain: ServedChain;
  version: 'TLSv1.2' | 'TLSv1.3';
  /** Called in TLS 1.2 directly behind the host's last message of the handshake, in TLS 1.3 after the first byte of its response. */
  inject: (client: Socket, encrypt: Encrypt) => void;
  host?: string;
}

export async function startInjector(options: InjectorOptions): Promise<{ port: number; close: () => void }> {
  const { chain, version, inject, host = '127.0.0.1' } = options;
  const sockets = new Set<Socket>();
  const keep = (socket: Socket) => sockets.add(socket.on('error', () => {}));
  /** By the port of the relay's connection to the host. */
  const secrets = new Map<number, Buffer>();
  const tls = createTls(
    {
      ...chain,
      minVersion: version,
      maxVersion: version,
      ciphers: version === 'TLSv1.3' ? 'TLS_AES_128_GCM_SHA256' : 'ECDHE-ECDSA-AES128-GCM-SHA256',
    },
    (socket) => {
      keep(socket);
      if (version === 'TLSv1.3') socket.once('data', () => socket.write('H'));
    },
  );
  tls.on('tlsClientError', () => {});
  tls.on('keylog', (line: Buffer, socket: TLSSocket) => {
    const [, secret] = /^(?:SERVER_TRAFFIC_SECRET_0|CLIENT_RANDOM) \S+ (\S+)/.exec(String(line)) ?? [];
    if (secret !== undefined) secrets.set(socket.remotePort as number, Buffer.from(secret, 'hex'));
  });
  await once(tls.listen(0, '127.0.0.1'), 'listening');
  const relay = createTcp({ noDelay: true }, (client) => {
    const server = connect({ port: (tls.address() as AddressInfo).port, host: '127.0.0.1', noDelay: true });
    keep(client).add(keep(server) && server);
    const randoms = Buffer.alloc(64);
    let isFirst = true;
    let isInjected = false;
    client.once('data', (hello: Buffer) => hello.copy(randoms, 32, 11, 43));
    client.pipe(server);
    server.on('data', (chunk: Buffer) => {
      if (isFirst) chunk.copy(randoms, 0, 11, 43);
      isFirst = false;
      client.write(chunk);
      if (isInjected || !hasMark(chunk, version)) return;
      isInjected = true;
      const secret = secrets.get(server.localPort as number) as Buffer;
      inject(client, version === 'TLSv1.3' ? encrypt13(secret) : encrypt12(secret, randoms));
    });
    server.on('close', () => client.destroy());
    client.on('close', () => server.destroy());
  });
  await once(relay.listen(0, host, 4_096), 'listening');
  return {
    port: (relay.address() as AddressInfo).port,
    close() {
      for (const socket of sockets) socket.destroy();
      tls.close();
      relay.close();
    },
  };
}

/** Whether the host has sent its last flight of TLS 1.2, which comes in one piece, or its byte in TLS 1.3. */
function hasMark(chunk: Buffer, version: string): boolean {
  for (let at = 0; at + 5 <= chunk.length; ) {
    const [type, length] = [chunk[at], chunk.readUInt16BE(at + 3)];
    if (
      version === 'TLSv1.3' ? type === encryptedRecord && length === 1 + 1 + 16 : type === changeCipherRecord
    )
      return true;
    at += 5 + length;
  }
  return false;
}

/** RFC 8446 section 5.2. The host has sent two tickets and a byte. */
function encrypt13(secret: Buffer): Encrypt {
  const [key, iv] = [expandLabel(secret, 'key', 16), expandLabel(secret, 'iv', 12)];
  let sequence = 3;
  return (content) => {
    const nonce = Buffer.from(iv);
    nonce.writeUInt32BE((nonce.readUInt32BE(8) ^ sequence) >>> 0, 8);
    sequence += 1;
    const plain = Buffer.concat([content, Buffer.from([handshakeRecord])]);
    const head = Buffer.from([encryptedRecord, 3, 3, 0, 0]);
    head.writeUInt16BE(plain.length + 16, 3);
    const cipher = createCipheriv('aes-128-gcm', key, nonce).setAAD(head);
    return Buffer.concat([head, cipher.update(plain), cipher.final(), cipher.getAuthTag()]);
  };
}

/** `HKDF-Expand-Label` without a context (RFC 8446 section 7.1), for one block. */
export function expandLabel(secret: Buffer, label: string, bytes: number): Buffer {
  const name = `tls13 ${label}`;
  const info = Buffer.concat([Buffer.from([0, bytes, name.length]), Buffer.from(name), Buffer.from([0, 1])]);
  return createHmac('sha256', secret).update(info).digest().subarray(0, bytes);
}

/** RFC 5288. The host has sent its `Finished`. @param randoms of the host and of the client */
function encrypt12(master: Buffer, randoms: Buffer): Encrypt {
  const block = expandSecret(master, Buffer.concat([Buffer.from('key expansion'), randoms]), 40);
  const [key, salt] = [block.subarray(16, 32), block.subarray(36, 40)];
  let sequence = 1;
  return (content) => {
    const number = Buffer.alloc(8);
    number.writeUInt32BE(sequence, 4);
    sequence += 1;
    const length = Buffer.alloc(2);
    length.writeUInt16BE(content.length);
    const head = Buffer.from([handshakeRecord, 3, 3]);
    const cipher = createCipheriv('aes-128-gcm', key, Buffer.concat([salt, number]));
    cipher.setAAD(Buffer.concat([number, head, length]));
    const encrypted = Buffer.concat([number, cipher.update(content), cipher.final(), cipher.getAuthTag()]);
    length.writeUInt16BE(encrypted.length);
    return Buffer.concat([head, length, encrypted]);
  };
}

/** The function P_SHA256 of RFC 5246 section 5. */
function expandSecret(secret: Buffer, seed: Buffer, bytes: number): Buffer {
  const hmac = (data: Buffer) => createHmac('sha256', secret).update(data).digest();
  let [a, out] = [hmac(seed), Buffer.alloc(0)];
  while (out.length < bytes) {
    out = Buffer.concat([out, hmac(Buffer.concat([a, seed]))]);
    a = hmac(a);
  }
  return out.subarray(0, bytes);
}
