/**
 * Sign-out by an app (OpenID Connect RP-Initiated Logout) and notices to other apps (Back-Channel Logout).
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import {
  createRemoteJWKSet,
  decodeJwt,
  importJWK,
  type JWK,
  type JWTPayload,
  jwtVerify,
  SignJWT,
} from 'jose';
import { sql } from 'kysely';
import * as openid from 'openid-client';
import { addLogoutNotice, retryDelaysSeconds } from '../../../src/oauth/logout/notice.ts';
import { loadSigningKeys } from '../../../src/oauth/signing_keys.ts';
import type { Page, TestBrowser } from '../../support/browser/browser.ts';
import {
  authorizationUrl,
  authorize,
  createPkce,
  createTestAccount,
  createTestClient,
  postForm,
  type TestClient,
} from '../../support/clients/oauth.ts';
import { type Respond, siteEgress, startSite } from '../../support/network/site.ts';
import { startTestServer, testSecret } from '../../support/servers/server.ts';

const site = await startSite({ after });
const server = await startTestServer({ after }, {}, 'dev', undefined, siteEgress);
const keys = createRemoteJWKSet(new URL(`${server.baseUrl}/oauth/jwks`));
const account = await createTestAccount(server);
const signedOutUri = 'https://app.example/signed-out?from=nuncio';
const client = await createTestClient(server, { metadata: { post_logout_redirect_uris: [signedOutUri] } });
const scopes = ['openid', 'read:posts'];

function logoutUrl(parameters: Record<string, string>): string {
  return `${server.baseUrl}/oauth/logout?${new URLSearchParams(parameters)}`;
}

async function isSignedIn(browser: TestBrowser, app: TestClient = client): Promise<boolean> {
  const url = authorizationUrl(server, app, {
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
    scope: scopes.join(' '),
    prompt: 'none',
  });
  return (await browser.open(url)).leftTo?.searchParams.get('error') !== 'login_required';
}

async function signOut(browser: TestBrowser, parameters: Record<string, string>): Promise<Page> {
  return browser.submit(await browser.open(logoutUrl(parameters)), { logout: 'yes' });
}

/** Waits until the notices of an app are in a state. */
async function until(clientId: string, condition: string): Promise<void> {
  for (let tries = 0; tries < 500; tries += 1) {
    const { rows } = await sql`
      select from logout_notices where client_id = ${clientId} and ${sql.raw(condition)}`.execute(server.db);
    if (rows.length > 0) return;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  assert.fail(`no notice that is ${condition}`);
}

test('oauth 92: logout with a hint and a registered address redirects back with the state', async () => {
  const { browser, idToken } = await authorize(server, { account, client, scopes });
  assert.ok(await isSignedIn(browser));
  const parameters = { id_token_hint: idToken ?? '', post_logout_redirect_uri: signedOutUri, state: 'a b&c' };
  const { leftTo } = await signOut(browser, parameters);
  assert.equal(leftTo?.origin, 'https://app.example');
  assert.deepEqual(Object.fromEntries(leftTo?.searchParams ?? []), { from: 'nuncio', state: 'a b&c' });
  assert.ok(!(await isSignedIn(browser)));
});

test('oauth 92: logout asks the user first, with a hint or without', async () => {
  const { browser, idToken } = await authorize(server, { account, client, scopes });
  for (const parameters of [{}, { id_token_hint: idToken ?? '' }, { client_id: client.id }]) {
    const page = await browser.open(logoutUrl(parameters as Record<string, string>));
    assert.equal(page.response.status, 200);
    assert.match(page.text, /name="logout" value="yes"/);
    assert.match(page.response.headers.get('content-security-policy') ?? '', /frame-ancestors 'none'/);
    assert.equal(page.response.headers.get('x-frame-options'), 'DENY');
    assert.ok(await isSignedIn(browser));
  }
  // The user selects "Stay signed in".
  await browser.submit(await browser.open(logoutUrl({})), {});
  assert.ok(await isSignedIn(browser));
});

test('oauth 92: an expired hint is accepted, and a forged or foreign hint shows a page', async () => {
  const { browser, idToken } = await authorize(server, { account, client, scopes });
  const other = await createTestClient(server);
  const { privateKeys } = await loadSigningKeys(server.db, testSecret);
  const key = privateKeys.find(({ alg }) => alg === 'RS256') as JWK;
  const old = await new SignJWT({ ...decodeJwt(idToken ?? ''), exp: 1_700_003_600, iat: 1_700_000_000 })
    .setProtectedHeader({ alg: 'RS256', kid: key.kid as string })
    .sign(await importJWK(key, 'RS256'));
  const parameters = { id_token_hint: old, post_logout_redirect_uri: signedOutUri };
  assert.match((await browser.open(logoutUrl(parameters))).text, /name="logout" value="yes"/);
  const forged = `${idToken?.slice(0, -6)}AAAAAA`;
  for (const parameters of [
    { id_token_hint: forged },
    { id_token_hint: idToken ?? '', client_id: other.id },
  ]) {
    const page = await browser.open(logoutUrl(parameters), { headers: { accept: 'text/html' } });
    assert.equal(page.response.status, 400);
    assert.match(page.response.headers.get('content-type') ?? '', /^text\/html/);
  }
  assert.ok(await isSignedIn(browser));
});

test('oauth 92: an unregistered address shows a page and never redirects', async () => {
  const { browser, idToken } = await authorize(server, { account, client, scopes });
  for (const uri of [
    'https://evil.example/',
    'https://app.example/signed-out',
    `${signedOutUri}&more`,
    'https://app.example/SIGNED-OUT?from=nuncio',
    client.redirectUri,
  ]) {
    const parameters = { id_token_hint: idToken ?? '', post_logout_redirect_uri: uri };
    const page = await browser.open(logoutUrl(parameters), { headers: { accept: 'text/html' } });
    assert.equal(page.leftTo, null, uri);
    assert.equal(page.response.status, 400, uri);
  }
  // Without a client, the URI is ignored.
  const { leftTo, text } = await signOut(browser, { post_logout_redirect_uri: 'https://evil.example/' });
  assert.equal(leftTo, null);
  assert.match(text, /You are signed out/);
});

test('oauth 92: only the form answers the logout question', async () => {
  const { browser } = await authorize(server, { account, client, scopes });
  await browser.open(logoutUrl({}));
  const page = await browser.open(`${server.baseUrl}/oauth/logout/confirm`, {
    method: 'POST',
    body: new URLSearchParams({ logout: 'yes', xsrf: 'guessed' }),
  });
  assert.equal(page.response.status, 400);
  assert.ok(await isSignedIn(browser));
});

test('signing out leaves apps connected', async () => {
  const { browser, refreshToken } = await authorize(server, { account, client, scopes });
  await signOut(browser, {});
  const form = { grant_type: 'refresh_token', refresh_token: refreshToken };
  assert.equal((await postForm(server, '/oauth/token', client, form)).status, 200);
});

test('openid-client signs a user out', async () => {
  const config = await openid.discovery(new URL(server.baseUrl), client.id, client.secret ?? '', undefined, {
    execute: [openid.allowInsecureRequests],
  });
  const { browser, idToken } = await authorize(server, { account, client, scopes });
  const url = openid.buildEndSessionUrl(config, {
    id_token_hint: idToken ?? '',
    post_logout_redirect_uri: signedOutUri,
  });
  const { leftTo } = await browser.submit(await browser.open(url.href), { logout: 'yes' });
  assert.equal(leftTo?.href, signedOutUri);
});

/** An app with a back-channel logout URI, and the notices that it received. */
async function createListener(path: string, respond: (attempt: number) => number, withSession = true) {
  const told: { form: URLSearchParams; type: string | undefined }[] = [];
  const answer: Respond = (request, response, body) => {
    told.push({ form: new URLSearchParams(body), type: request.headers['content-type'] });
    response.writeHead(respond(told.length)).end();
  };
  site.serve(path, answer);
  const app = await createTestClient(server, {
    metadata: { backchannel_logout_uri: site.url(path), backchannel_logout_session_required: withSession },
  });
  return { app, told };
}

function check(token: string | null | undefined, audience: string): Promise<{ payload: JWTPayload }> {
  return jwtVerify(token ?? '', keys, { issuer: server.baseUrl, audience, typ: 'logout+jwt' });
}

test('oauth 93: apps of the session get a signed logout token', async () => {
  const one = await createListener('/logout-one', () => 200);
  const two = await createListener('/logout-two', () => 204, false);
  const unconcerned = await createListener('/logout-three', () => 200);
  const first = await authorize(server, { account, client: one.app, scopes });
  await authorize(server, { account, client: two.app, scopes, browser: first.browser });
  await signOut(first.browser, {});
  await Promise.all([one, two].map(({ app }) => until(app.id, 'delivered_at is not null')));
  const { payload } = await check(one.told[0]?.form.get('logout_token'), one.app.id);
  assert.match(one.told[0]?.type ?? '', /^application\/x-www-form-urlencoded/);
  assert.equal(payload.sub, account.id);
  assert.ok(payload.jti);
  assert.ok(payload.iat);
  assert.deepEqual(payload.events, { 'http://schemas.openid.net/event/backchannel-logout': {} });
  assert.equal(payload.nonce, undefined);
  // The session is that of its id_token.
  const named = JSON.parse(Buffer.from(first.idToken?.split('.')[1] ?? '', 'base64url').toString());
  assert.ok(named.sid);
  assert.equal(payload.sid, named.sid);
  const second = await check(two.told[0]?.form.get('logout_token'), two.app.id);
  assert.equal(second.payload.sub, account.id);
  assert.equal(unconcerned.told.length, 0);
});

test('oauth 93: a failed notice is retried, and stays listed until it is accepted', async () => {
  const { app, told } = await createListener('/logout-busy', (attempt) => (attempt < 3 ? 503 : 200));
  // Another sign-out wakes the notifier, which otherwise polls every five seconds.
  const waker = await createListener('/logout-waker', () => 200);
  const { browser } = await authorize(server, { account, client: app, scopes });
  await signOut(browser, {});
  for (const [index, pause] of retryDelaysSeconds.slice(0, 2).entries()) {
    const isLater = `due_at > now() + ${pause - 4} * interval '1 second' and due_at <= now() + ${pause} * interval '1 second'`;
    await until(app.id, `attempts = ${index + 1} and last_error = 'status 503' and ${isLater}`);
    await sql`update logout_notices set due_at = now() where client_id = ${app.id}`.execute(server.db);
    const other = await authorize(server, { account, client: waker.app, scopes });
    await signOut(other.browser, {});
  }
  await until(app.id, 'delivered_at is not null and attempts = 3');
  assert.equal(told.length, 3);
});

test('oauth 93: a notice is given up after the last attempt', async () => {
  const { app, told } = await createListener('/logout-deaf', () => 500);
  const { browser } = await authorize(server, { account, client: app, scopes });
  await sql`
    create or replace function test_last_attempt() returns trigger language plpgsql as $$
    begin new.attempts = ${sql.raw(String(retryDelaysSeconds.length))}; return new; end $$`.execute(
    server.db,
  );
  await sql`
    create trigger test_last_attempt before insert on logout_notices
    for each row execute function test_last_attempt()`.execute(server.db);
  await signOut(browser, {});
  await sql`drop trigger test_last_attempt on logout_notices`.execute(server.db);
  await until(app.id, `given_up_at is not null and last_error = 'status 500'`);
  assert.equal(told.length, 1);
});

test('oauth 93: a notice fails when its receiver hangs, redirects or is internal, and blocks no other notice', async () => {
  const inside = await createTestClient(server, {
    metadata: {
      backchannel_logout_uri: site.url('/x', 'inside'),
      backchannel_logout_session_required: false,
    },
  });
  site.serve('/logout-away', { status: 302, headers: { location: '/logout-one' } });
  const away = await createTestClient(server, {
    metadata: { backchannel_logout_uri: site.url('/logout-away') },
  });
  const { browser } = await authorize(server, { account, client: inside, scopes });
  await authorize(server, { account, client: away, scopes, browser });
  const { text } = await signOut(browser, {});
  assert.match(text, /You are signed out/);
  await until(inside.id, `last_error = 'The host is not on the public internet.'`);
  await until(away.id, `last_error = 'status 302'`);
});

test('an app that never responds blocks no other app’s notices', async (t) => {
  const released = Promise.withResolvers<void>();
  t.after(() => released.resolve());
  site.serve('/logout-hanging', (_request, response) => {
    void released.promise.then(() => response.writeHead(500).end());
  });
  const hanging = await createTestClient(server, {
    metadata: { backchannel_logout_uri: site.url('/logout-hanging') },
  });
  for (let count = 0; count < 45; count += 1) {
    await addLogoutNotice(server.db, { clientId: hanging.id, accountId: account.id, sessionId: null });
  }
  const { app } = await createListener('/logout-behind', () => 200);
  await sql`
    update clients set metadata = metadata || ${JSON.stringify({ backchannel_logout_uri: site.url('/logout-behind', 'other') })}::jsonb
    where id = ${app.id}`.execute(server.db);
  const { browser } = await authorize(server, { account, client: app, scopes });
  await signOut(browser, {});
  await until(app.id, 'delivered_at is not null');
  const { rows } = await sql<{ begun: number }>`
    select count(*)::int as begun from logout_notices
    where client_id = ${hanging.id} and attempts > 0`.execute(server.db);
  assert.ok((rows[0]?.begun ?? 45) <= 4, `${rows[0]?.begun} were begun`);
  released.resolve();
});

test('the metadata lists back-channel logout', async () => {
  const response = await fetch(`${server.baseUrl}/.well-known/openid-configuration`);
  const metadata = (await response.json()) as Record<string, unknown>;
  assert.equal(metadata.end_session_endpoint, `${server.baseUrl}/oauth/logout`);
  assert.equal(metadata.backchannel_logout_supported, true);
  assert.equal(metadata.backchannel_logout_session_supported, true);
});
