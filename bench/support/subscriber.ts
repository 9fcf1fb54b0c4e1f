/**
 * The subscriber of all senders. It is a separate process, so that its cost does not count as the sender's. It
 * responds 204 as soon as the head of a request has arrived, and counts.
 *
 *   /fast/<anything>   204 at once; counted
 *   /hang/<anything>   204 after 15 s; counted separately
 *   `refusingOrigin`   a port on which nothing listens
 *
 * This file is both sides: `startSubscriber` forks it, and it serves when it is the main module of the process.
 */

import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { monotonicMs } from './measure.ts';

const hangMs = 15_000;

export interface Receipts {
  received: number;
  /** Receipts of deliveries received before; known only while times are recorded. */
  repeated: number;
  hung: number;
  /** `monotonicMs()` of the first and the last counted receipt; 0 without one. */
  firstAt: number;
  lastAt: number;
  /** The time of each delivery's first receipt; empty unless requested. */
  times: Map<string, number>;
}

export interface Expectation {
  /** The number of receipts after which `reached()` resolves. */
  receipts: number;
  /** The header (in lower case) with the delivery's id, for recording times. Without it, no times are recorded. */
  idHeader?: string;
}

export interface Subscriber {
  pid: number;
  origin: string;
  refusingOrigin: string;
  /** Resets the counters. */
  expect(expectation: Expectation): Promise<void>;
  /** Resolves with `monotonicMs()` of the receipt that completes the expectation. */
  reached(): Promise<number>;
  read(): Promise<Receipts>;
  stop(): Promise<void>;
}

type Request = { expect: Expectation } | { read: true };
type Message =
  | { ready: { origin: string; refusingOrigin: string } }
  | { expecting: true }
  | { reached: number }
  | { receipts: Receipts };

/** Starts the process. It listens on loopback only, and exits with its parent. */
export async function startSubscriber(): Promise<Subscriber> {
  const child = fork(fileURLToPath(import.meta.url), { serialization: 'advanced' });
  const { ready } = await answer(child, 'ready');
  let reached: Promise<number> = Promise.resolve(0);
  return {
    pid: child.pid as number,
    ...ready,
    async expect(expectation) {
      reached = answer(child, 'reached').then((message) => message.reached);
      const expecting = answer(child, 'expecting');
      child.send({ expect: expectation } satisfies Request);
      await expecting;
    },
    reached: () => reached,
    async read() {
      const receipts = answer(child, 'receipts');
      child.send({ read: true } satisfies Request);
      return (await receipts).receipts;
    },
    async stop() {
      child.disconnect();
      await once(child, 'exit');
    },
  };
}

function answer<K extends string>(
  child: ChildProcess,
  key: K,
): Promise<Extract<Message, Record<K, unknown>>> {
  return new Promise((resolve) => {
    const listen = (message: Message) => {
      if (!(key in message)) return;
      child.off('message', listen);
      resolve(message as Extract<Message, Record<K, unknown>>);
    };
    child.on('message', listen);
  });
}

async function serve(): Promise<void> {
  let expected = 0;
  let idHeader: string | undefined;
  let receipts = noReceipts();

  const receive = (request: IncomingMessage, response: ServerResponse) => {
    // Discards the body. Otherwise the connection could not be reused.
    request.resume();
    response.sendDate = false;
    if (request.url?.startsWith('/hang/')) {
      receipts.hung += 1;
      const timer = setTimeout(() => response.writeHead(204).end(), hangMs);
      response.once('close', () => clearTimeout(timer));
      return;
    }
    response.writeHead(204).end();
    receipts.received += 1;
    if (receipts.received === 1) receipts.firstAt = monotonicMs();
    if (idHeader !== undefined) note(receipts, request.headers[idHeader]);
    if (receipts.received === expected) {
      receipts.lastAt = monotonicMs();
      send({ reached: receipts.lastAt });
    }
  };

  const server = createServer({ keepAliveTimeout: 120_000, requestTimeout: 0, noDelay: true }, receive);
  const origin = await listen(server);
  const closed = createServer();
  const refusingOrigin = await listen(closed);
  closed.close();

  process.on('message', (request: Request) => {
    if ('expect' in request) {
      receipts = noReceipts();
      expected = request.expect.receipts;
      idHeader = request.expect.idHeader;
      send({ expecting: true });
    } else {
      send({ receipts: receipts.lastAt === 0 ? { ...receipts, lastAt: monotonicMs() } : receipts });
    }
  });
  process.on('disconnect', () => process.exit(0));
  send({ ready: { origin, refusingOrigin } });
}

function note(receipts: Receipts, id: string | string[] | undefined): void {
  if (typeof id !== 'string') return;
  if (receipts.times.has(id)) receipts.repeated += 1;
  else receipts.times.set(id, monotonicMs());
}

function noReceipts(): Receipts {
  return { received: 0, repeated: 0, hung: 0, firstAt: 0, lastAt: 0, times: new Map() };
}

async function listen(server: ReturnType<typeof createServer>): Promise<string> {
  server.listen(0, '127.0.0.1', 4096);
  await once(server, 'listening');
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function send(message: Message): void {
  process.send?.(message);
}

if (import.meta.main) await serve();
