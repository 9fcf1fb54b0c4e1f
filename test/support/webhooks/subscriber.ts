/** A subscriber for tests: an HTTP server on loopback that records deliveries and responds as configured. */

import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep, setImmediate as turn } from 'node:timers/promises';
import { patienceMs } from '../patience.ts';

export interface Received {
  path: string;
  headers: IncomingHttpHeaders;
  body: string;
  /** Milliseconds since 1970. */
  at: number;
}

export type Behaviour = (received: Received, response: ServerResponse) => void;

export interface Subscriber {
  /** The base URL, such as `http://127.0.0.1:40000`. */
  url: string;
  port: number;
  received: Received[];
  /** Sets the behaviour for subsequent requests. */
  behave: (behaviour: Behaviour) => void;
  /** Waits until the total number of received deliveries reaches `count`. @throws Error on timeout */
  waitFor: (count: number, timeoutMs?: number) => Promise<Received[]>;
}

interface Scope {
  after: (hook: () => Promise<void>) => void;
}

export function accept(_received: Received, response: ServerResponse): void {
  response.writeHead(204).end();
}

/** Responds with a status and optional headers. */
export function answer(status: number, headers: Record<string, string> = {}): Behaviour {
  return (_received, response) => {
    response.writeHead(status, headers).end();
  };
}

/** Counts the requests received. Requests that are still in the socket are read within some turns of the event loop. */
export async function countNow({ received }: Pick<Subscriber, 'received'>): Promise<number> {
  for (let count = 0; count < 20; count += 1) await turn();
  return received.length;
}

export async function startSubscriber(scope: Scope, first: Behaviour = accept): Promise<Subscriber> {
  let behaviour = first;
  const received: Received[] = [];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => {
      const one = {
        path: request.url ?? '',
        headers: request.headers,
        body: Buffer.concat(chunks).toString(),
        at: Date.now(),
      };
      received.push(one);
      behaviour(one, response);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  scope.after(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return {
    url: `http://127.0.0.1:${port}`,
    port,
    received,
    behave: (next) => {
      behaviour = next;
    },
    async waitFor(count, timeoutMs = patienceMs) {
      const until = Date.now() + timeoutMs;
      while (received.length < count) {
        if (Date.now() > until) throw new Error(`${received.length} of ${count} deliveries came`);
        await sleep(10);
      }
      return received;
    },
  };
}
