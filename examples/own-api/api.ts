/**
 * The notes' API on bare `node:http`, protected by the access tokens of a Nuncio server.
 *
 * In a project of your own the import is from 'nuncio/protect'.
 */

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { createProtector, type Principal, type ProtectorOptions } from '../../src/protect/protect.ts';
import type { Store } from './store.ts';

/** Characters of a note, and bytes of a request, at most. */
const textMax = 10_000;
const bodyBytesMax = 65_536;

export interface ApiOptions {
  store: Store;
  /** Called after each change. */
  onChange: () => void;
  protection: Pick<ProtectorOptions, 'issuer' | 'url' | 'clientId' | 'clientSecret' | 'cacheSeconds'>;
}

export function createApi({ store, onChange, protection }: ApiOptions): Server {
  const protect = createProtector({
    ...protection,
    // Tokens that were asked for with this API as their resource, and no others.
    audience: protection.url,
    scopes: ['read:notes', 'write:notes'],
    name: 'Notes',
  });

  const list = protect.http(['read:notes'], (_request, response, principal) => {
    const account = accountOf(principal, response);
    if (account !== null) answer(response, 200, { items: store.list(account) });
  });

  const add = protect.http(['write:notes'], async (request, response, principal) => {
    const account = accountOf(principal, response);
    if (account === null) return;
    const text = await readText(request);
    if (text === undefined) {
      return problem(response, 422, `text must be a string of 1 to ${textMax} characters`);
    }
    const note = store.add(account, text);
    onChange();
    response.setHeader('location', `/notes/${note.id}`);
    answer(response, 201, note);
  });

  const remove = protect.http(['write:notes'], (request, response, principal) => {
    const account = accountOf(principal, response);
    if (account === null) return;
    const id = request.url?.split(/[/?]/)[2] ?? '';
    if (!store.remove(account, id)) return problem(response, 404, 'There is no such note.');
    onChange();
    response.writeHead(204).end();
  });

  return createServer((request, response) => {
    if (protect.wellKnown(request, response)) return;
    route(request, response).catch(() => {
      if (!response.headersSent) problem(response, 500, 'Something went wrong here.');
      else response.destroy();
    });
  });

  async function route(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const path = request.url?.split('?', 1)[0] ?? '';
    const handlers =
      path === '/notes'
        ? { GET: list, POST: add }
        : /^\/notes\/[0-9a-f-]{36}$/.test(path)
          ? { DELETE: remove }
          : undefined;
    if (handlers === undefined) return problem(response, 404, 'There is nothing here.');
    const handler = (handlers as Record<string, typeof list>)[request.method ?? ''];
    if (handler !== undefined) return handler(request, response);
    response.setHeader('allow', Object.keys(handlers).join(', '));
    problem(response, 405, 'This resource does not know that method.');
  }
}

/** Notes are somebody's: an app that speaks for itself has none. */
function accountOf({ accountId }: Principal, response: ServerResponse): string | null {
  if (accountId === null) problem(response, 403, 'Notes need the permission of a user.');
  return accountId;
}

/** @returns undefined where the body has no good text */
async function readText(request: IncomingMessage): Promise<string | undefined> {
  const chunks: Buffer[] = [];
  let received = 0;
  for await (const chunk of request) {
    received += (chunk as Buffer).length;
    if (received > bodyBytesMax) return undefined;
    chunks.push(chunk as Buffer);
  }
  try {
    const { text } = JSON.parse(Buffer.concat(chunks).toString()) as { text?: unknown };
    return typeof text === 'string' && text.length >= 1 && text.length <= textMax ? text : undefined;
  } catch {
    return undefined;
  }
}

function answer(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json', 'cache-control': 'private' });
  response.end(JSON.stringify(body));
}

function problem(response: ServerResponse, status: number, detail: string): void {
  response.writeHead(status, { 'content-type': 'application/problem+json', 'cache-control': 'no-store' });
  response.end(JSON.stringify({ type: 'about:blank', status, detail }));
}
