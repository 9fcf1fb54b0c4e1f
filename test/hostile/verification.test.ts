/** Attacks on the verification of apps: what an administrator verified is what users are told. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { pino } from 'pino';
import shipped from '../../nuncio.config.ts';
import { createPlatform, loadPlatform } from '../../src/platform.ts';
import { startServer } from '../../src/server.ts';
import { formsOf, type Page, TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  obtainCode,
  type TestClient,
} from '../support/clients/oauth.ts';
import { type ConsoleUser, createConsoleUser } from '../support/console/console_user.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { freePort, startTestServer, type TestServer, testSecret } from '../support/servers/server.ts';
import { createPublisher, publish, until } from '../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../support/webhooks/subscriber.ts';

const site = await startSite({ after });
const server = await startTestServer({ after }, {}, 'dev', undefined, siteEgress);
const { db } = server;
const admin = await createConsoleUser(server, { isAdmin: true });
const account = await createTestAccount(server);
const redirectUri = 'https://prints.example/callback';

const read = async (id: string) => (await admin.request('GET', `/admin/apps/${encodeURIComponent(id)}`)).body;

function verify(id: string, updatedAt: unknown) {
  const json = { updated_at: updatedAt };
  return admin.request('POST', `/admin/apps/${encodeURIComponent(id)}/verify`, { json });
}

async function verifyAsRead(id: string): Promise<void> {
  const { status, text } = await verify(id, (await read(id)).updated_at);
  assert.equal(status, 200, text);
}

/** The names that the audit log says have changed. */
async function changesOf(id: string): Promise<unknown[]> {
  const { rows } = await sql<{ details: { changed: string[] } }>`
    select details from audit_entries where client_id = ${id} and kind = 'app.unverified' order by id`.execute(
    db,
  );
  return rows.map(({ details }) => details.changed);
}

async function register(fields: Record<string, unknown> = {}) {
  const body = { client_name: 'Prints', redirect_uris: [redirectUri], scope: 'read:posts', ...fields };
  const headers = { 'content-type': 'application/json' };
  const made = await fetch(`${server.baseUrl}/oauth/register`, {
    ...{ method: 'POST', headers, body: JSON.stringify(body) },
  });
  assert.equal(made.status, 201);
  let registered = (await made.json()) as Record<string, string>;
  return {
    id: String(registered.client_id),
    client: {
      ...{ id: registered.client_id, secret: registered.client_secret, redirectUri },
      authMethod: 'client_secret_basic',
    } as TestClient,
    /** Replaces the registration (RFC 7592). */
    replace: async (changed: Record<string, unknown>): Promise<number> => {
      const { client_id, client_secret } = registered;
      const response = await fetch(String(registered.registration_client_uri), {
        method: 'PUT',
        headers: { ...headers, authorization: `Bearer ${registered.registration_access_token}` },
        body: JSON.stringify({ client_id, client_secret, ...body, ...changed }),
      });
      if (response.status === 200) registered = { ...registered, ...((await response.json()) as object) };
      return response.status;
    },
  };
}

/** Opens an authorization request in the browser of a signed-in user. */
async function ask(
  browser: TestBrowser,
  client: { id: string; redirectUri: string },
  { baseUrl } = server as Pick<TestServer, 'baseUrl'>,
  more: Record<string, string> = {},
): Promise<Page> {
  const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
  return browser.open(authorizationUrl({ baseUrl }, client, { scope: 'read:posts', ...pkce, ...more }));
}

const notice = /This app is not verified/;

test('attack: a verified app that replaces its registration is unverified, and its users see the notice', async () => {
  const app = await register();
  await verifyAsRead(app.id);
  const { browser } = await obtainCode(server, { account, client: app.client, scopes: ['read:posts'] });
  assert.ok((await ask(browser, app.client)).leftTo?.searchParams.has('code'), 'the user is asked once');
  const other = { id: app.id, redirectUri: 'https://evil.example/callback' };
  assert.equal(await app.replace({ client_name: 'Your Bank', redirect_uris: [other.redirectUri] }), 200);
  assert.equal((await read(app.id)).state, 'unverified');
  assert.deepEqual(await changesOf(app.id), [['client_name', 'redirect_uris']]);

  const silent = await ask(browser, other, server, { prompt: 'none' });
  assert.equal(silent.leftTo, null);
  assert.match(silent.text, /consent_required/);
  const page = await ask(browser, other);
  assert.match(page.text, /Connect Your Bank\?/);
  assert.match(page.text, notice);
  // The consent to the new description counts again.
  assert.ok((await browser.submit(page, { action: 'allow' })).leftTo?.searchParams.has('code'));
  assert.ok((await ask(browser, other)).leftTo?.searchParams.has('code'));
  await verifyAsRead(app.id);
  assert.ok((await ask(browser, other)).leftTo?.searchParams.has('code'));
});

test('attack: a page that was opened before a redirect URI was removed sends no code there', async () => {
  const app = await register();
  const { browser } = await obtainCode(server, { account, client: app.client, scopes: ['read:posts'] });
  const more = { prompt: 'consent' };
  const pages = [await ask(browser, app.client, server, more), await ask(browser, app.client, server, more)];
  const signIn = new TestBrowser(server.baseUrl);
  const waiting = await ask(signIn, app.client);
  const other = 'https://new.prints.example/callback';
  assert.equal(await app.replace({ redirect_uris: [other] }), 200);
  await verifyAsRead(app.id);
  const { email, password } = account;
  for (const page of [
    await browser.submit(await browser.submit(pages[0] as Page, { action: 'allow' }), { action: 'allow' }),
    await browser.submit(pages[1] as Page, { action: 'deny' }),
    await signIn.submit(waiting, { email: String(email), password, action: 'login' }),
  ]) {
    assert.equal(page.leftTo, null);
    assert.match(page.text, /invalid_redirect_uri/);
  }
  // The registered one still gets a code.
  const page = await ask(browser, { id: app.id, redirectUri: other }, server, { prompt: 'consent' });
  assert.ok((await browser.submit(page, { action: 'allow' })).leftTo?.searchParams.has('code'));
});

test('attack: consent to what an app said before it changed does not count, and the page says so', async () => {
  const app = await register();
  await verifyAsRead(app.id);
  const { browser } = await obtainCode(server, { account, client: app.client, scopes: ['read:posts'] });
  const opened = await ask(browser, app.client, server, { prompt: 'consent' });
  assert.equal(await app.replace({ client_name: 'Your Bank' }), 200);
  const page = await browser.submit(opened, { action: 'allow' });
  assert.equal(page.leftTo, null);
  assert.match(page.text, /The app has changed since you opened this page/);
  assert.match(page.text, /Connect Your Bank\?/);
  assert.match(page.text, notice);
  const { rows } = await sql`select from grants where client_id = ${app.id}`.execute(db);
  assert.equal(rows.length, 1);
  assert.ok((await browser.submit(page, { action: 'allow' })).leftTo?.searchParams.has('code'));
});

test('attack: a consent does not count if the app changes before the request is resumed', async () => {
  const app = await register();
  await verifyAsRead(app.id);
  const browser = new TestBrowser(server.baseUrl);
  const login = await ask(browser, app.client);
  const { email, password } = account;
  const page = await browser.submit(login, { email, password, action: 'login' });
  const [form] = formsOf(page.text);
  const body = new URLSearchParams({ ...form?.fields, action: 'allow' });
  const submitted = await browser.request(page.url, { method: 'POST', body });
  assert.equal(await app.replace({ client_name: 'Your Bank' }), 200);
  const resumed = await browser.request(String(submitted.headers.get('location')));
  assert.equal(resumed.status, 303);
  assert.match(String(resumed.headers.get('location')), /\/interaction\//);
  const { rows } = await sql`select from grants where client_id = ${app.id}`.execute(db);
  assert.equal(rows.length, 0);
});

test('attack: a grant that is stored while the app changes does not count afterwards', async () => {
  const app = await register();
  await verifyAsRead(app.id);
  const { browser } = await obtainCode(server, { account, client: app.client, scopes: ['read:posts'] });
  const isChanged = Promise.withResolvers<void>();
  const mayCommit = Promise.withResolvers<void>();
  const changing = db.transaction().execute(async (tx) => {
    await sql`update clients set name = 'Your Bank' where id = ${app.id}`.execute(tx);
    isChanged.resolve();
    await mayCommit.promise;
  });
  await isChanged.promise;
  // The change is not visible yet, so the earlier consent counts.
  assert.ok((await ask(browser, app.client)).leftTo?.searchParams.has('code'));
  mayCommit.resolve();
  await changing;
  assert.equal((await ask(browser, app.client)).leftTo, null);
  // The node may still have the old name in its cache.
  await until(
    () => ask(browser, app.client),
    ({ text }) => text.includes('Connect Your Bank?'),
  );
});

test('attack: a verified app that changes its metadata document is unverified', async () => {
  const path = '/prints.json';
  const id = site.url(path);
  const serve = (fields: Record<string, unknown>) =>
    site.serve(path, {
      body: {
        ...{ client_id: id, client_name: 'Prints', redirect_uris: [redirectUri] },
        ...{ token_endpoint_auth_method: 'none', scope: 'read:posts', ...fields },
      },
    });
  serve({});
  const client = { id, redirectUri, authMethod: 'none', secret: null } as TestClient;
  const published = /published by <strong/;
  const { browser } = await obtainCode(server, { account, client, scopes: ['read:posts'] });
  await verifyAsRead(id);
  assert.doesNotMatch((await ask(browser, client, server, { prompt: 'consent' })).text, published);

  serve({ client_name: 'Your Bank' });
  // Another node fetches the document, because the first one still has it in its cache.
  const port = await freePort();
  const config = { ...server.config, port, baseUrl: `http://127.0.0.1:${port}` };
  const node = await startServer({
    ...{ config, platform: await loadPlatform(null), databaseUrl: server.databaseUrl, secret: testSecret },
    ...{ logger: pino({ level: 'silent' }), egress: siteEgress },
  });
  try {
    assert.match((await ask(new TestBrowser(config.baseUrl), client, config)).text, /Your Bank/);
  } finally {
    await node.close();
  }
  assert.equal((await read(id)).state, 'unverified');
  assert.deepEqual(await changesOf(id), [['client_name']]);
  const page = await until(
    () => ask(browser, client),
    ({ text }) => text.includes('Your Bank'),
  );
  assert.match(page.text, published);
});

async function createAppOf(owner: ConsoleUser): Promise<string> {
  const json = {
    ...{ client_name: 'Prints', redirect_uris: [redirectUri], scope: 'read:posts' },
    ...{ policy_uri: 'https://prints.example/privacy', contacts: ['a@prints.example'] },
  };
  const { status, body, text } = await owner.request('POST', '/apps', { json });
  assert.equal(status, 201, text);
  return body.client_id;
}

test('a verified app is unverified when a member changes anything that the administrator read', async () => {
  const owner = await createConsoleUser(server);
  const elsewhere = 'https://evil.example/';
  for (const [change, names] of [
    [{ client_name: 'Your Bank' }, ['client_name']],
    [{ redirect_uris: [elsewhere] }, ['redirect_uris']],
    [{ redirect_uris: [redirectUri, elsewhere] }, ['redirect_uris']],
    [{ client_uri: elsewhere }, ['client_uri']],
    [{ logo_uri: elsewhere }, ['logo_uri']],
    [{ policy_uri: elsewhere }, ['policy_uri']],
    [{ policy_uri: null }, ['policy_uri']],
    [{ tos_uri: elsewhere }, ['tos_uri']],
    [{ scope: 'read:posts write:posts' }, ['scope']],
    [{ grant_types: ['authorization_code', 'refresh_token', 'client_credentials'] }, ['grant_types']],
    [{ post_logout_redirect_uris: [elsewhere] }, ['post_logout_redirect_uris']],
    [{ backchannel_logout_uri: elsewhere }, ['backchannel_logout_uri']],
    [
      { token_endpoint_auth_method: 'private_key_jwt', jwks_uri: `${elsewhere}keys` },
      ['jwks_uri', 'token_endpoint_auth_method'],
    ],
    [{ token_endpoint_auth_method: 'none' }, ['token_endpoint_auth_method']],
    [{ contacts: ['b@prints.example'] }, null],
    [{ software_version: '2' }, null],
    [{ client_name: 'Prints' }, null],
  ] as [object, string[] | null][]) {
    const id = await createAppOf(owner);
    await verifyAsRead(id);
    const changed = await owner.request('PATCH', `/apps/${id}`, { json: change });
    const what = JSON.stringify(change);
    assert.equal(changed.status, 200, what + changed.text);
    assert.equal(changed.body.state, names === null ? 'verified' : 'unverified', what);
    const found = (await changesOf(id)) as string[][];
    assert.equal(found.length, names === null ? 0 : 1, what);
    for (const name of names ?? []) assert.ok(found[0]?.includes(name), `${what}: ${found}`);
  }
});

test('an administrator verifies what they change, and any other statement ends the verification', async () => {
  const owner = await createConsoleUser(server);
  const id = await createAppOf(owner);
  await verifyAsRead(id);
  const json = { client_name: 'Corrected', redirect_uris: ['https://corrected.example/'] };
  assert.equal((await admin.request('PATCH', `/apps/${id}`, { json })).body.state, 'verified');
  for (const column of [
    sql`name = 'Bank'`,
    sql`redirect_uris = '{}'`,
    sql`grant_types = '{}'`,
    sql`scopes = '{write:posts}'`,
    sql`auth_method = 'none'`,
    sql`require_pkce = false`,
    sql`metadata = metadata || '{"jwks":{"keys":[]}}'`,
    sql`metadata = metadata || '{"a member of a later version": 1}'`,
    sql`logo = 'another'`,
  ]) {
    await verifyAsRead(id);
    await sql`update clients set ${column} where id = ${id}`.execute(db);
    assert.equal((await read(id)).state, 'unverified');
  }
  const { rows } = await sql`
    select from clients where id = ${id} and verified_at is null and unverified_at is not null`.execute(db);
  assert.equal(rows.length, 1);
});

test('an app is verified only by the version that the administrator read', async () => {
  const owner = await createConsoleUser(server);
  const id = await createAppOf(owner);
  const seen = (await read(id)).updated_at;
  for (const json of [undefined, {}, { updated_at: null }, { reason: 'looks good' }, { updated_at: 'now' }]) {
    const refused = await admin.request(
      'POST',
      `/admin/apps/${id}/verify`,
      json === undefined ? {} : { json },
    );
    assert.equal(refused.status, 422, refused.text);
    assert.equal(refused.body.errors[0].pointer, '/updated_at');
  }
  // A change in the same millisecond, or by a clock that went back, is another version.
  await sql`update clients set name = 'Bank', updated_at = updated_at - interval '1 hour' where id = ${id}`.execute(
    db,
  );
  const refused = await verify(id, seen);
  assert.deepEqual([refused.status, refused.body.code], [412, 'app-changed']);
  assert.equal((await read(id)).state, 'unverified');
});

test('attack: a change that races the verification is not verified', async () => {
  const app = await register();
  for (let round = 0; round < 10; round += 1) {
    const name = `Round ${round}`;
    const seen = await read(app.id);
    const [replaced, verified] = await Promise.all([
      app.replace({ client_name: name }),
      verify(app.id, seen.updated_at),
    ]);
    assert.equal(replaced, 200);
    assert.ok([200, 412].includes(verified.status), verified.text);
    const { state, client_name } = await read(app.id);
    assert.deepEqual([state, client_name], ['unverified', name]);
  }
});

test('with appSubscriptions: verified, retries stop when the app changes', async (t) => {
  const platform = createPlatform({ ...shipped, webhooks: { appSubscriptions: 'verified' } });
  const own = await startTestServer(t, { NUNCIO_RETRY_SCHEDULE: '1s,1s,1s,1s,1s,1s,1s,1s' }, 'dev', platform);
  const subscriber = await startSubscriber(t, answer(500));
  const owner = await createConsoleUser(own);
  const client = await createTestClient(own, { origin: 'account' });
  await sql`insert into app_members (client_id, account_id, role) values (${client.id}, ${owner.account.id}, 'owner')`.execute(
    own.db,
  );
  await sql`update clients set verified_at = now() where id = ${client.id}`.execute(own.db);
  const json = { url: subscriber.url, kinds: ['push'] };
  assert.equal((await owner.request('POST', `/apps/${client.id}/subscriptions`, { json })).status, 201);
  const user = await createTestAccount(own);
  await mintAccessToken(own, { account: user, client, scopes: ['read:posts'] });
  await publish(await createPublisher(own), user, ['secret']);
  await subscriber.waitFor(1);
  // Like a replaced registration, the statement does not mention the verification.
  await sql`update clients set name = 'Bank' where id = ${client.id}`.execute(own.db);
  await sleep(300);
  const attempts = subscriber.received.length;
  await sleep(2_500);
  assert.equal(subscriber.received.length, attempts);
});
