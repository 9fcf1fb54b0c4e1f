/** What ends with a login session: the grants of the server's own apps, and sign-ins that are in progress. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { sql } from 'kysely';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { consoleClientId, docsClientId, docsRedirectUri } from '../../src/clients/own_clients.ts';
import { createSealer } from '../../src/crypto/sealing.ts';
import { runHousekeeping } from '../../src/oauth/housekeeping.ts';
import { endSessions } from '../../src/oauth/storage/end_sessions.ts';
import { makeSecret } from '../../src/webhooks/subscriptions/signature.ts';
import { createSubscription } from '../../src/webhooks/subscriptions/subscription.ts';
import { SubscriptionQuotas } from '../../src/webhooks/subscriptions/subscription_quotas.ts';
import { formsOf, TestBrowser } from '../support/browser/browser.ts';
import { requester } from '../support/clients/api_client.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  obtainCode,
  postForm,
  type TestAccount,
} from '../support/clients/oauth.ts';
import { beginReset, untilBlocked } from '../support/clients/password_reset.ts';
import { consoleClientOf, signInToConsole } from '../support/console/console_user.ts';
import { startTestServer, testSecret } from '../support/servers/server.ts';
import { createApp, subscribe, until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;
const adminScope = 'openid read:apps write:apps read:webhooks write:webhooks admin';

const newBrowser = () => new TestBrowser(server.baseUrl);

/** A user who is signed in to the console. */
async function consoleOf(account: TestAccount, browser = newBrowser()) {
  const { tokens } = await signInToConsole(server, account, { scope: adminScope }, browser);
  const request = requester(server, String(tokens.access_token));
  const status = async () => (await request('GET', '/admin/accounts')).status;
  assert.equal(await status(), 200);
  const refresh = () => {
    const form = { grant_type: 'refresh_token', refresh_token: String(tokens.refresh_token) };
    return postForm(server, '/oauth/token', consoleClientOf(server), form);
  };
  return { browser, request, status, refresh };
}

async function signOut(browser: TestBrowser): Promise<void> {
  await browser.submit(await browser.open(`${server.baseUrl}/oauth/logout`), { logout: 'yes' });
}

/** Asserts that the access token ends within a second (plus the time of this test's own requests) and the refresh token at once. */
async function assertEnded({ status, refresh }: Awaited<ReturnType<typeof consoleOf>>): Promise<void> {
  const { status: refreshed, body } = await refresh();
  assert.deepEqual([refreshed, body.error], [400, 'invalid_grant']);
  await until(status, (code) => code === 401);
}

async function reasonsOf({ id }: TestAccount): Promise<(string | null)[]> {
  const { rows } = await sql<{ withdrawn_reason: string | null }>`
    select withdrawn_reason from grants where account_id = ${id} order by id`.execute(db);
  return rows.map((row) => row.withdrawn_reason);
}

test('the console’s tokens end with a sign-out of that browser; other browsers’ and apps’ tokens stay', async () => {
  const account = await createTestAccount(server, { isAdmin: true });
  const app = await createApp(server, { account });
  const here = await consoleOf(account);
  const there = await consoleOf(account);
  await signOut(here.browser);
  await assertEnded(here);
  assert.equal(await there.status(), 200);
  assert.equal((await there.refresh()).status, 200);
  assert.equal((await app.request('GET', '/api')).status, 200);
  assert.deepEqual(await reasonsOf(account), [null, 'session_ended', null]);
});

test('the console’s tokens end when another user signs in to the browser', async () => {
  const [first, second] = [
    await createTestAccount(server, { isAdmin: true }),
    await createTestAccount(server, { isAdmin: true }),
  ];
  const before = await consoleOf(first);
  await signInToConsole(server, second, { prompt: 'login' }, before.browser);
  await assertEnded(before);
  assert.deepEqual([await reasonsOf(first), await reasonsOf(second)], [['session_ended'], [null]]);
});

/** A user who has connected the reference. */
async function referenceOf(account: TestAccount) {
  const browser = newBrowser();
  await signInToConsole(server, account, {}, browser);
  const client = {
    ...consoleClientOf(server),
    id: docsClientId,
    redirectUri: docsRedirectUri(server.baseUrl),
  };
  const { verifier, challenge } = createPkce();
  const scope = 'read:posts read:webhooks write:webhooks';
  const pkce = { code_challenge: challenge, code_challenge_method: 'S256' };
  const consent = await browser.open(authorizationUrl(server, client, { scope, ...pkce }));
  const page = await browser.submit(consent, { action: 'allow' });
  const { body: tokens } = await postForm(server, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code: String(new URL(page.url).searchParams.get('code')),
    redirect_uri: client.redirectUri,
    code_verifier: verifier,
  });
  const accessToken = String(tokens.access_token);
  return {
    browser,
    request: requester(server, accessToken),
    grantId: decodeJwt(accessToken).grant_id as string,
  };
}

async function stateOf(subscriptionId: string): Promise<string | undefined> {
  const { rows } = await sql<{ state: string }>`
    select state from subscriptions where id = ${subscriptionId}`.execute(db);
  return rows[0]?.state;
}

test('the reference’s tokens and subscriptions end when its user signs out', async () => {
  const { browser, request } = await referenceOf(await createTestAccount(server));
  const { id } = await subscribe({ request }, { url: 'https://example.com/' });
  await signOut(browser);
  assert.equal(await stateOf(id), 'ended');
  await until(
    () => request('GET', '/api'),
    ({ status }) => status === 401,
  );
});

test('deliveries of a subscription that the reference adds during the sign-out are held, too', async () => {
  const account = await createTestAccount(server);
  const { browser, grantId } = await referenceOf(account);
  const owner = { kind: 'grant' as const, grantId, accountId: account.id, clientId: docsClientId };
  const fields = {
    ...{ url: 'https://example.com/', kinds: ['push'], signature: 'timestamp' as const },
    ...{
      format: 'json' as const,
      version: null,
      ordered: false,
      handshake: false,
      rateLimit: null,
      description: '',
      retrySchedule: null,
      filter: null,
    },
  };
  const sealer = createSealer(testSecret, 'subscription-secret');
  const isAdded = Promise.withResolvers<string>();
  const mayCommit = Promise.withResolvers<void>();
  const adding = db.transaction().execute(async (tx) => {
    isAdded.resolve(
      String(
        (await createSubscription(tx, owner, fields, makeSecret(), sealer, new SubscriptionQuotas(db)))?.id,
      ),
    );
    await mayCommit.promise;
  });
  const id = await isAdded.promise;
  const leaving = signOut(browser);
  await until(
    async () =>
      (await sql`select from delivery_holds where account_id = ${account.id}`.execute(db)).rows.length,
    (count) => count === 1,
  );
  mayCommit.resolve();
  await Promise.all([adding, leaving]);
  assert.equal(await stateOf(id), 'ended');
});

test('the tokens of the console and the reference end when all sessions of the account end', async () => {
  const account = await createTestAccount(server, { isAdmin: true });
  const consoles = [await consoleOf(account), await consoleOf(account)];
  const docs = await mintAccessToken(server, {
    account,
    client: { id: docsClientId },
    scopes: ['read:posts'],
  });
  const app = await createApp(server, { account });
  await db.transaction().execute((tx) => endSessions(tx, account.id));
  for (const each of consoles) await assertEnded(each);
  const reference = requester(server, docs.accessToken);
  await until(
    () => reference('GET', '/api'),
    ({ status }) => status === 401,
  );
  assert.equal((await app.request('GET', '/api')).status, 200);
});

test('a code of the console cannot be redeemed when the session has ended', async () => {
  const account = await createTestAccount(server);
  const browser = newBrowser();
  await signInToConsole(server, account, {}, browser);
  const client = consoleClientOf(server);
  const { verifier, challenge } = createPkce();
  const pkce = { code_challenge: challenge, code_challenge_method: 'S256' };
  const page = await browser.open(authorizationUrl(server, client, { scope: 'openid', ...pkce }));
  await signOut(browser);
  const { status, body } = await postForm(server, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code: String(new URL(page.url).searchParams.get('code')),
    redirect_uri: client.redirectUri,
    code_verifier: verifier,
  });
  assert.deepEqual([status, body.error], [400, 'invalid_grant']);
});

test('the console’s grant ends when its session expires', async () => {
  const account = await createTestAccount(server, { isAdmin: true });
  const before = await consoleOf(account);
  await sql`update login_sessions set expires_at = now() - interval '1 minute' where account_id = ${account.id}`.execute(
    db,
  );
  await runHousekeeping(db);
  await assertEnded(before);
});

test('the console gets no grant when its session ends while the request is in progress', async () => {
  const account = await createTestAccount(server, { isAdmin: true });
  const { browser } = await consoleOf(account);
  const mayCommit = Promise.withResolvers<void>();
  const isDeleted = Promise.withResolvers<void>();
  const ending = db.transaction().execute(async (tx) => {
    await sql`delete from login_sessions where account_id = ${account.id}`.execute(tx);
    isDeleted.resolve();
    await mayCommit.promise;
  });
  await isDeleted.promise;
  const { challenge } = createPkce();
  const pkce = { code_challenge: challenge, code_challenge_method: 'S256' };
  const asked = browser.open(authorizationUrl(server, consoleClientOf(server), { scope: 'openid', ...pkce }));
  await untilBlocked(db, asked);
  mayCommit.resolve();
  await ending;
  const page = await asked;
  assert.doesNotMatch(page.url, /[?&]code=/);
  const { rows } = await sql`
    select from grants where account_id = ${account.id} and withdrawn_at is null`.execute(db);
  assert.equal(rows.length, 0);
});

test('a connected app gets no code when the session ends while the request is in progress', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const scopes = ['read:posts'];
  const { browser } = await obtainCode(server, { account, client, scopes });
  const { challenge } = createPkce();
  const pkce = { code_challenge: challenge, code_challenge_method: 'S256' };
  const reset = await beginReset(db, account);
  const asked = browser.open(authorizationUrl(server, client, { scope: 'read:posts', ...pkce }));
  await untilBlocked(db, asked);
  await reset.commit();
  const page = await asked;
  assert.equal(page.leftTo, null);
  assert.equal(page.response.status, 400);
  assert.equal((await reasonsOf(account)).length, 1);
});

test('a device gets no tokens when the session ends while the user allows it', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { grantTypes: [deviceCodeGrantType] });
  const { browser } = await obtainCode(server, {
    account,
    client: await createTestClient(server),
    scopes: ['read:posts'],
  });
  const { body: started } = await postForm(server, '/oauth/device', client, { scope: 'read:posts' });
  const input = await browser.open(`${server.baseUrl}/device`);
  const confirmation = await browser.submit(input, { user_code: String(started.user_code) });
  const consent = await browser.submit(confirmation, {});
  const reset = await beginReset(db, account);
  const asked = browser.submit(consent, { action: 'allow' });
  await untilBlocked(db, asked);
  await reset.commit();
  assert.doesNotMatch((await asked).text, /Device connected/);
  const form = { grant_type: deviceCodeGrantType, device_code: String(started.device_code) };
  assert.equal((await postForm(server, '/oauth/token', client, form)).status, 400);
  assert.equal((await reasonsOf(account)).length, 1);
});

test('an old password gets no session when it is reset while the sign-in is in progress', async () => {
  const account = await createTestAccount(server);
  const browser = newBrowser();
  const login = await browser.open(`${server.baseUrl}/account`);
  const reset = await beginReset(db, account);
  // The reset is not visible yet, so the old password is right.
  const asked = browser.submit(login, { email: account.email, password: account.password });
  await untilBlocked(db, asked);
  await reset.commit();
  assert.equal((await asked).response.status, 403);
  assert.match((await browser.open(`${server.baseUrl}/account`)).text, /name="password"/);
  const again = await browser.submit(await browser.open(`${server.baseUrl}/account`), {
    email: account.email,
    password: 'another password',
  });
  assert.match(again.text, /Connected apps/);
});

test('a password that is reset during the sign-in gets no code of a connected app', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  await mintAccessToken(server, { account, client, scopes: ['read:posts'] });
  const browser = newBrowser();
  const { challenge } = createPkce();
  const pkce = { code_challenge: challenge, code_challenge_method: 'S256' };
  const login = await browser.open(authorizationUrl(server, client, { scope: 'read:posts', ...pkce }));
  const reset = await beginReset(db, account);
  const { email, password } = account;
  const asked = browser.submit(login, { email, password, action: 'login' });
  await untilBlocked(db, asked);
  await reset.commit();
  const page = await asked;
  assert.equal(page.leftTo, null);
  assert.equal(page.response.status, 400);
  assert.match(page.text, /expired/);
});

test('a password that is reset during the sign-in gets no grant of the console', async () => {
  const account = await createTestAccount(server, { isAdmin: true });
  const browser = newBrowser();
  const { challenge } = createPkce();
  const pkce = { code_challenge: challenge, code_challenge_method: 'S256' };
  const login = await browser.open(
    authorizationUrl(server, consoleClientOf(server), { scope: adminScope, ...pkce }),
  );
  const form = formsOf(login.text)[0];
  const reset = await beginReset(db, account);
  const body = new URLSearchParams({
    ...form?.fields,
    email: account.email,
    password: account.password,
    action: 'login',
  });
  const asked = browser.open(login.url, { method: 'POST', body });
  await untilBlocked(db, asked);
  await reset.commit();
  const page = await asked;
  assert.doesNotMatch(page.url, /[?&]code=/);
  const { rows } = await sql`
    select from grants where account_id = ${account.id} and withdrawn_at is null and client_id = ${consoleClientId}`.execute(
    db,
  );
  assert.equal(rows.length, 0);
  assert.match((await browser.open(`${server.baseUrl}/account`)).text, /name="password"/);
});
