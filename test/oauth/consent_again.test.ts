/** A second consent of the same user and app narrows or widens the first grant and its subscriptions. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import shipped from '../../nuncio.config.ts';
import { createPlatform } from '../../src/platform.ts';
import { requester } from '../support/clients/api_client.ts';
import {
  type Authorized,
  authorizationUrl,
  authorize,
  createPkce,
  createTestAccount,
  createTestClient,
  obtainCode,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createPublisher, publish, pushBody, subscribe, until } from '../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../support/webhooks/subscriber.ts';

const notes = 'https://notes.example';
const platform = createPlatform({ ...shipped, oauth: { resources: [{ url: notes, name: 'Notes' }] } });
const server = await startTestServer({ after }, {}, 'dev', platform);
const webhooks = ['read:webhooks', 'write:webhooks'];
const wide = ['read:posts', 'read:profile', ...webhooks];
const narrow = ['read:profile', ...webhooks];

/** A user who consents on the consent page each time. */
async function createUser(client = createTestClient(server)) {
  const [account, app] = [await createTestAccount(server), await client];
  const allow = (scopes: string[], parameters: Record<string, string> = {}) =>
    authorize(server, { account, client: app, scopes, parameters: { prompt: 'consent', ...parameters } });
  return { account, app, allow };
}

const requestOf = ({ accessToken }: Pick<Authorized, 'accessToken'>) => requester(server, accessToken);

async function statusOf(authorized: Pick<Authorized, 'accessToken'>): Promise<number> {
  return (await requestOf(authorized)('GET', '/api')).status;
}

test('consent to fewer scopes narrows the existing grant and its subscription', async (t) => {
  const subscriber = await startSubscriber(t, answer(200));
  const { account, allow } = await createUser();
  const publisher = await createPublisher(server);
  const first = await allow(wide);
  const made = await subscribe({ request: requestOf(first) }, { url: subscriber.url });
  await publish(publisher, account, ['before']);
  await subscriber.waitFor(1);

  const second = await allow(narrow);
  await publish(publisher, account, ['after']);
  const bill = {
    kind: 'invoice.paid',
    account: account.id,
    body: await exampleOf(publisher, 'invoice.paid'),
  };
  assert.equal((await publisher('POST', '/events', { json: bill })).status, 202);
  await subscriber.waitFor(2);
  assert.deepEqual(
    subscriber.received.map(({ headers }) => headers['nuncio-event']),
    ['push', 'invoice.paid'],
  );

  // The new token works with the existing subscription of the app.
  const { status, body } = await requestOf(second)('GET', `/subscriptions/${made.id}`);
  assert.equal(status, 200);
  assert.equal(body.grant, first.grantId);
  const { body: list } = await requestOf(second)('GET', '/subscriptions');
  assert.deepEqual(
    list.items.map(({ id }: { id: string }) => id),
    [made.id],
  );
});

test('earlier access tokens end with the scopes they name, and a refresh returns the remaining scopes', async () => {
  const { app, allow } = await createUser();
  const first = await allow(wide);
  assert.equal(await statusOf(first), 200);
  await allow(narrow);
  await until(
    () => statusOf(first),
    (status) => status === 401,
  );
  const form = { grant_type: 'refresh_token', refresh_token: first.refreshToken };
  const { status, body } = await postForm(server, '/oauth/token', app, form);
  assert.equal(status, 200);
  assert.deepEqual(String(body.scope).split(' ').sort(), [...narrow].sort());
  assert.equal(await statusOf({ accessToken: String(body.access_token) }), 200);
});

test('earlier opaque access tokens end with the scopes they name', async () => {
  const { app, account } = await createUser(
    createTestClient(server, { metadata: { access_token_format: 'opaque' } }),
  );
  const allow = async (scopes: string[]) => {
    const parameters = { prompt: 'consent' };
    const { code, verifier } = await obtainCode(server, { account, client: app, scopes, parameters });
    const form = {
      grant_type: 'authorization_code',
      code,
      code_verifier: verifier,
      redirect_uri: app.redirectUri,
    };
    const { body } = await postForm(server, '/oauth/token', app, form);
    assert.doesNotMatch(String(body.access_token), /\./);
    return { accessToken: String(body.access_token) };
  };
  const first = await allow(wide);
  assert.equal(await statusOf(first), 200);
  const second = await allow(narrow);
  await until(
    () => statusOf(first),
    (status) => status === 401,
  );
  assert.equal(await statusOf(second), 200);
});

test('consent to more scopes widens the subscription and ends no token', async (t) => {
  const subscriber = await startSubscriber(t, answer(200));
  const { account, allow } = await createUser();
  const publisher = await createPublisher(server);
  const first = await allow(narrow);
  await subscribe({ request: requestOf(first) }, { url: subscriber.url });
  await allow(wide);
  await publish(publisher, account, ['now']);
  await subscriber.waitFor(1);
  assert.equal(await statusOf(first), 200);
});

test('consent by another user, or to another app, changes nothing', async () => {
  const { app, account, allow } = await createUser();
  const first = await allow(wide);
  const other = await createUser(Promise.resolve(app));
  await other.allow(narrow);
  const second = await createTestClient(server);
  await authorize(server, { account, client: second, scopes: narrow });
  const { rows } = await sql<{ scopes: string[]; revision: number }>`
    select scopes, revision from grants where id = ${first.grantId}`.execute(server.db);
  assert.deepEqual(rows, [{ scopes: [...wide].sort(), revision: 0 }]);
});

test('a request that needs no consent changes nothing', async () => {
  const { app, account, allow } = await createUser();
  const first = await allow(wide);
  const silent = await authorize(server, { account, client: app, scopes: narrow });
  assert.notEqual(silent.grantId, first.grantId);
  const { rows } = await sql<{ scopes: string[] }>`
    select scopes from grants where id = ${first.grantId}`.execute(server.db);
  assert.deepEqual(rows[0]?.scopes, [...wide].sort());
});

test('consent for one API leaves grants for another API unchanged', async () => {
  const { allow } = await createUser();
  const first = await allow(wide);
  await allow(['read:profile'], { resource: notes });
  const { rows } = await sql<{ scopes: string[]; revision: number }>`
    select scopes, revision from grants where id = ${first.grantId}`.execute(server.db);
  assert.deepEqual(rows, [{ scopes: [...wide].sort(), revision: 0 }]);
});

test('a refused consent changes nothing', async () => {
  const { app, allow } = await createUser();
  const { browser, ...first } = await allow(wide);
  const { challenge } = createPkce();
  const url = authorizationUrl(server, app, {
    scope: 'read:profile',
    prompt: 'consent',
    code_challenge: challenge,
    code_challenge_method: 'S256',
  });
  const { leftTo } = await browser.submit(await browser.open(url), { action: 'deny' });
  assert.equal(leftTo?.searchParams.get('error'), 'access_denied');
  const { rows } = await sql<{ scopes: string[] }>`
    select scopes from grants where id = ${first.grantId}`.execute(server.db);
  assert.deepEqual(rows[0]?.scopes, [...wide].sort());
});

test('another app of the same user does not see the subscription', async () => {
  const { account, allow } = await createUser();
  const { id } = await subscribe({ request: requestOf(await allow(wide)) }, { url: 'https://example.com/' });
  const stranger = await authorize(server, { account, client: await createTestClient(server), scopes: wide });
  assert.equal((await requestOf(stranger)('GET', `/subscriptions/${id}`)).status, 404);
});

test('two concurrent consents do not deadlock, and the existing grant has the scopes of one of them', async () => {
  const { allow } = await createUser();
  const first = await allow(wide);
  const others = [['read:posts'], ['read:profile'], ['read:webhooks']];
  await Promise.all(others.map((scopes) => allow(scopes)));
  const { rows } = await sql<{ scopes: string[] }>`
    select scopes from grants where id = ${first.grantId}`.execute(server.db);
  assert(others.some(([scope]) => rows[0]?.scopes.join() === scope));
});

async function exampleOf(publisher: ReturnType<typeof requester>, kind: string): Promise<unknown> {
  const { body } = await publisher('GET', '/event-kinds');
  const found = (body.items as { name: string; example: unknown }[]).find(({ name }) => name === kind);
  return found?.example ?? pushBody();
}
