/** The authorization server against malicious apps, guessed secrets and malformed text. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { text } from 'node:stream/consumers';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { sql } from 'kysely';
import { pino } from 'pino';
import { signIn } from '../../src/accounts/sign_in.ts';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { createApplication } from '../../src/http/application.ts';
import { countRegistration, registrationLimits } from '../../src/oauth/registration/registration_limit.ts';
import { formsOf, TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  authorize,
  createPkce,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  obtainCode,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);

test('an app gets only claims that the confirmed scopes cover', async () => {
  const client = await createTestClient(server, { scopes: ['openid', 'read:profile'] });
  const claims = JSON.stringify({ id_token: { email: null, name: { essential: true } } });
  const bare = await authorize(server, { account, client, scopes: ['openid'], parameters: { claims } });
  const { email, name } = decodeJwt(bare.idToken ?? '');
  assert.deepEqual({ email, name }, { email: undefined, name: undefined });

  const scopes = ['openid', 'read:profile'];
  const covered = await authorize(server, { account, client, scopes, parameters: { claims } });
  assert.equal(decodeJwt(covered.idToken ?? '').email, account.email);
});

test('oauth 41: an expired code used again revokes what it issued, and only for its own client', async () => {
  const client = await createTestClient(server);
  const stranger = await createTestClient(server);
  const { code, verifier } = await obtainCode(server, { account, client, scopes: ['read:posts'] });
  const form = { grant_type: 'authorization_code', code, code_verifier: verifier };
  const redirect_uri = client.redirectUri;
  const first = await postForm(server, '/oauth/token', client, { ...form, redirect_uri });
  assert.equal(first.status, 200);
  await sql`
    update authorization_codes set expires_at = now() - interval '1 minute',
      payload = payload || jsonb_build_object('exp', extract(epoch from now())::int - 60)`.execute(server.db);
  const refresh = (token: unknown) =>
    postForm(server, '/oauth/token', client, { grant_type: 'refresh_token', refresh_token: String(token) });

  assert.equal((await postForm(server, '/oauth/token', stranger, { ...form, redirect_uri })).status, 400);
  const second = await refresh(first.body.refresh_token);
  assert.equal(second.status, 200);

  const again = await postForm(server, '/oauth/token', client, { ...form, redirect_uri });
  assert.deepEqual([again.status, again.body.error], [400, 'invalid_grant']);
  assert.equal((await refresh(second.body.refresh_token)).status, 400);
});

test('oauth 56: a right user code is refused like a wrong one past the limit of guesses', async () => {
  const client = await createTestClient(server, {
    grantTypes: [deviceCodeGrantType, 'refresh_token'],
    redirectUris: [],
  });
  const { body } = await postForm(server, '/oauth/device', client, { scope: 'read:posts' });
  const browser = new TestBrowser(server.baseUrl);
  const guess = async (code: string) =>
    browser.submit(await browser.open(`${server.baseUrl}/device`), { user_code: code });
  // Correct codes do not count as guesses.
  for (let index = 0; index < 22; index += 1) {
    assert.match((await guess(String(body.user_code))).text, /Is this your device/);
  }
  let page = await guess('BBBB-BBBB');
  for (let index = 0; index < 21 && page.response.status !== 429; index += 1) page = await guess('BBBB-BBBB');
  assert.equal(page.response.status, 429);
  const right = await guess(String(body.user_code));
  assert.equal(right.response.status, 429);
  assert.doesNotMatch(right.text, /Is this your device/);
});

test('guesses from one network do not lock the owner out elsewhere', async () => {
  const owner = await createTestAccount(server);
  for (let index = 0; index < 120; index += 1) await signIn(server.db, owner.email, 'wrong', '192.0.2.1');
  const outcomes = [
    await signIn(server.db, owner.email, owner.password, '192.0.2.1'),
    await signIn(server.db, owner.email, owner.password, '198.51.100.7'),
  ];
  assert.deepEqual(
    outcomes.map(({ outcome }) => outcome),
    ['throttled', 'signed-in'],
  );
});

test('one network past its limit does not use up everybody’s registrations', async () => {
  for (let index = 0; index <= registrationLimits.all; index += 1) {
    await countRegistration(server.db, '192.0.2.9');
  }
  assert.notEqual(await countRegistration(server.db, '192.0.2.9'), undefined);
  assert.equal(await countRegistration(server.db, '198.51.100.9'), undefined);
});

test('networks that register as many apps as they may leave registrations to others', async () => {
  await sql`delete from registration_windows`.execute(server.db);
  let refused = 0;
  for (let network = 0; network < 20; network += 1) {
    for (let index = 0; index < registrationLimits.remote; index += 1) {
      if ((await countRegistration(server.db, `192.0.2.${network}`)) !== undefined) refused += 1;
    }
  }
  assert.ok(refused > 0);
  for (let network = 0; network < 10; network += 1) {
    assert.equal(await countRegistration(server.db, `198.51.100.${network}`), undefined);
  }
});

test('text that the database cannot store is refused without a server error', async () => {
  const client = await createTestClient(server);
  const plain = {
    response_type: 'code',
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
    scope: 'read:posts',
  };
  const statuses: Record<string, number> = {};
  for (const name of ['client_id', 'state', 'nonce', 'login_hint', 'ui_locales', 'dpop_jkt', 'display']) {
    const url = authorizationUrl(server, client, { ...plain, [name]: 'a\0b' });
    statuses[name] = (await fetch(url, { redirect: 'manual' })).status;
  }
  const pushed = await postForm(server, '/oauth/par', client, {
    ...plain,
    redirect_uri: client.redirectUri,
    state: 'a\0b',
  });
  statuses.pushed = pushed.status;
  statuses.logout = (await fetch(`${server.baseUrl}/oauth/logout?client_id=%00`)).status;
  const nested = JSON.parse(`${'['.repeat(9_000)}${']'.repeat(9_000)}`);
  const odd: Record<string, unknown>[] = [
    { software_id: 'a\0b' },
    { software_version: '\ud800' },
    { redirect_uris: ['https://a.example/\0'] },
    { client_uri: 'https://a.example/\ud800' },
    { jwks: { keys: [{ kty: 'EC', crv: 'P-256', x: 'a', y: 'a', 'b\0': 1 }] } },
    { jwks: { keys: [{ kty: 'EC', crv: 'P-256', x: 'a', y: 'a', b: nested }] } },
  ];
  for (const [index, metadata] of odd.entries()) {
    const response = await fetch(`${server.baseUrl}/oauth/register`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ redirect_uris: ['https://a.example/cb'], ...metadata }),
    });
    statuses[`registration ${index}`] = response.status;
  }
  const wrong = Object.entries(statuses).filter(([, status]) => status < 300 || status >= 500);
  assert.deepEqual(wrong, []);
});

test('consent sent and resumed twenty times concurrently causes no server error', async () => {
  const client = await createTestClient(server);
  const browser = new TestBrowser(server.baseUrl);
  const url = authorizationUrl(server, client, {
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
    scope: 'read:posts',
  });
  const login = await browser.open(url);
  const { email, password } = account;
  const consent = await browser.submit(login, { email, password, action: 'login' });
  const body = new URLSearchParams({ ...formsOf(consent.text)[0]?.fields, action: 'allow' });
  const times = <Result>(work: () => Promise<Result>) => Promise.all(Array.from({ length: 20 }, work));
  const posts = await times(() => browser.request(consent.url, { method: 'POST', body }));
  const next = new URL(posts[0]?.headers.get('location') ?? '', server.baseUrl).href;
  const resumed = await times(() => browser.request(next));
  assert.deepEqual(
    resumed.map(({ status }) => status).filter((status) => status !== 302 && status !== 400),
    [],
  );
  assert.ok(resumed.some(({ status }) => status === 302));
});

test('a request in absolute form is answered like any other, whatever host it names', async () => {
  const client = await createTestClient(server);
  const { accessToken } = await mintAccessToken(server, { account, client, scopes: ['read:posts'] });
  const bound = await mintAccessToken(server, {
    account,
    client,
    scopes: ['read:posts'],
    claims: { cnf: { jkt: 'a'.repeat(43) } },
  });
  const ask = async (target: string, headers: Record<string, string>) => {
    const request = get(server.baseUrl, { path: target, headers });
    const [response] = (await once(request, 'response')) as [IncomingMessage];
    return { status: response.statusCode, text: await text(response) };
  };
  for (const target of ['http://evil.example/articles?limit=1', '/articles?limit=1']) {
    const { status, text } = await ask(target, { authorization: `Bearer ${accessToken}` });
    assert.deepEqual([status, JSON.parse(text)._links.self.href], [200, '/articles?limit=1']);
    const refused = await ask(target, { authorization: `DPoP ${bound.accessToken}`, dpop: 'x' });
    assert.equal(refused.status, 401);
  }
  assert.equal((await ask('http://evil.example', {})).status, (await ask('/', {})).status);
});

test('an unfinished request times out, and neither clients nor shutdown wait for it', () => {
  const app = createApplication(server.config, pino({ level: 'silent' }));
  assert.ok(app.server.requestTimeout > 0);
});
