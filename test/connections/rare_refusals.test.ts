/** What traces say about refusals that the operator, the browser or the way of a request causes, and about refused calls. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import shipped from '../../nuncio.config.ts';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { docsClientId, docsRedirectUri } from '../../src/clients/own_clients.ts';
import { createPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createProof, createProofKey } from '../support/clients/dpop_proof.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  obtainCode,
  obtainCodeForm,
  passPages,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { createTraceReader } from '../support/clients/trace_reader.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const platform = createPlatform({ ...shipped, oauth: { password: true }, apps: { review: true } });
const server = await startTestServer({ after }, {}, 'dev', platform);
const account = await createTestAccount(server);
const scopes = ['read:posts'];
const open = await createTestClient(server, { authMethod: 'none' });
const connectionOf = await createTraceReader(server);

const challenged = () => ({
  ...{ code_challenge: createPkce().challenge, code_challenge_method: 'S256', scope: 'read:posts' },
});

async function explanationOf(response: Response): Promise<string> {
  await response.arrayBuffer();
  assert.ok(response.status >= 400, String(response.status));
  return (await connectionOf(response.headers.get('request-id'))).refused.explanation ?? '';
}

const post = (path: string, type: string, body: string) =>
  fetch(server.baseUrl + path, { method: 'POST', headers: { 'content-type': type }, body });

async function register(json: object): Promise<Response> {
  return post('/oauth/register', 'application/json', JSON.stringify(json));
}

test('a token request that is JSON, and a registration that is none, say which form is expected', async () => {
  const json = JSON.stringify({ grant_type: 'authorization_code', client_id: open.id });
  assert.match(
    await explanationOf(await post('/oauth/token', 'application/json', json)),
    /are forms .*not JSON/,
  );
  const form = 'redirect_uris=https://x.example/';
  const wrong = await post('/oauth/register', 'application/x-www-form-urlencoded', form);
  assert.match(await explanationOf(wrong), /a registration is JSON/);
  assert.match(
    await explanationOf(await post('/oauth/register', 'application/json', '{"a":')),
    /a registration is JSON/,
  );
});

test('a parameter that is sent twice, and one that is missing, are named', async () => {
  const url = authorizationUrl(server, open, challenged());
  const twice = await fetch(`${url}&scope=openid`, { redirect: 'manual' });
  const { refused } = await connectionOf(twice.headers.get('request-id'));
  assert.match(refused.explanation ?? '', /'?scope'? .*Send each parameter once/);
  const without = authorizationUrl(server, open, { ...challenged(), response_type: undefined });
  const missing = await fetch(without, { redirect: 'manual' });
  const second = await connectionOf(missing.headers.get('request-id'));
  assert.match(second.refused.explanation ?? '', /[Mm]issing required parameter.*response_type/);
});

test('an app that must push its requests is told where', async () => {
  const metadata = { require_pushed_authorization_requests: true };
  const client = await createTestClient(server, { authMethod: 'none', metadata });
  const response = await fetch(authorizationUrl(server, client, challenged()), { redirect: 'manual' });
  const { refused } = await connectionOf(response.headers.get('request-id'));
  assert.match(refused.explanation ?? '', /to pushed_authorization_request_endpoint first/);
});

test('a registration that the policy refuses says what to correct', async () => {
  const unsafe = await explanationOf(await register({ redirect_uris: ['http://x.example/callback'] }));
  assert.match(unsafe, /redirect_uris? .*Correct the redirect URIs of the app, and register it again/);
  const granted = { redirect_uris: ['https://x.example/callback'], grant_types: ['client_credentials'] };
  assert.match(await explanationOf(await register(granted)), /grant_types.*Correct the metadata of the app/);
});

test('a wrong password and a made-up device code are not taken for authorization codes', async () => {
  const grantTypes = ['authorization_code', 'password'];
  const client = await createTestClient(server, { grantTypes, scopes, authMethod: 'client_secret_post' });
  const form = { grant_type: 'password', username: account.email, password: 'not the password' };
  const wrong = await postForm(server, '/oauth/token', client, form);
  const { refused } = await connectionOf(wrong.headers.get('request-id'));
  assert.match(refused.explanation ?? '', /email address and password of a user/);
  assert.doesNotMatch(refused.explanation ?? '', /refresh token|not the password/);

  const device = await createTestClient(server, {
    ...{ authMethod: 'none' as const, redirectUris: [], grantTypes: [deviceCodeGrantType] },
  });
  const poll = { grant_type: deviceCodeGrantType, device_code: 'made-up' };
  const unknown = await postForm(server, '/oauth/token', device, poll);
  const second = await connectionOf(unknown.headers.get('request-id'));
  assert.match(second.refused.explanation ?? '', /Start again on the device/);
});

test('an app that the operator has not verified, or has suspended, is not blamed, nor is its user', async () => {
  const made = await register({
    ...{ redirect_uris: ['https://fresh.example/callback'], token_endpoint_auth_method: 'none' },
    ...{ client_name: 'Fresh', scope: 'read:posts' },
  });
  const { client_id: id } = (await made.json()) as { client_id: string };
  const client = { id, redirectUri: 'https://fresh.example/callback', authMethod: 'none' } as TestClient;
  const { redirect } = await obtainCode(server, { account, client, scopes });
  assert.equal(redirect.searchParams.get('error'), 'access_denied');
  const shown = await until(
    async () => {
      const { rows } = await sql<{ request: string }>`
        select step->>'request' as request from connections, jsonb_array_elements(steps) as step
        where client_id = ${id} and step->>'outcome' = 'refused'`.execute(server.db);
      return rows[0]?.request;
    },
    (request) => request !== undefined,
  );
  const { refused } = await connectionOf(shown ?? null);
  assert.equal(refused.name, 'authorize');
  assert.match(refused.explanation ?? '', /Ask the operator to verify the app/);
  assert.doesNotMatch(refused.explanation ?? '', /user did not allow/);
  const browser = new TestBrowser(server.baseUrl);
  const page = await browser.open(`${server.baseUrl}/account`);
  const { text } = await browser.submit(page, { email: account.email, password: account.password });
  assert.match(text, /<strong>Fresh<\/strong> could not finish connecting .*has not verified the app yet/);

  await sql`update clients set suspended_at = now() where id = ${id}`.execute(server.db);
  const suspended = await until(
    () => fetch(authorizationUrl(server, client, challenged()), { redirect: 'manual' }),
    ({ status }) => status === 400,
  );
  const explanation = await explanationOf(suspended);
  assert.match(explanation, /suspended by the operator.* Ask the operator/);
  assert.doesNotMatch(explanation, /Register the app/);
});

test('a page that another browser cannot continue is explained in the connection that it belongs to', async () => {
  const client = await createTestClient(server, { authMethod: 'none' });
  const browser = new TestBrowser(server.baseUrl);
  const page = await browser.open(authorizationUrl(server, client, challenged()));
  assert.match(page.url, /\/interaction\//);
  const elsewhere = await fetch(page.url);
  const requestId = /[Rr]equest <code>([^<]+)</.exec(await elsewhere.text())?.[1] ?? '';
  const { client: shown, refused, steps } = await connectionOf(requestId);
  assert.equal(shown, client.id);
  assert.deepEqual([refused.name, refused.error], ['sign-in', 'sign-in-expired']);
  assert.match(refused.explanation ?? '', /one browser that accepts cookies/);
  assert.equal(steps.find(({ outcome }) => outcome === 'ok')?.name, 'authorize');
  // The sign-in goes on where it began.
  assert.ok((await passPages(browser, page, account)).searchParams.get('code'));
  const connected = await until(
    () => connectionOf(requestId),
    ({ outcome }) => outcome === 'open',
  );
  assert.ok(connected.steps.some(({ name }) => name === 'code'));
  // Now it is over, and nobody's.
  const over = await fetch(page.url);
  assert.equal((await connectionOf(over.headers.get('request-id'))).client, null);
  const resumed = await fetch(`${server.baseUrl}/oauth/authorize/${page.url.split('/').at(-1)}`);
  const again = await connectionOf(resumed.headers.get('request-id'));
  assert.equal(again.refused.name, 'sign-in');
  assert.match(again.refused.explanation ?? '', /one browser that accepts cookies/);
});

test('pages of the server’s own apps, and addresses that are none, fill no traces and cause no error', async () => {
  const own = { id: docsClientId, redirectUri: docsRedirectUri(server.baseUrl) } as TestClient;
  const begun = await fetch(authorizationUrl(server, own, challenged()), { redirect: 'manual' });
  const page = new URL(begun.headers.get('location') ?? '', server.baseUrl);
  assert.match(page.pathname, /^\/interaction\//);
  assert.equal((await fetch(page)).status, 400);
  for (const uid of ['%00', 'a%00b', '%F0%9F%98%80']) {
    const response = await fetch(`${server.baseUrl}/interaction/${uid}`);
    assert.equal(response.status, 400, uid);
    // Steps are written in order, so that of the own app would be there before.
    assert.equal((await connectionOf(response.headers.get('request-id'))).client, null);
  }
  const { rows } = await sql`select id from connections where client_id = ${docsClientId}`.execute(server.db);
  assert.deepEqual(rows, []);
});

test('a call with a token that is bound to a key says how to send it', async () => {
  const { form } = await obtainCodeForm(server, { account, client: open, scopes: ['read:webhooks'] });
  const url = `${server.baseUrl}/oauth/token`;
  const key = await createProofKey();
  const proof = await createProof(key, { method: 'POST', url, token: '' }, { claims: { ath: undefined } });
  const { body } = await postForm(server, '/oauth/token', open, form, { dpop: proof });
  const headers = { authorization: `Bearer ${body.access_token}` };
  const refused = await fetch(`${server.baseUrl}/subscriptions`, { headers });
  assert.match(await explanationOf(refused), /Send it as "Authorization: DPoP/);
});

test('a call with a made-up token is explained without the token', async () => {
  const token = 'made-up-token-of-this-test';
  const headers = { authorization: `Bearer ${token}` };
  const response = await fetch(`${server.baseUrl}/subscriptions`, { headers });
  const explanation = await explanationOf(response);
  assert.match(explanation, /invalid or has expired.*Get a new token/);
  assert.equal(explanation.includes(token), false);
});
