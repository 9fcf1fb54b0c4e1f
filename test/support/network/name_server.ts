/** A name server on loopback, which answers over UDP and TCP as a test wants. */

import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { type AddressInfo, createServer } from 'node:net';
import type { TestContext } from 'node:test';
import type { NameServer } from '../../../src/egress/dns/message.ts';

export interface Asked {
  id: number;
  name: string;
  /** 1 for IPv4, 28 for IPv6. */
  type: number;
  /** The name, type and class. */
  section: Buffer;
  isTcp: boolean;
}

/** @returns the messages of the answer; none for no answer */
type Respond = (asked: Asked) => readonly Buffer[] | Promise<readonly Buffer[]>;

export interface NameServerForTest {
  server: NameServer;
  asked: Asked[];
}

export async function startNameServer(t: TestContext, respond: Respond): Promise<NameServerForTest> {
  const asked: Asked[] = [];
  let isClosed = false;
  const answer = async (message: Buffer, isTcp: boolean, send: (answer: Buffer) => void) => {
    const question = { ...readQuestion(message), isTcp };
    asked.push(question);
    for (const each of await respond(question)) send(each);
  };
  const tcp = createServer((socket) => {
    socket
      .on('error', () => {})
      .once('data', (chunk: Buffer) => {
        void answer(chunk.subarray(2), true, (message) => {
          const length = Buffer.alloc(2);
          length.writeUInt16BE(message.length);
          socket.write(Buffer.concat([length, message]));
        });
      });
  });
  await once(tcp.listen(0, '127.0.0.1'), 'listening');
  const { port } = tcp.address() as AddressInfo;
  const udp = createSocket('udp4');
  udp.on('message', (message, peer) => {
    void answer(message, false, (each) => {
      if (!isClosed) udp.send(each, peer.port, peer.address);
    });
  });
  udp.bind(port, '127.0.0.1');
  await once(udp, 'listening');
  t.after(() => {
    isClosed = true;
    udp.close();
    tcp.close();
  });
  return { server: { address: '127.0.0.1', port }, asked };
}

function readQuestion(message: Buffer): Omit<Asked, 'isTcp'> {
  const labels: string[] = [];
  let at = 12;
  for (let length = message[at] as number; length > 0; length = message[at] as number) {
    labels.push(message.toString('latin1', at + 1, at + 1 + length));
    at += 1 + length;
  }
  const section = message.subarray(12, at + 5);
  return { id: message.readUInt16BE(0), name: labels.join('.'), type: message.readUInt16BE(at + 1), section };
}

/** Settings of an answer. */
interface AnswerParts {
  /** The code of the response (RFC 1035 section 4.1.1). */
  code?: number;
  isTruncated?: boolean;
  /** Whether the server asks no others, and knows none of it itself. */
  isReferral?: boolean;
  id?: number;
  section?: Buffer;
  /** Bytes of records that come first, and their number. */
  before?: [number, Buffer];
}

/** An answer with addresses, each as its bytes. */
export function answerTo(asked: Asked, addresses: readonly Buffer[], parts: AnswerParts = {}): Buffer {
  const {
    code = 0,
    isTruncated = false,
    isReferral = false,
    id = asked.id,
    section = asked.section,
    before,
  } = parts;
  const head = Buffer.alloc(12);
  head.writeUInt16BE(id, 0);
  head.writeUInt16BE((isReferral ? 0x8100 : 0x8180) | (isTruncated ? 0x200 : 0) | code, 2);
  head.writeUInt16BE(1, 4);
  head.writeUInt16BE(addresses.length + (before?.[0] ?? 0), 6);
  const records = addresses.flatMap((address) => [recordHead(address.length), address]);
  return Buffer.concat([head, section, before?.[1] ?? Buffer.alloc(0), ...records]);
}

/** What precedes an address: a pointer to the name of the question, type, class, time to live and length. */
function recordHead(bytes: number): Buffer {
  return Buffer.from([0xc0, 12, 0, bytes === 4 ? 1 : 28, 0, 1, 0, 0, 0, 0, 0, bytes]);
}

/** A record `CNAME` that leads to a name with these labels. */
export function aliasTo(labels: readonly string[]): Buffer {
  const name = Buffer.concat([
    ...labels.map((label) => Buffer.concat([Buffer.from([label.length]), Buffer.from(label)])),
    Buffer.from([0]),
  ]);
  return Buffer.concat([Buffer.from([0xc0, 12, 0, 5, 0, 1, 0, 0, 0, 0, 0, name.length]), name]);
}
