/** Versions of event bodies: each subscription gets the version that was the newest when it was made, however it gets events. */

import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import { loadPlatform } from '../../../src/platform.ts';
import { requester } from '../../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  type App,
  appScopes,
  createApp,
  createPublisher,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { answer, type Received, startSubscriber } from '../../support/webhooks/subscriber.ts';

const file = fileURLToPath(new URL('../../support/servers/platforms/versioned.config.ts', import.meta.url));
const platform = await loadPlatform(file);
const server = await startTestServer({ after }, { NUNCIO_RETRY_SCHEDULE: '1s,1s,1s' }, 'dev', platform);
const { db } = server;
const publisher = await createPublisher(server);

async function publish(app: Pick<App, 'account'>, kind: string, ...bodies: unknown[]): Promise<string[]> {
  const json = bodies.map((body) => ({ kind, account: app.account.id, body }));
  const published = await publisher('POST', '/events', { json });
  assert.equal(published.status, 202, published.text);
  return published.body.ids;
}

/** Pins a subscription to before there were any versions. */
async function unpin(id: string): Promise<void> {
  await sql`update subscriptions set version = null, revision = revision + 1 where id = ${id}`.execute(db);
}

const paid = { id: 'inv_7', total: { cents: 4_950, currency: 'EUR' } };
const inMiddle = { id: 'inv_7', cents: 4_950, currency: 'EUR' };
const inOldest = { invoice: 'inv_7', amount: 49.5 };

function bodyAt(received: readonly Received[], path: string): unknown {
  const found = received.filter((each) => each.path === path);
  assert.equal(found.length, 1, path);
  return JSON.parse(found[0]?.body as string);
}

test('a subscription is pinned to the newest version, and a date chooses the version of each kind', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const expected: [version: string | undefined, invoice: unknown, trial: unknown, note: string][] = [
    [undefined, paid, { mode: 'fine', new: true }, 'headline'],
    ['2026-10-01', paid, { mode: 'fine', new: true }, 'headline'],
    ['2026-09-01', inMiddle, { mode: 'fine', new: true }, 'headline'],
    ['2026-08-01', inMiddle, { mode: 'fine' }, 'headline'],
    ['2026-06-01', inMiddle, { mode: 'fine' }, 'title'],
    ['2026-03-01', inOldest, { mode: 'fine' }, 'title'],
    ['2026-01-15', inOldest, { mode: 'fine' }, 'title'],
  ];
  for (const [version] of expected) {
    const made = await subscribe(app, {
      url: `${subscriber.url}/${version}`,
      ...(version ? { version } : {}),
    });
    assert.equal(made.version, version ?? '2026-10-01');
  }
  await publish(app, 'invoice.paid', paid);
  await publish(app, 'trial', { mode: 'fine', new: true });
  await publish(app, 'plain', { mark: 'm' });
  await app.request('POST', '/notes', { json: { headline: 'Hi' } });
  const received = await subscriber.waitFor(4 * expected.length);
  const ofKind = (kind: string) => received.filter(({ headers }) => headers['nuncio-event'] === kind);
  for (const [version, invoice, trial, note] of expected) {
    assert.deepEqual(bodyAt(ofKind('invoice.paid'), `/${version}`), invoice);
    assert.deepEqual(bodyAt(ofKind('trial'), `/${version}`), trial);
    assert.deepEqual(bodyAt(ofKind('plain'), `/${version}`), { mark: 'm' });
    const { note: shown } = bodyAt(ofKind('note.created'), `/${version}`) as { note: Record<string, string> };
    assert.equal(shown[note], 'Hi');
  }
});

test('a subscription from before there were versions gets the oldest of each kind', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await unpin(id);
  assert.equal((await app.request('GET', `/subscriptions/${id}`)).body.version, null);
  await publish(app, 'invoice.paid', paid);
  const [received] = await subscriber.waitFor(1);
  assert.deepEqual(JSON.parse(received?.body as string), inOldest);
});

test('retries, resends, pull and the log have the converted bytes, signed as sent', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const made = { url: subscriber.url, version: '2026-01-15', signature: 'sha256', kinds: ['invoice.paid'] };
  const { id, secret } = await subscribe(app, made);
  await publish(app, 'invoice.paid', paid);
  await subscriber.waitFor(1);
  subscriber.behave(answer(204));
  const [first] = await subscriber.waitFor(2);
  const delivery = `/deliveries/${first?.headers['nuncio-delivery']}`;
  const read = async () => (await app.request('GET', delivery)).body;
  await until(read, ({ state }) => state === 'succeeded');
  await app.request('POST', `${delivery}/resend`);
  const received = await subscriber.waitFor(3);
  assert.deepEqual(new Set(received.map(({ body }) => body)), new Set([JSON.stringify(inOldest)]));
  for (const { body, headers } of received) {
    assert.equal(
      headers['nuncio-signature'],
      `sha256=${createHmac('sha256', secret).update(body).digest('hex')}`,
    );
    assert.equal(headers.deprecation, `@${Date.parse('2026-07-01T00:00:00Z') / 1_000}`);
    assert.equal(headers.sunset, 'Fri, 01 Jan 2027 00:00:00 GMT');
  }
  const { body: page } = await app.request('GET', `/subscriptions/${id}/events`);
  assert.equal(JSON.stringify(page.items[0].body), JSON.stringify(inOldest));
  assert.equal(page.items[0].headers.Sunset, 'Fri, 01 Jan 2027 00:00:00 GMT');
  const { attempts } = await read();
  const { headers } = attempts[0].request;
  assert.equal(headers['content-length'], String(JSON.stringify(inOldest).length));
  assert.match(headers.Deprecation, /^@\d+$/);
});

test('CloudEvents name the schema of the version that they have, thin events have none', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const versions = ['2026-10-01', '2026-06-01', '2026-01-15'];
  for (const version of versions)
    await subscribe(app, {
      url: `${subscriber.url}/${version}`,
      version,
      format: 'cloudevents',
      kinds: ['invoice.paid'],
    });
  await subscribe(app, { url: `${subscriber.url}/thin`, version: '2026-01-15', format: 'thin' });
  const [eventId] = await publish(app, 'invoice.paid', paid);
  const received = await subscriber.waitFor(4);
  const document = (await (await fetch(`${server.baseUrl}/asyncapi.json`)).json()) as {
    components: { schemas: Record<string, { properties: object; deprecated?: boolean }> };
  };
  for (const [index, expected] of [paid, inMiddle, inOldest].entries()) {
    const event = bodyAt(received, `/${versions[index]}`) as { data: object; dataschema: string };
    assert.deepEqual(event.data, expected);
    const [address, fragment = ''] = event.dataschema.split('#');
    assert.equal(address, `${server.baseUrl}/asyncapi.json`);
    const schema = document.components.schemas[fragment.split('/').at(-1) as string];
    assert.deepEqual(Object.keys(schema?.properties ?? {}), Object.keys(expected));
    assert.equal(schema?.deprecated, index === 2 ? true : undefined);
  }
  const thin = { id: eventId, kind: 'invoice.paid', resource: `${server.baseUrl}/invoices/inv_7` };
  assert.deepEqual(bodyAt(received, '/thin'), thin);
});

test('PATCH moves a subscription, also for deliveries that wait, and the log shows what each attempt sent', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const made = {
    url: subscriber.url,
    version: '2026-01-15',
    kinds: ['invoice.paid'],
    retry_schedule: [1, 1, 1, 1, 1, 1],
  };
  const { id } = await subscribe(app, made);
  await publish(app, 'invoice.paid', paid);
  const [first] = await subscriber.waitFor(1);
  const moved = await app.request('PATCH', `/subscriptions/${id}`, { json: { version: '2026-06-01' } });
  assert.equal(moved.body.version, '2026-06-01');
  subscriber.behave(answer(204));
  const delivery = `/deliveries/${first?.headers['nuncio-delivery']}`;
  const { attempts } = await until(
    async () => (await app.request('GET', delivery)).body,
    ({ state }) => state === 'succeeded',
  );
  const bodies = subscriber.received.map(({ body }) => body);
  assert.deepEqual(JSON.parse(bodies[0] as string), inOldest);
  assert.deepEqual(JSON.parse(bodies.at(-1) as string), inMiddle);
  const lengths = attempts.map(
    (each: { request: { headers: Record<string, string> } }) => each.request.headers['content-length'],
  );
  assert.deepEqual(
    lengths,
    bodies.map((body) => String(body.length)),
  );
  const newest = await app.request('PATCH', `/subscriptions/${id}`, { json: { version: null } });
  assert.equal(newest.body.version, '2026-10-01');
});

test('a stream that is open continues in the version that its subscription is moved to', async (t) => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes: appScopes });
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: appScopes });
  const request = requester(server, accessToken);
  const made = { url: null, kinds: ['invoice.paid'], version: '2026-01-15' };
  const { id } = await subscribe({ request }, made);
  const end = new AbortController();
  t.after(async () => end.abort());
  const response = await fetch(`${server.baseUrl}/subscriptions/${id}/events`, {
    headers: { authorization: `Bearer ${accessToken}`, accept: 'text/event-stream' },
    signal: end.signal,
  });
  const chunks = (response.body as ReadableStream<Uint8Array>).getReader();
  const decoder = new TextDecoder();
  let text = '';
  const readUntil = async (wanted: unknown) => {
    while (!text.includes(JSON.stringify(wanted))) {
      const { value, done } = await chunks.read();
      assert.equal(done, false, text);
      text += decoder.decode(value, { stream: true });
    }
  };
  await publish({ account }, 'invoice.paid', paid);
  await readUntil(inOldest);
  await request('PATCH', `/subscriptions/${id}`, { json: { version: '2026-06-01' } });
  await publish({ account }, 'invoice.paid', paid);
  await readUntil(inMiddle);
});

test('no static header takes the name of a notice', async () => {
  const app = await createApp(server);
  for (const name of ['Deprecation', 'SUNSET']) {
    const made = { url: 'https://app.example/hooks', kinds: ['*'], headers: { [name]: 'x' } };
    const refused = await app.request('POST', '/subscriptions', { json: made });
    assert.deepEqual([refused.status, refused.body.errors[0].code], [422, 'header-refused']);
  }
});

test('versions that no kind has are refused, those of any kind are taken', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, {
    url: 'https://app.example/hooks',
    kinds: ['plain'],
    version: '2026-03-01',
  });
  for (const version of ['2026-10-02', '2026-1-15', '', 'latest', '2026-10-01\n', '.*', 7, {}]) {
    const made = { url: 'https://app.example/hooks', kinds: ['*'], version };
    for (const answer of [
      await app.request('POST', '/subscriptions', { json: made }),
      await app.request('PATCH', `/subscriptions/${id}`, { json: { version } }),
    ]) {
      assert.equal(answer.status, 422, answer.text);
      const [error] = answer.body.errors;
      assert.equal(error.pointer, '/version');
      if (typeof version === 'string') assert.equal(error.code, 'unknown-version', version);
    }
  }
  assert.equal((await app.request('GET', `/subscriptions/${id}`)).body.version, '2026-03-01');
});

test('an event that was published in an earlier version goes as it is to later versions', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  for (const version of ['2026-10-01', '2026-06-01', '2026-01-15'])
    await subscribe(app, { url: `${subscriber.url}/${version}`, version });
  const before = '{"id":"inv_7",  "cents":4950,"currency":"EUR"}';
  await sql`
    with event as (
      insert into events (id, account_id, kind, version, body)
      values ('before', ${app.account.id}, 'invoice.paid', '2026-06-01', ${before}) returning day, position
    )
    insert into outbox (day, turn, positions) select day, ${app.account.id}, array[position] from event`.execute(
    db,
  );
  const received = await subscriber.waitFor(3);
  for (const version of ['2026-10-01', '2026-06-01'])
    assert.equal(received.find(({ path }) => path === `/${version}`)?.body, before);
  assert.deepEqual(bodyAt(received, '/2026-01-15'), inOldest);
});

test('converted deliveries arrive all and in order, each event as one delivery, while their subscription changes', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const made = { version: '2026-01-15', kinds: ['invoice.paid'] };
  const ordered = await subscribe(app, { ...made, url: `${subscriber.url}/ordered`, ordered: true });
  const parallel = await subscribe(app, { ...made, url: `${subscriber.url}/parallel` });
  const ids = Array.from({ length: 300 }, (_, index) => `inv_${index}`);
  await publish(app, 'invoice.paid', ...ids.map((id) => ({ ...paid, id })));
  for (let count = 0; count < 8; count += 1) {
    for (const { id } of [ordered, parallel]) {
      const json = { headers: { 'X-Count': String(count) } };
      assert.equal((await app.request('PATCH', `/subscriptions/${id}`, { json })).status, 200);
    }
    await subscriber.waitFor(count * 20);
  }
  await until(
    async () => [firstsAt('/ordered').length, firstsAt('/parallel').length],
    (counts) => counts.every((count) => count === ids.length),
  );
  assert.deepEqual(firstsAt('/ordered'), ids);
  assert.deepEqual(new Set(firstsAt('/parallel')), new Set(ids));

  /** The invoices of a path in the order of their first deliveries: on a machine that stands still, one may arrive again. */
  function firstsAt(path: string): string[] {
    const sent = subscriber.received
      .filter((each) => each.path === path)
      .map(({ headers, body }) => [headers['nuncio-delivery'], JSON.parse(body).invoice] as const);
    const byId = new Map(sent);
    const firsts = [...new Set(sent.map(([id]) => id))].map((id) => byId.get(id));
    assert.equal(new Set(firsts).size, firsts.length, 'an event with two deliveries');
    return firsts;
  }
});
