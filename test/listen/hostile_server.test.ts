/** Attack: `nuncio listen` with a server that wants to fill it, keep it busy, send it elsewhere or deceive its reader. */

import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { type ListenOptions, listen } from '../../src/listen/listen.ts';
import { startOtherServer } from '../support/network/other_server.ts';
import { until } from '../support/webhooks/apps.ts';

type Answer = (response: ServerResponse, request: IncomingMessage) => void;

const json =
  (value: unknown): Answer =>
  (response) =>
    void response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(value));

/** Writes for as long as somebody reads. */
const endless: Answer = (response) => {
  const fill = () => {
    while (response.write(chunk));
  };
  response.on('drain', fill);
  fill();
};
const chunk = Buffer.alloc(65_536, 'x');

/** A server that behaves, except for some paths. */
async function startServer(t: TestContext, hostile: Readonly<Record<string, Answer>> = {}) {
  const requests: { path: string; at: number }[] = [];
  const good: Readonly<Record<string, Answer>> = {
    '/.well-known/oauth-protected-resource': json({ scopes_supported: ['read:posts'] }),
    '/oauth/device': json({ device_code: 'device', user_code: 'ABCD-EFGH', interval: 1 }),
    '/oauth/token': json({ access_token: 'access', refresh_token: 'refresh', expires_in: 900 }),
    '/subscriptions': json({ id: 'one', secret: 'whsec_one' }),
    '/subscriptions/one/deliveries': json({ items: [] }),
    '/meta': json({ headers: { signature: 'Nuncio-Signature' } }),
    '/subscriptions/one/events': (response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write(': hello\n\n');
    },
  };
  const baseUrl = await startOtherServer(t, (request, response) => {
    const path = (request.url ?? '').split('?')[0] as string;
    requests.push({ path, at: performance.now() });
    request.resume();
    (hostile[path] ?? good[path] ?? json({}))(response, request);
  });
  return {
    baseUrl,
    of: (path: string) => requests.filter((request) => request.path === path),
  };
}

async function start(t: TestContext, baseUrl: string, options: Partial<ListenOptions> = {}) {
  const home = await mkdtemp(join(tmpdir(), 'nuncio-listen-'));
  const stop = new AbortController();
  const lines: string[] = [];
  const ended = listen({
    baseUrl,
    statePath: join(home, 'listen.json'),
    forwardTo: null,
    kinds: ['push'],
    replayAfter: null,
    secret: null,
    printsBodies: true,
    isColored: false,
    print: (line) => lines.push(line),
    signal: stop.signal,
    ...options,
  }).then(
    () => '',
    (error: Error) => error.message,
  );
  t.after(async () => {
    stop.abort();
    await ended;
    await rm(home, { recursive: true, force: true });
  });
  return {
    ended,
    lines,
    says: (text: RegExp) =>
      until(
        async () => lines.join('\n'),
        (all) => text.test(all),
      ),
  };
}

test('attack: no redirect is followed to an address inside', async (t) => {
  const internal = await startServer(t);
  const redirect: Answer = (response) =>
    void response.writeHead(307, { location: `${internal.baseUrl}/inside` }).end();
  const early = await startServer(t, { '/.well-known/oauth-protected-resource': redirect });
  assert.match(await (await start(t, early.baseUrl)).ended, /cannot be reached/);
  const late = await startServer(t, { '/subscriptions/one/events': redirect, '/oauth/device': redirect });
  assert.notEqual(await (await start(t, late.baseUrl)).ended, '');
  assert.deepEqual(internal.of('/inside'), []);
});

test('attack: endless responses are read up to a limit', async (t) => {
  for (const [path, message] of [
    ['/.well-known/oauth-protected-resource', ''],
    ['/oauth/device', 'does not offer signing in'],
    ['/subscriptions', 'has made no subscription'],
  ] as const) {
    const { baseUrl } = await startServer(t, { [path]: endless });
    const listening = await start(t, baseUrl);
    if (message === '') await listening.says(/Listening for push/);
    else assert.match(await listening.ended, new RegExp(message));
  }
});

test('attack: an event that never ends is given up, and the stream is opened again', async (t) => {
  const server = await startServer(t, {
    '/subscriptions/one/events': (response, request) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write('data: ');
      endless(response, request);
    },
  });
  const listening = await start(t, server.baseUrl);
  await listening.says(/disconnected \(an event is too large\)/);
  await until(
    async () => server.of('/subscriptions/one/events').length,
    (count) => count > 1,
  );
});

test('attack: a stream that ends at once is not opened again at once', async (t) => {
  const server = await startServer(t, {
    '/subscriptions/one/events': (response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).end('id: none\ndata: {}\n\n');
    },
  });
  await start(t, server.baseUrl);
  const opened = () => server.of('/subscriptions/one/events');
  await until(
    async () => opened().length,
    (count) => count >= 4,
  );
  const [first, , , fourth] = opened();
  assert.ok((fourth?.at ?? 0) - (first?.at ?? 0) > 1_000);
});

test('attack: an interval of the server’s choice causes no flood of token requests', async (t) => {
  for (const interval of [-1, 0, 'soon', 1e-9]) {
    const server = await startServer(t, {
      '/oauth/device': json({ device_code: 'device', user_code: 'ABCD-EFGH', interval }),
      '/oauth/token': json({ error: 'authorization_pending' }),
    });
    await start(t, server.baseUrl);
    const polls = () => server.of('/oauth/token');
    if (interval === 'soon') continue;
    await until(
      async () => polls().length,
      (count) => count >= 2,
    );
    const [first, second] = polls();
    assert.ok((second?.at ?? 0) - (first?.at ?? 0) > 900, String(interval));
  }
  // A timer for a longer time than it can count would end at once.
  const server = await startServer(t, {
    '/oauth/device': json({ device_code: 'device', user_code: 'ABCD-EFGH', interval: 1e12 }),
  });
  const listening = await start(t, server.baseUrl);
  await listening.says(/ABCD-EFGH/);
  await new Promise((resolve) => setImmediate(resolve));
  assert.deepEqual(server.of('/oauth/token'), []);
});

test('attack: what the server says moves no cursor and hides no text', async (t) => {
  const evil = '\u001b[2J\u009b31m\u202egnp.exe\u0007';
  const event = { sequence: 1, id: evil, kind: evil, headers: {}, body: evil };
  const server = await startServer(t, {
    '/subscriptions': json({ id: 'one', secret: evil }),
    '/subscriptions/one/deliveries': json({ items: [{ sequence: evil }] }),
    '/oauth/device': json({ device_code: 'device', user_code: evil, interval: 1 }),
    '/subscriptions/one/events': (response) => {
      response.writeHead(200, { 'content-type': 'text/event-stream' });
      response.write(`id: 1\ndata: ${JSON.stringify(event)}\n\nevent: gap\nid: 2\ndata: ${evil}\n\n`);
      response.end(`event: terminated\ndata: ${JSON.stringify({ reason: evil })}\n\n`);
    },
  });
  const listening = await start(t, server.baseUrl);
  const output = `${listening.lines.join('\n')}${await listening.ended}${listening.lines.join('\n')}`;
  assert.match(output, /gnp\.exe/);
  assert.match(output, /missing: /);
  assert.doesNotMatch(output, /[^\P{Cc}\n]|\u202e/u);
});
