/**
 * The Notes API on `node:http`. Requests require an access token of a Nuncio server.
 *
 * In your project, import from 'nuncio/protect'.
 */

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { createProtector, type Principal, type ProtectorOptions } from '../../src/protect/protect.ts';
import type { Store } from './store.ts';

/** Maximum length of a note, and maximum size of a request body. */
const textCharactersMax = 10_000;
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
    // Accept only tokens that were requested with this API as the resource.
    audience: protection.url,
    scopes: ['read:notes', 'write:notes'],
    name: 'Notes',
  });

  const list = protect.http(['read:notes'], (_request, response, principal) => {
    const account = accountOf(principal, response);
    if (account !== null) sendJson(response, 200, { items: store.list(account) });
  });

  const add = protect.http(['write:notes'], async (request, response, principal) => {
    const account = accountOf(principal, response);
    if (account === null) return;
    const text = await readText(request);
    if (text === undefined) {
      return sendProblem(response, 422, `text must be a string of 1 to ${textCharactersMax} characters`);
    }
    const note = store.add(account, text);
    onChange();
    response.setHeader('location', `/notes/${note.id}`);
    sendJson(response, 201, note);
  });

  const remove = protect.http(['write:notes'], (request, response, principal) => {
    const account = accountOf(principal, response);
    if (account === null) return;
    const id = request.url?.split(/[/?]/)[2] ?? '';
    if (!store.remove(account, id)) return sendProblem(response, 404, 'Note not found.');
    onChange();
    response.writeHead(204).end();
  });

  return createServer((request, response) => {
    if (protect.wellKnown(request, response)) return;
    route(request, response).catch(() => {
      if (!response.headersSent) sendProblem(response, 500, 'Internal error.');
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
    if (handlers === undefined) return sendProblem(response, 404, 'Resource not found.');
    const handler = (handlers as Record<string, typeof list>)[request.method ?? ''];
    if (handler !== undefined) return handler(request, response);
    response.setHeader('allow', Object.keys(handlers).join(', '));
    sendProblem(response, 405, 'Method not allowed.');
  }
}

/** Notes belong to users: a token that an app got for itself has no account. */
function accountOf({ accountId }: Principal, response: ServerResponse): string | null {
  if (accountId === null) sendProblem(response, 403, 'Notes require a token that acts for a user.');
  return accountId;
}

/** @returns undefined if the body has no valid text */
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
    return typeof text === 'string' && text.length >= 1 && text.length <= textCharactersMax
      ? text
      : undefined;
  } catch {
    return undefined;
  }
}

function sendJson(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json', 'cache-control': 'private' });
  response.end(JSON.stringify(body));
}

function sendProblem(response: ServerResponse, status: number, detail: string): void {
  response.writeHead(status, { 'content-type': 'application/problem+json', 'cache-control': 'no-store' });
  response.end(JSON.stringify({ type: 'about:blank', status, detail }));
}
