/** A proxy in front of a Nuncio server that fails in every way, for tests of publishers. */

import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** What happens to one request. `pass` forwards it; `late` forwards it and loses the response. */
export type ProxyBehaviour =
  | 'pass'
  | 'late'
  | 'half'
  | 'drop'
  | 'hang'
  | { status: number; headers?: Record<string, string>; body?: string };

export interface FaultyProxy {
  /** Replaces the global `fetch` and sends `POST /events` through the proxy. */
  fetch: (url: string, init?: RequestInit) => Promise<Response>;
  /** Sets what happens to subsequent requests. */
  behave: (next: (body: string) => ProxyBehaviour) => void;
  /** Bodies of all requests so far. */
  requests: string[];
}

interface Scope {
  after: (hook: () => Promise<void>) => void;
}

/** Timeout of a hanging request in `fetch`. It is shorter than the publisher's. */
const hangMs = 300;

export async function startFaultyProxy(scope: Scope, baseUrl: string): Promise<FaultyProxy> {
  let behaviour: (body: string) => ProxyBehaviour = () => 'pass';
  const requests: string[] = [];
  let isHanging = false;

  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const body = Buffer.concat(chunks).toString();
    requests.push(body);
    const trouble = behaviour(body);
    if (trouble === 'drop') return void response.destroy();
    if (trouble === 'hang') {
      isHanging = true;
      return;
    }
    if (typeof trouble === 'object') {
      return void response.writeHead(trouble.status, trouble.headers).end(trouble.body ?? '');
    }
    const answer = await fetch(`${baseUrl}/events`, {
      method: 'POST',
      headers: {
        authorization: String(request.headers.authorization),
        'content-type': String(request.headers['content-type']),
      },
      body,
    });
    const text = await answer.text();
    if (trouble === 'late') return void response.destroy();
    response.writeHead(answer.status, {
      'content-type': String(answer.headers.get('content-type')),
      'content-length': Buffer.byteLength(text),
    });
    if (trouble === 'pass') return void response.end(text);
    response.write(text.slice(0, 5), () => response.destroy());
  }

  const server = createServer((request, response) => {
    handle(request, response).catch(() => response.destroy());
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  scope.after(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/events`;
  return {
    requests,
    behave: (next) => {
      behaviour = next;
    },
    async fetch(asked, init) {
      if (asked !== `${baseUrl}/events`) return fetch(asked, init);
      const giveUp = new AbortController();
      init?.signal?.addEventListener('abort', () => giveUp.abort());
      const timer = setInterval(() => {
        if (isHanging) giveUp.abort();
        isHanging = false;
      }, hangMs);
      try {
        return await fetch(url, { ...init, signal: giveUp.signal });
      } finally {
        clearInterval(timer);
      }
    },
  };
}
