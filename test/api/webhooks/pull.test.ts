/** Pull: the events of a subscription after a sequence, as pages and as server-sent events. */

import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { subscribe as observe, unsubscribe as stopObserving } from 'node:diagnostics_channel';
import { get, type IncomingMessage, type ServerResponse } from 'node:http';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { withdrawGrant } from '../../../src/grants/grant.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  appScopes,
  createApp,
  createPublisher,
  fannedOut,
  publish,
  pushBody,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);

interface StreamEvent {
  event: string;
  id: string | undefined;
  // biome-ignore lint/suspicious/noExplicitAny: tests inspect any event
  data: any;
}

/** Opens a stream. Comments are left out. */
async function openStream(accessToken: string, path: string, headers: Record<string, string> = {}) {
  const response = await fetch(server.baseUrl + path, {
    headers: { authorization: `Bearer ${accessToken}`, accept: 'text/event-stream', ...headers },
  });
  assert.equal(response.status, 200, 'the stream is open');
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  assert.ok(reader);
  let text = '';
  const next = async (): Promise<StreamEvent | undefined> => {
    for (;;) {
      const end = text.indexOf('\n\n');
      if (end >= 0) {
        const fields = new Map(
          text
            .slice(0, end)
            .split('\n')
            .map((line) => [line.slice(0, line.indexOf(':')), line.slice(line.indexOf(':') + 2)]),
        );
        text = text.slice(end + 2);
        const data = fields.get('data');
        if (data === undefined) continue;
        return { event: fields.get('event') ?? 'message', id: fields.get('id'), data: JSON.parse(data) };
      }
      const { value, done } = await reader.read();
      if (done) return undefined;
      text += value;
    }
  };
  return { response, next, cancel: () => reader.cancel() };
}

async function createStreamingApp(claims: Record<string, unknown> = {}) {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes: appScopes });
  const { accessToken, grantId } = await mintAccessToken(server, {
    account,
    client,
    scopes: appScopes,
    claims,
  });
  const app = await createApp(server, { account });
  return { app, account, client, accessToken, grantId: grantId as string };
}

async function subscribeWith(
  accessToken: string,
  url: string | null,
): Promise<{ id: string; secret: string }> {
  const response = await fetch(`${server.baseUrl}/subscriptions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${accessToken}`, 'content-type': 'application/json' },
    body: JSON.stringify({ url, kinds: ['*'] }),
  });
  assert.equal(response.status, 201);
  return (await response.json()) as { id: string; secret: string };
}

test('webhooks 81: pull returns the bodies and headers of deliveries in order of the sequence', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id, secret } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['a', 'b', 'c']);
  await subscriber.waitFor(3);
  const { status, headers, body, text } = await app.request('GET', `/subscriptions/${id}/events`);
  assert.equal(status, 200);
  assert.deepEqual(
    body.items.map((item: { sequence: number; body: unknown }) => [item.sequence, item.body]),
    ['a', 'b', 'c'].map((mark, index) => [index + 1, pushBody(mark)]),
  );
  assert.deepEqual(body.gaps, []);
  const ids = new Map(
    subscriber.received.map((one) => [one.headers['nuncio-sequence'], one.headers['nuncio-delivery']]),
  );
  for (const item of body.items) {
    const names = new Map(Object.entries(item.headers).map(([name, value]) => [name.toLowerCase(), value]));
    assert.equal(names.get('nuncio-delivery'), ids.get(String(item.sequence)));
    assert.equal(item.account, app.account.id);
    const [, time, signature] = /^t=(\d+),v1=([0-9a-f]+)$/.exec(String(names.get('nuncio-signature'))) ?? [];
    const signed = JSON.stringify(item.body);
    assert.ok(text.includes(`"body":${signed}`), 'the body is the text that is signed');
    assert.equal(createHmac('sha256', secret).update(`${time}.${signed}`).digest('hex'), signature);
  }
  const next = body._links.next.href;
  assert.equal(headers.get('link'), `<${next}>; rel="next"`);
  const empty = await app.request('GET', next);
  assert.deepEqual([empty.body.items, empty.body._links.next.href], [[], next]);
});

test('pages continue where the last one ended', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['1', '2', '3', '4', '5']);
  await fannedOut(server);
  const seen: number[] = [];
  let path = `/subscriptions/${id}/events?limit=2`;
  for (;;) {
    const { body } = await app.request('GET', path);
    if (body.items.length === 0) break;
    assert.ok(body.items.length <= 2);
    seen.push(...body.items.map(({ sequence }: { sequence: number }) => sequence));
    path = body._links.next.href;
  }
  assert.deepEqual(seen, [1, 2, 3, 4, 5]);
});

test('a waiting request returns when an event comes', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const waiting = app.request('GET', `/subscriptions/${id}/events?wait=60`);
  await publish(publisher, app.account, ['awaited']);
  const { body } = await waiting;
  assert.deepEqual(
    body.items.map(({ sequence }: { sequence: number }) => sequence),
    [1],
  );
  const { status, body: later } = await app.request('GET', `/subscriptions/${id}/events?after=1&wait=1`);
  assert.deepEqual([status, later.items], [200, []]);
});

test('a cursor that this subscription never had is refused, and so are wrong parameters', async (t) => {
  const subscriber = await startSubscriber(t);
  const [one, other] = [await createApp(server), await createApp(server)];
  const { id } = await subscribe(one, { url: subscriber.url });
  await publish(publisher, one.account, ['1']);
  await fannedOut(server);
  const path = `/subscriptions/${id}/events`;
  assert.equal((await other.request('GET', path)).status, 404);
  const ahead = await one.request('GET', `${path}?after=2`);
  assert.deepEqual([ahead.status, ahead.body.code], [400, 'invalid-cursor']);
  for (const query of ['after=-1', 'after=x', 'limit=0', 'limit=1001', 'wait=61', 'wait=1.5', 'until=1']) {
    const { status, body } = await one.request('GET', `${path}?${query}`);
    assert.deepEqual([status, body.code], [400, 'invalid-parameter'], query);
  }
  for (const lastEventId of ['2', '-1', '1 or 1=1', '9'.repeat(40)]) {
    const headers = { accept: 'text/event-stream', 'last-event-id': lastEventId };
    const { status, body } = await one.request('GET', path, { headers });
    assert.deepEqual([status, body.code], [400, 'invalid-cursor'], lastEventId);
  }
});

test('erased events and expired days are gaps with a reason', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(db);
  const lane = rows[0]?.lane;
  await publish(publisher, app.account, ['1', '2', '3', '4']);
  await subscriber.waitFor(4);
  await sql`
    update events set body = null from deliveries d
    where d.lane = ${lane}::bigint and d.sequence = 3 and events.day = d.day and events.position = d.event`.execute(
    db,
  );
  await sql`delete from deliveries where lane = ${lane}::bigint and sequence <= 1`.execute(db);
  const { body } = await app.request('GET', `/subscriptions/${id}/events`);
  assert.deepEqual(
    body.items.map(({ sequence }: { sequence: number }) => sequence),
    [2, 4],
  );
  assert.deepEqual(body.gaps, [
    { from: 1, through: 1, reason: 'expired' },
    { from: 3, through: 3, reason: 'cancelled' },
  ]);
});

test('a disabled subscription cannot be read, and after it is enabled nothing is missing', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const path = `/subscriptions/${id}/events`;
  const waiting = app.request('GET', `${path}?wait=60`);
  await sql`update subscriptions set state = 'disabled' where id = ${id}`.execute(db);
  const { status, body } = await waiting;
  assert.deepEqual([status, body.code], [409, 'subscription-disabled']);
  await publish(publisher, app.account, ['meanwhile']);
  await fannedOut(server);
  await sql`update subscriptions set state = 'active' where id = ${id}`.execute(db);
  const { body: page } = await app.request('GET', path);
  assert.deepEqual(
    page.items.map(({ sequence }: { sequence: number }) => sequence),
    [1],
  );
});

test('a stream sends events as they come, and resumes after the last one', async (t) => {
  const subscriber = await startSubscriber(t);
  const { account, accessToken } = await createStreamingApp();
  const { id } = await subscribeWith(accessToken, subscriber.url);
  await publish(publisher, account, ['1', '2']);
  await fannedOut(server);
  const stream = await openStream(accessToken, `/subscriptions/${id}/events`);
  assert.equal(stream.response.headers.get('x-accel-buffering'), 'no');
  const [first, second] = [await stream.next(), await stream.next()];
  assert.deepEqual([first?.id, first?.data.body, second?.id], ['1', pushBody('1'), '2']);
  await publish(publisher, account, ['3']);
  assert.equal((await stream.next())?.id, '3');
  await stream.cancel();
  const resumed = await openStream(accessToken, `/subscriptions/${id}/events`, { 'last-event-id': '2' });
  assert.equal((await resumed.next())?.id, '3');
  await resumed.cancel();
});

test('a stream ends within a second of the withdrawal', async (t) => {
  const subscriber = await startSubscriber(t);
  const { account, accessToken, grantId } = await createStreamingApp();
  const { id } = await subscribeWith(accessToken, subscriber.url);
  await publish(publisher, account, ['before']);
  const stream = await openStream(accessToken, `/subscriptions/${id}/events`);
  assert.equal((await stream.next())?.data.body.ref, pushBody('before').ref);
  await withdrawGrant(db, grantId, 'user');
  const withdrawnAt = performance.now();
  const last = await stream.next();
  assert.deepEqual([last?.event, last?.data], ['terminated', { reason: 'ended' }]);
  assert.ok(performance.now() - withdrawnAt < 1_000, 'within a second');
  assert.equal(await stream.next(), undefined);
});

test('a stream ends when its token expires, and can be resumed with another token', async (t) => {
  const subscriber = await startSubscriber(t);
  const { account, client, accessToken, grantId } = await createStreamingApp();
  const { id } = await subscribeWith(accessToken, subscriber.url);
  const claims = { exp: Math.floor(Date.now() / 1_000) + 3 };
  const short = await mintAccessToken(server, { account, client, scopes: appScopes, grantId, claims });
  const stream = await openStream(short.accessToken, `/subscriptions/${id}/events`);
  const last = await stream.next();
  assert.deepEqual([last?.event, last?.data], ['end', { reason: 'token' }]);
  await publish(publisher, account, ['after']);
  const resumed = await openStream(accessToken, `/subscriptions/${id}/events`);
  assert.equal((await resumed.next())?.id, '1');
  await resumed.cancel();
});

test('a client that reads late gets everything, and the server buffers a bounded part', async (t) => {
  const subscriber = await startSubscriber(t);
  const { account, accessToken } = await createStreamingApp();
  const { id } = await subscribeWith(accessToken, subscriber.url);
  const count = 300;
  // More than the buffers of the system's sockets take.
  const commit = { id: 'a', message: 'x'.repeat(50_000) };
  for (let from = 0; from < count; from += 5) {
    const body = { ...pushBody(from), commits: [commit, commit] };
    const json = Array(5).fill({ kind: 'push', account: account.id, body });
    assert.equal((await publisher('POST', '/events', { json })).status, 202);
  }
  await fannedOut(server);
  let response: ServerResponse | undefined;
  const onRequest = (message: unknown) => {
    const started = message as { request: IncomingMessage; response: ServerResponse };
    if (started.request.headers.accept === 'text/event-stream') response = started.response;
  };
  observe('http.server.request.start', onRequest);
  t.after(() => void stopObserving('http.server.request.start', onRequest));
  const headers = { authorization: `Bearer ${accessToken}`, accept: 'text/event-stream' };
  const incoming = await new Promise<IncomingMessage>((resolve, reject) => {
    get(`${server.baseUrl}/subscriptions/${id}/events`, { headers }, resolve).on('error', reject);
  });
  const buffered = async () => response?.writableLength ?? 0;
  await until(buffered, (bytes) => bytes > 262_144);
  for (let sample = 0; sample < 20; sample += 1) {
    await sleep(50);
    assert.ok((await buffered()) < 1_048_576, 'less than a mebibyte is buffered');
  }
  assert.ok((await buffered()) > 262_144, 'the server waits for the client');
  const sequences: number[] = [];
  let rest = '';
  for await (const chunk of incoming.setEncoding('utf8')) {
    rest += chunk;
    for (let end = rest.indexOf('\n\n'); end >= 0; end = rest.indexOf('\n\n')) {
      const found = /^id: (\d+)$/m.exec(rest.slice(0, 100));
      if (found !== null) sequences.push(Number(found[1]));
      rest = rest.slice(end + 2);
    }
    if (sequences.length === count) break;
  }
  assert.deepEqual(
    sequences,
    Array.from({ length: count }, (_none, index) => index + 1),
  );
});

test('a token can have five streams', async (t) => {
  const subscriber = await startSubscriber(t);
  const { accessToken } = await createStreamingApp();
  const { id } = await subscribeWith(accessToken, subscriber.url);
  const path = `/subscriptions/${id}/events`;
  const open = await Promise.all([1, 2, 3, 4, 5].map(() => openStream(accessToken, path)));
  const headers = { authorization: `Bearer ${accessToken}`, accept: 'text/event-stream' };
  const refused = await fetch(server.baseUrl + path, { headers });
  assert.equal(refused.status, 429);
  assert.equal(((await refused.json()) as { code: string }).code, 'too-many-streams');
  for (const stream of open) await stream.cancel();
});

test('a stream without events sends comments, so that proxies leave it open', async () => {
  const { account, accessToken } = await createStreamingApp();
  const { id } = await subscribeWith(accessToken, null);
  const response = await fetch(`${server.baseUrl}/subscriptions/${id}/events`, {
    headers: { authorization: `Bearer ${accessToken}`, accept: 'text/event-stream' },
  });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  const readUntil = async (pattern: RegExp) => {
    while (!pattern.test(text)) text += (await reader?.read())?.value ?? assert.fail('the stream ended');
  };
  // After 15 seconds.
  await readUntil(/^:.*\n\n/m);
  assert.doesNotMatch(text, /^data:/m);
  await publish(publisher, account, ['later']);
  await readUntil(/refs\/heads\/later/);
  await reader?.cancel();
});
