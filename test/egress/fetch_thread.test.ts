/** Fetches in a thread: the same results and errors as in the caller's thread, over real HTTPS, and threads that hang or die. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { monitorEventLoopDelay } from 'node:perf_hooks';
import { after, type TestContext, test } from 'node:test';
import type { ConnectorOptions } from '../../src/egress/connector.ts';
import { createGuardedFetch, type FetchLimits, type GuardedFetch } from '../../src/egress/fetch.ts';
import { createThreadedFetch } from '../../src/egress/fetch_thread.ts';
import { OutgoingThread } from '../../src/egress/outgoing_thread.ts';
import { makeLongChain } from '../support/network/long_chain.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { watchThreads } from '../support/network/started_threads.ts';
import { until } from '../support/webhooks/apps.ts';

const site = await startSite({ after });
const options: ConnectorOptions = { ...siteEgress, allowLoopback: true };

function openThreaded(t: TestContext, limits: FetchLimits = {}, from = options): GuardedFetch {
  const { fetch, close } = createThreadedFetch(from, limits);
  t.after(close);
  return fetch;
}

function openDirect(t: TestContext, limits: FetchLimits = {}, from = options): GuardedFetch {
  const { fetch, close } = createGuardedFetch(from, limits);
  t.after(close);
  return fetch;
}

test('the first fetch starts the thread, and later ones use it', async (t) => {
  const threads = watchThreads(t);
  const fetch = openThreaded(t);
  site.serve('/document', {
    headers: { 'set-cookie': 'a=b', 'cache-control': 'no-store' },
    body: { a: 'ü' },
  });
  assert.deepEqual(threads, []);
  const response = await fetch(site.url('/document'));
  assert.equal(response.status, 200);
  assert.equal(response.headers.get('cache-control'), 'no-store');
  assert.deepEqual(response.headers.getSetCookie(), ['a=b']);
  assert.deepEqual(await response.json(), { a: 'ü' });
  site.serve('/empty', { status: 204 });
  const empty = await fetch(new URL(site.url('/empty')));
  assert.deepEqual([empty.status, empty.body], [204, null]);
  assert.deepEqual(threads, ['fetches']);
});

test('method, headers and body of a request arrive', async (t) => {
  const fetch = openThreaded(t);
  site.serve('/echo', ({ method, headers }, response, body) =>
    response.writeHead(400).end(JSON.stringify([method, headers['x-test'], headers['user-agent'], body])),
  );
  const response = await fetch(site.url('/echo'), {
    method: 'POST',
    headers: { 'x-test': 'yes' },
    body: new URLSearchParams({ token: 'ü' }),
  });
  assert.equal(response.status, 400);
  assert.deepEqual(await response.json(), ['POST', 'yes', 'Nuncio', 'token=%C3%BC']);
});

test('errors have the class, code and words that they have without the thread', async (t) => {
  site.serve('/large', { body: 'x'.repeat(70_000) });
  site.serve('/large-headers', { headers: { 'x-large': 'x'.repeat(20_000) } });
  site.serve('/cut', (_request, response) => response.destroy());
  site.serve('/hangs', () => {});
  const untrusting = { resolveHost: siteEgress.resolveHost, allowLoopback: true } as ConnectorOptions;
  const nameless: ConnectorOptions = {
    ...options,
    resolveHost: () => Promise.reject(new Error('no such name')),
  };
  const cases: [string, string, ConnectorOptions?, string?][] = [
    ['address_refused', site.url('/', 'inside')],
    ['address_refused', 'https://reader.apps.example:25/'],
    ['address_refused', 'http://reader.apps.example/'],
    ['dns_error', site.url('/'), nameless],
    ['connect_error', `https://reader.apps.example:${await closedPort()}/`],
    ['tls_error', site.url('/'), untrusting],
    ['TooLargeError', site.url('/large')],
    ['UND_ERR_HEADERS_OVERFLOW', site.url('/large-headers')],
    ['UND_ERR_SOCKET', site.url('/cut')],
    ['TypeError', site.url('/'), options, 'HEAD'],
    ['TimeoutError', site.url('/hangs')],
  ];
  for (const [expected, url, from = options, method = 'GET'] of cases) {
    const limits = { timeoutMs: expected === 'TimeoutError' ? 100 : 60_000 };
    const direct = await failureOf(openDirect(t, limits, from)(url, { method }));
    const threaded = await failureOf(openThreaded(t, limits, from)(url, { method }));
    assert.deepEqual(threaded, direct, url);
    assert.ok(direct.code === expected || direct.name === expected, `${url} ${JSON.stringify(direct)}`);
  }
});

async function closedPort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** What callers and traces read of an error. */
async function failureOf(fetched: Promise<Response>) {
  const error = await fetched.then(
    () => assert.fail('it did not fail'),
    (failure: Error & { code?: unknown; reason?: unknown }) => failure,
  );
  const { name, message, code, reason } = error;
  const cause = (error.cause as Error | undefined)?.message;
  // Node.js and `undici` have subclasses that nobody distinguishes; their name and code are compared.
  const known = ['EgressError', 'TooLargeError', 'DOMException', 'TypeError'];
  return { name, message, code, reason, cause, class: known.find((each) => each === error.constructor.name) };
}

test('a fetch whose caller goes away is ended, also before the thread has started', async (t) => {
  const fetch = openThreaded(t);
  const ended = Promise.withResolvers<void>();
  const begun = Promise.withResolvers<void>();
  site.serve('/left', (_request, response) => {
    response.on('close', ended.resolve);
    begun.resolve();
  });
  const early = new AbortController();
  const unsent = fetch(site.url('/early'), { signal: early.signal });
  early.abort(new Error('left early'));
  await assert.rejects(unsent, /left early/);
  const leaving = new AbortController();
  const pending = fetch(site.url('/left'), { signal: leaving.signal });
  await begun.promise;
  leaving.abort(new Error('left'));
  await assert.rejects(pending, /left/);
  await ended.promise;
  assert.equal(site.requests('/early'), 0);
});

test('after it is closed, pending and later fetches fail', async (t) => {
  const { fetch, close } = createThreadedFetch(options);
  const begun = Promise.withResolvers<void>();
  site.serve('/pending', () => begun.resolve());
  const pending = assert.rejects(fetch(site.url('/pending')), { code: 'connect_error' });
  await begun.promise;
  await close();
  await pending;
  const threads = watchThreads(t);
  await assert.rejects(fetch(site.url('/pending')), { code: 'connect_error' });
  assert.deepEqual(threads, []);
});

test('a slow handshake delays the thread, and not the thread that fetches', async (t) => {
  const hostsCount = 5;
  const server = createServer(makeLongChain(), (_request, response) => response.end());
  await once(server.listen(0, '127.0.0.1'), 'listening');
  t.after(() => server.close());
  const { port } = server.address() as AddressInfo;
  const measure = async (fetch: GuardedFetch) => {
    // Starts the thread, and loads the client and the authorities.
    await assert.rejects(fetch(`https://first.apps.example:${port}/`), { code: 'tls_error' });
    const delay = monitorEventLoopDelay({ resolution: 1 });
    const usedBefore = process.threadCpuUsage();
    delay.enable();
    for (let index = 0; index < hostsCount; index += 1) {
      const fetched = fetch(`https://h${index}.apps.example:${port}/`);
      await assert.rejects(fetched, { code: 'tls_error', reason: /self-signed certificate in/ });
    }
    delay.disable();
    const used = process.threadCpuUsage(usedBefore);
    return { longestMs: delay.max / 1e6, usedMs: (used.user + used.system) / 1e3 };
  };
  const direct = await measure(openDirect(t));
  const threaded = await measure(openThreaded(t));
  const measured = JSON.stringify({ direct, threaded });
  t.diagnostic(measured);
  assert.ok(threaded.usedMs < direct.usedMs / 4, measured);
  assert.ok(threaded.longestMs < direct.longestMs / 2, measured);
});

/** The entry of a thread that answers a request with itself, unless the request says otherwise. */
const obedient = new URL(
  `data:text/javascript,${encodeURIComponent(`
    import { parentPort } from 'node:worker_threads';
    parentPort.on('message', ({ id, request, abort }) => {
      if (request === 'hang') Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
      if (request === 'die') process.exit();
      if (abort !== undefined) parentPort.postMessage({ id: abort, error: { name: 'Error', message: 'aborted' } });
      else if (request !== 'wait') parentPort.postMessage({ id, value: request });
    });
    parentPort.postMessage('ready');
  `)}`,
);

function openObedient(t: TestContext, timeoutMs: number): OutgoingThread {
  const thread = new OutgoingThread({ entry: obedient, name: 'obedient', data: null, timeoutMs });
  t.after(() => thread.close());
  return thread;
}

test('a thread that hangs longer than the time limit is replaced, and requests in it time out', async (t) => {
  const threads = watchThreads(t);
  const thread = openObedient(t, 200);
  assert.equal(await thread.call('hello'), 'hello');
  const hanging = assert.rejects(thread.call('hang'), { name: 'TimeoutError' });
  await assert.rejects(thread.call('behind'), { name: 'TimeoutError' });
  await hanging;
  const again = () => thread.call('again').catch((error: Error) => error.name);
  assert.equal(await until(again, (answer) => answer !== 'TimeoutError'), 'again');
  assert.deepEqual(threads, ['obedient', 'obedient']);
});

test('requests that only wait do not end the thread', async (t) => {
  const threads = watchThreads(t);
  const thread = openObedient(t, 200);
  for (let index = 0; index < 30; index += 1)
    await assert.rejects(thread.call('wait'), { name: 'TimeoutError' });
  assert.equal(await thread.call('hello'), 'hello');
  assert.deepEqual(threads, ['obedient']);
});

test('when the thread dies its requests fail, and the next one starts another', async (t) => {
  const threads = watchThreads(t);
  const thread = openObedient(t, 60_000);
  const waiting = assert.rejects(thread.call('wait'), { code: 'connect_error' });
  await assert.rejects(thread.call('die'), { code: 'connect_error' });
  await waiting;
  assert.equal(await thread.call('hello'), 'hello');
  assert.deepEqual(threads, ['obedient', 'obedient']);
});

test('a full thread refuses requests until others have ended', async (t) => {
  const thread = openObedient(t, 60_000);
  const leaving = new AbortController();
  await thread.call('hello');
  const waiting = Array.from({ length: 500 }, () => thread.call('wait', leaving.signal).catch(() => 'left'));
  await assert.rejects(thread.call('hello'), { code: 'connect_timeout' });
  leaving.abort();
  await Promise.all(waiting);
  const again = () => thread.call('hello').catch((error: Error) => error.name);
  assert.equal(await until(again, (answer) => answer !== 'EgressError'), 'hello');
});
