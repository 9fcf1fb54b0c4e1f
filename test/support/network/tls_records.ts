/** A TLS 1.3 client that composes its records itself, also those that no library sends (RFC 8446). */

import { createCipheriv } from 'node:crypto';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { expandLabel } from './tls_injector.ts';

/** Types of a record's content (RFC 8446 section 5.1). */
const handshakeType = 22;
const dataType = 23;

const cipher = 'TLS_AES_128_GCM_SHA256';

export interface RecordClient {
  /** Sends composed records. */
  readonly tcp: Socket;
  /** Reads what the server sends. */
  readonly tls: TLSSocket;
  /** Composes a record with data. */
  data(text: string): Buffer;
  /** Composes a request to change the keys, which asks the server to do the same (section 4.6.3), and changes them. */
  keyUpdate(): Buffer;
}

/** @param localAddress the address from which the client connects. Composed records must be the first that are sent. */
export async function openRecordClient(port: number, localAddress: string): Promise<RecordClient> {
  const tcp = connect({ port, host: '127.0.0.1', localAddress, noDelay: true }).on('error', () => {});
  const tls = connectTls({ socket: tcp, rejectUnauthorized: false, minVersion: 'TLSv1.3', ciphers: cipher });
  tls.on('error', () => {});
  let secret: Buffer = Buffer.alloc(0);
  tls.on('keylog', (line: Buffer) => {
    const [, hex] = /^CLIENT_TRAFFIC_SECRET_0 \S+ (\S+)/.exec(line.toString()) ?? [];
    if (hex !== undefined) secret = Buffer.from(hex, 'hex');
  });
  await once(tls, 'secureConnect');
  let keys = keysOf(secret);
  const compose = (content: Buffer, type: number) => {
    const head = Buffer.from([dataType, 3, 3, 0, 0]);
    // With the type and the tag.
    head.writeUInt16BE(content.length + 17, 3);
    const nonce = Buffer.from(keys.nonce);
    nonce.writeUInt32BE((nonce.readUInt32BE(8) ^ keys.sequence) >>> 0, 8);
    keys.sequence += 1;
    const sealed = createCipheriv('aes-128-gcm', keys.key, nonce).setAAD(head);
    const parts = [sealed.update(content), sealed.update(Buffer.from([type])), sealed.final()];
    return Buffer.concat([head, ...parts, sealed.getAuthTag()]);
  };
  return {
    tcp,
    tls,
    data: (text) => compose(Buffer.from(text), dataType),
    keyUpdate() {
      const record = compose(Buffer.from([24, 0, 0, 1, 1]), handshakeType);
      secret = expandLabel(secret, 'traffic upd', 32);
      keys = keysOf(secret);
      return record;
    },
  };
}

function keysOf(secret: Buffer) {
  return { key: expandLabel(secret, 'key', 16), nonce: expandLabel(secret, 'iv', 12), sequence: 0 };
}
