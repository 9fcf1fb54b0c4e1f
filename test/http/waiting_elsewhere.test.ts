/** Requests that wait for servers of apps and subscribers, which hang, or for their turn at expensive work keep no places from others. */

import assert from 'node:assert/strict';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { availableParallelism } from 'node:os';
import { after, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SignJWT } from 'jose';
import { sql } from 'kysely';
import { hashPassword, verifyPassword } from '../../src/crypto/passwords.ts';
import { createPlatform } from '../../src/platform.ts';
import { type Page, TestBrowser } from '../support/browser/browser.ts';
import { authorizationUrl, createTestClient, postForm } from '../support/clients/oauth.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { startTestServer } from '../support/servers/server.ts';
import {
  declare,
  openLoginPage,
  pressButton,
  startServerWithProviders,
} from '../support/upstream/upstream_sign_in.ts';
import { type App, addPaused, createApp, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const site = await startSite({ after });
// Six places are for the first class, and seven for the API.
const metricsToken = 'a-token-for-metrics';
const limits = {
  NUNCIO_CONCURRENT_REQUESTS: '8',
  NUNCIO_TRUST_PROXY: '127.0.0.1',
  NUNCIO_METRICS_TOKEN: metricsToken,
};
const server = await startTestServer({ after }, limits, 'dev', undefined, siteEgress);
const places = 6;
const count = 12;
const mergePatch = { 'content-type': 'application/merge-patch+json' };
const network = (index: number) => ({ 'x-forwarded-for': `203.0.113.${index}` });

/** Networks that have asked for metadata documents. */
async function fetchesCounted(): Promise<number> {
  const { rows } = await sql<{ count: number }>`select count(*)::int from sign_in_failures`.execute(
    server.db,
  );
  return rows[0]?.count ?? 0;
}

/** Requests of the first class in a state. */
async function requests(state: 'in_progress' | 'waiting'): Promise<number> {
  const headers = { authorization: `Bearer ${metricsToken}` };
  const text = await (await fetch(`${server.baseUrl}/metrics`, { headers })).text();
  const name = `nuncio_requests{class="first",state="${state}"} `;
  return Number(
    text
      .split('\n')
      .find((line) => line.startsWith(name))
      ?.slice(name.length),
  );
}

/** Keeps responses open until the client closes them. */
function hang() {
  const open = new Set<ServerResponse>();
  const add = (response: ServerResponse) => {
    open.add(response);
    response.on('close', () => open.delete(response));
  };
  return { open, add };
}

test('attack: metadata documents of many apps whose servers hang', async () => {
  const { open, add } = hang();
  site.serve('/app', (_request, response) => add(response));
  const client = await createTestClient(server);
  const asking = Array.from({ length: count }, (_none, index) => {
    const url = authorizationUrl(server, client, { client_id: site.url('/app', `app${index}`) });
    return fetch(url, { headers: network(index), redirect: 'manual' });
  });
  // More than the node has places. The first ones end after some seconds.
  await until(
    async () => open.size,
    (size) => size > 8,
  );
  assert.equal((await fetch(`${server.baseUrl}/account`)).status, 200);
  assert.ok(open.size > 0, 'others are served meanwhile');
  for (const response of open) response.destroy();
  await Promise.all(asking);
});

test('attack: many requests for the metadata document of one app whose server hangs', async () => {
  const { open, add } = hang();
  site.serve('/one', (_request, response) => add(response));
  const url = authorizationUrl(server, await createTestClient(server), { client_id: site.url('/one') });
  const before = await fetchesCounted();
  const asking = Array.from({ length: count }, (_none, index) =>
    fetch(url, { headers: network(50 + index), redirect: 'manual' }),
  );
  await until(fetchesCounted, (fetches) => fetches >= before + places);
  await until(
    async () => open.size,
    (size) => size === 1,
  );
  assert.equal((await fetch(`${server.baseUrl}/account`)).status, 200);
  assert.equal(open.size, 1, 'others are served meanwhile');
  for (const response of open) response.destroy();
  await Promise.all(asking);
});

test('attack: a network whose places are in use asks first for the metadata document of an app', async () => {
  const { open, add } = hang();
  site.serve('/shared', (_request, response) => add(response));
  const client = await createTestClient(server);
  const id = site.url('/shared');
  const url = authorizationUrl(server, client, { client_id: id });
  const ask = (of: string, from: number) => fetch(of, { headers: network(from), redirect: 'manual' });
  const before = await fetchesCounted();
  const first = ask(url, 100);
  await until(fetchesCounted, (fetches) => fetches === before + 1);
  const second = ask(url, 101);
  await until(fetchesCounted, (fetches) => fetches === before + 2);
  let others: Promise<Response>[] = [];
  await server.db.transaction().execute(async (tx) => {
    await sql`lock table pushed_requests in access exclusive mode`.execute(tx);
    const pushed = `${server.baseUrl}/oauth/authorize?client_id=${client.id}&request_uri=urn:ietf:params:oauth:request_uri:a`;
    others = Array.from({ length: 3 }, () => ask(pushed, 100));
    await until(
      () => requests('in_progress'),
      (number) => number === 3,
    );
    const document = { client_id: id, client_name: 'Shared', redirect_uris: [client.redirectUri] };
    for (const response of open) response.end(JSON.stringify(document));
    assert.match(await (await second).text(), /<strong>Shared<\/strong>/);
    assert.equal(await requests('waiting'), 1, 'the first waits for a place');
  });
  await Promise.all([first, ...others]);
});

test('attack: keys of an app whose server hangs', async () => {
  const { open, add } = hang();
  site.serve('/keys', (_request, response) => add(response));
  const client = await createTestClient(server, {
    authMethod: 'private_key_jwt',
    metadata: { jwks_uri: site.url('/keys') },
  });
  const now = Math.floor(Date.now() / 1_000);
  const claims = { iss: client.id, sub: client.id, aud: server.baseUrl, jti: 'a', iat: now, exp: now + 60 };
  const assertion = await new SignJWT(claims).setProtectedHeader({ alg: 'HS256' }).sign(Buffer.alloc(32));
  const form = {
    grant_type: 'client_credentials',
    client_assertion: assertion.replace(
      /^[^.]*/,
      Buffer.from('{"alg":"ES256","kid":"a"}').toString('base64url'),
    ),
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
  };
  const asking = Array.from({ length: count }, (_none, index) =>
    postForm(server, '/oauth/token', null, form, network(index)),
  );
  await until(
    async () => open.size,
    // The notification of the new client can arrive meanwhile. Then its keys are read again.
    (size) => size >= 1,
  );
  assert.equal((await fetch(`${server.baseUrl}/account`)).status, 200);
  assert.ok(open.size > 0, 'others are served meanwhile');
  for (const response of open) response.destroy();
  for (const { status } of await Promise.all(asking)) assert.equal(status, 401);
});

test('attack: handshakes of many accounts with a server that hangs', async (t) => {
  const { open, add } = hang();
  const subscriber = await startSubscriber(t, (_request, response) => add(response));
  const other = await createApp(server);
  const apps = await Promise.all(Array.from({ length: count }, () => createApp(server)));
  const asking = apps.map(({ request }, index) =>
    request('POST', '/subscriptions', {
      json: { kinds: ['push'], url: `${subscriber.url}/${index}`, handshake: true },
    }),
  );
  // More than the node has places. The first ones end after ten seconds.
  await until(
    async () => open.size,
    (size) => size > 8,
  );
  assert.equal((await other.request('GET', '/api')).status, 200);
  assert.ok(open.size > 0, 'others are served meanwhile');
  for (const response of open) response.destroy();
  for (const { status } of await Promise.all(asking)) assert.equal(status, 422);
});

/** A server that takes requests and never responds. */
async function startHanging(t: TestContext) {
  const { open, add } = hang();
  const hanging = createServer((_request, response) => add(response));
  await new Promise<void>((resolve) => hanging.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    hanging.closeAllConnections();
    hanging.close();
  });
  const { port } = hanging.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, open };
}

/** A browser in a network of its own. */
class RemoteBrowser extends TestBrowser {
  readonly #headers: Record<string, string>;

  constructor(baseUrl: string, headers: Record<string, string>) {
    super(baseUrl);
    this.#headers = headers;
  }

  override request(url: string, init: RequestInit = {}): Promise<Response> {
    const headers = { ...Object.fromEntries(new Headers(init.headers)), ...this.#headers };
    return super.request(url, { ...init, headers });
  }
}

test('attack: sign-in with a provider that hangs', async (t) => {
  const { url, open } = await startHanging(t);
  const provider = declare('slow', { issuer: url, clientId: 'a', clientSecret: 'b' });
  const server = await startServerWithProviders(t, [provider], 'open', limits);
  const client = await createTestClient(server);
  const browsers: [RemoteBrowser, Page][] = [];
  for (let index = 0; index < count; index += 1) {
    const browser = new RemoteBrowser(server.baseUrl, network(index));
    browsers.push([browser, await openLoginPage(server, browser, client)]);
  }
  const asking = browsers.map(([browser, page]) => pressButton(browser, page, 'slow'));
  await until(
    async () => open.size,
    (size) => size > 0,
  );
  assert.equal((await fetch(`${server.baseUrl}/account`)).status, 200);
  assert.ok(open.size > 0, 'others are served meanwhile');
  for (const response of open) response.destroy();
  await Promise.all(asking);
});

test('attack: changes that wait for a node that is silent', async (t) => {
  const server = await startTestServer(t, limits);
  const apps = await Promise.all(Array.from({ length: count }, () => createApp(server)));
  const ids: string[] = [];
  for (const app of apps) {
    await addPaused(server.db, app, 1);
    ids.push((await app.request('GET', '/subscriptions')).body.items[0].id);
  }
  await sql`
    insert into nodes (id, host, process, alive_until, generation)
    values (7, 'elsewhere', '7 1', now() + interval '1 hour', 2)`.execute(server.db);
  let changed = 0;
  const asking = apps.map(async ({ request }, index) => {
    const { status } = await request('DELETE', `/subscriptions/${ids[index]}`);
    changed += 1;
    return status;
  });
  // The first try of each is over.
  await until(
    async () => (await sql`select from delivery_holds`.execute(server.db)).rows.length,
    (holds) => holds > 0,
  );
  await sleep(1_000);
  assert.equal((await fetch(`${server.baseUrl}/account`)).status, 200);
  assert.equal(changed, 0, 'others are served meanwhile');
  for (const status of await Promise.all(asking)) assert.equal(status, 204);
});

test('attack: subscriptions that are enabled while a node has attempts in flight', async (t) => {
  const server = await startTestServer(t, limits);
  const subscriber = await startSubscriber(t);
  const apps = await Promise.all(Array.from({ length: count }, () => createApp(server)));
  const ids: string[] = [];
  for (const app of apps) {
    const { id } = await subscribe(app, { url: subscriber.url });
    await app.request('PATCH', `/subscriptions/${id}`, { json: { state: 'disabled' }, headers: mergePatch });
    ids.push(id);
  }
  await sql`
    insert into nodes (id, host, process, alive_until, generation)
    values (8, 'elsewhere', '8 1', now() + interval '1 hour', 2)`.execute(server.db);
  await sql`update lane_progress set owner = 8`.execute(server.db);
  let enabled = 0;
  const asking = apps.map(async ({ request }, index) => {
    const { status } = await request('PATCH', `/subscriptions/${ids[index]}`, {
      json: { state: 'active' },
      headers: mergePatch,
    });
    enabled += 1;
    return status;
  });
  // Time for them to take places.
  await sleep(300);
  assert.equal((await fetch(`${server.baseUrl}/account`)).status, 200);
  assert.equal(enabled, 0, 'others are served meanwhile');
  await sql`update lane_progress set owner = null`.execute(server.db);
  for (const status of await Promise.all(asking)) assert.equal(status, 200);
});

test('attack: passwords from many networks that wait for their hashes', async (t) => {
  const server = await startTestServer(t, limits, 'dev', createPlatform({ oauth: { password: true } }));
  const client = await createTestClient(server, { grantTypes: ['password'] });
  // All that may run at once, for long.
  const long = (await hashPassword('a')).replace(/t=\d+/, 't=100');
  let areDone = false;
  const hashes = Promise.all(
    Array.from({ length: Math.ceil(availableParallelism() / 2) }, () => verifyPassword('b', long)),
  ).then(() => {
    areDone = true;
  });
  const asking = Array.from({ length: count }, (_none, index) => {
    const form = { grant_type: 'password', username: `user${index}@example.com`, password: 'wrong' };
    return postForm(server, '/oauth/token', client, form, network(index));
  });
  // Time for them to take places.
  await sleep(300);
  assert.equal((await fetch(`${server.baseUrl}/account`)).status, 200);
  assert.ok(!areDone, 'others are served meanwhile');
  for (const { status } of await Promise.all(asking)) assert.equal(status, 400);
  await hashes;
});

test('attack: the health of many subscriptions of many accounts', async () => {
  const other = await createApp(server);
  const apps = await Promise.all(Array.from({ length: count }, () => createApp(server)));
  for (const app of apps) await addPaused(server.db, app, 101);
  const isRead = async () => {
    const { rows } = await sql`
      select from pg_locks where relation = 'delivery_stats'::regclass and not granted`.execute(server.db);
    return rows.length > 0;
  };
  const asked = await server.db.transaction().execute(async (tx) => {
    await sql`lock table delivery_stats in access exclusive mode`.execute(tx);
    const asked: ReturnType<App['request']>[] = [];
    for (const app of apps) {
      asked.push(app.request('GET', '/deliveries/health'));
      assert.equal((await other.request('GET', '/subscriptions')).status, 200);
    }
    await until(isRead, Boolean);
    // One account may have a few that wait.
    const [first] = apps as [App];
    const many = Array.from({ length: 8 }, () => first.request('GET', '/deliveries/health'));
    const refused = await Promise.race(many);
    assert.deepEqual([refused.status, refused.body.code], [503, 'overloaded']);
    return [...asked, ...many];
  });
  const answers = await Promise.all(asked);
  for (const { status, text } of answers.slice(0, count)) assert.equal(status, 200, text);
  assert.ok(answers.filter(({ status }) => status === 503).length >= 4);
});
