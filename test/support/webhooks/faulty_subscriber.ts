/** A subscriber for the fault tests that fails in every way and records what it receives. */

import assert from 'node:assert/strict';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';

/** One received delivery. */
export interface Arrival {
  /** The delivery's id. */
  id: string;
  sequence: number;
  /** The mark of the event. */
  mark: string;
  /** Milliseconds since 1970. */
  at: number;
}

/** The deliveries that one path received. */
export class Inbox {
  readonly arrivals: Arrival[] = [];
  readonly marks = new Map<string, number>();
  readonly bySequence = new Map<number, string>();
  readonly faults: string[] = [];
  lastAt = 0;

  take(headers: Record<string, unknown>, body: string): void {
    const mark = JSON.parse(body).ref.slice('refs/heads/'.length);
    const sequence = Number(headers['nuncio-sequence']);
    const content = `${headers['nuncio-delivery']} ${body}`;
    if ((this.bySequence.get(sequence) ?? content) !== content)
      this.faults.push(`sequence ${sequence} came with two deliveries`);
    if ((this.marks.get(mark) ?? sequence) !== sequence)
      this.faults.push(`${mark} came as ${this.marks.get(mark)} and as ${sequence}`);
    this.bySequence.set(sequence, content);
    this.marks.set(mark, sequence);
    this.lastAt = Date.now();
    this.arrivals.push({ id: String(headers['nuncio-delivery']), sequence, mark, at: this.lastAt });
  }
}

/** Starts a subscriber that fails at random until it is told to stop failing. */
export async function startFaultySubscriber(t: TestContext, random: () => number) {
  const inboxes = new Map<string, Inbox>();
  const inboxOf = (path: string) => {
    const inbox = inboxes.get(path) ?? new Inbox();
    inboxes.set(path, inbox);
    return inbox;
  };
  let isCalm = false;
  const behave = (path: string, response: ServerResponse) => {
    const dice = isCalm ? 1 : random();
    if (dice < 0.05) response.socket?.resetAndDestroy();
    else if (dice < 0.15) response.writeHead(dice < 0.1 ? 500 : 503).end();
    else if (dice < 0.18) response.writeHead(200).write(Buffer.alloc(100_000));
    else if (dice < 0.185) drip(response);
    else if (dice < 0.188) return;
    // Not for `/all`, which receives every event and would be disabled most of the time. Not for ordered paths
    // either: deliveries held while a subscription is disabled arrive after newer ones.
    else if (dice < 0.1885 && path !== '/all' && !path.startsWith('/ordered')) response.writeHead(410).end();
    else if (dice < 0.3) setTimeout(() => response.writeHead(204).end(), random() * 300);
    else response.writeHead(204).end();
  };
  const drip = (response: ServerResponse) => {
    response.writeHead(200);
    const timer = setInterval(() => response.write('.'), 100);
    response.on('close', () => clearInterval(timer));
  };
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      inboxOf(request.url ?? '').take(request.headers, Buffer.concat(chunks).toString());
      behave(request.url ?? '', response);
    });
  });
  const listen = (port: number) => new Promise<void>((done) => server.listen(port, '127.0.0.1', done));
  await listen(0);
  const { port } = server.address() as AddressInfo;
  const close = () =>
    new Promise<void>((done) => {
      server.close(() => done());
      server.closeAllConnections();
    });
  t.after(close);
  return {
    url: `http://127.0.0.1:${port}`,
    inboxOf,
    /** Refuses every connection for some time. */
    async refuse(ms: number) {
      await close();
      await sleep(ms);
      await listen(port);
    },
    calm() {
      isCalm = true;
    },
  };
}

/** Retries work that fails while the database is unavailable, until it succeeds. */
export async function insist<T>(work: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (error instanceof assert.AssertionError) throw error;
      await sleep(100);
    }
  }
}
