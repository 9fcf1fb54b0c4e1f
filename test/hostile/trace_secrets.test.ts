/** Attack: read the whole database after flows of every grant, and look for the secrets of the run. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { readConnections } from '../../src/connections/connection_store.ts';
import { createPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createProof, createProofKey } from '../support/clients/dpop_proof.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  obtainCodeForm,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { startFakeProvider } from '../support/upstream/fake_provider.ts';
import { callbackOf, pressButton } from '../support/upstream/upstream_sign_in.ts';
import { until } from '../support/webhooks/apps.ts';

const provider = await startFakeProvider({ after });
process.env.TEST_SECRET_PROVIDER = provider.clientSecret;
const { issuer, clientId } = provider;
const upstream = [
  { id: 'provider', name: 'Provider', issuer, clientId, clientSecretEnv: 'TEST_SECRET_PROVIDER' },
];
const platform = createPlatform({
  oauth: { password: true, implicit: true, withoutPkce: true },
  accounts: { upstream },
});
const server = await startTestServer({ after }, { NUNCIO_TRUST_PROXY: '127.0.0.1,::1' }, 'dev', platform);
const account = await createTestAccount(server);
const scopes = ['read:profile'];
const secrets = new Set<string>([account.password]);
const members = ['access_token', 'refresh_token', 'id_token', 'device_code', 'code', 'request_uri'];

/** Keeps the secrets of a request or response. */
function keep(values: Record<string, unknown>): void {
  for (const name of [...members, 'code_verifier', 'client_secret', 'password']) {
    const value = values[name];
    if (typeof value === 'string') secrets.add(value);
  }
}

async function post(
  path: string,
  client: Parameters<typeof postForm>[2],
  form: Record<string, string>,
  headers = {},
) {
  keep(form);
  if (client?.secret != null) secrets.add(client.secret);
  const response = await postForm(server, path, client, form, headers);
  keep(response.body);
  return response;
}

async function open(url: string, headers: Record<string, string> = {}): Promise<Response> {
  const response = await fetch(url, { redirect: 'manual', headers });
  await response.arrayBuffer();
  return response;
}

/** Tables with a row that contains the text, as it is or as bytes. */
async function findInDatabase(text: string): Promise<string[]> {
  const { rows } = await sql<{ name: string }>`
    select format('%I.%I', schemaname, tablename) as name from pg_tables
    where schemaname not in ('pg_catalog', 'information_schema')`.execute(server.db);
  const hex = Buffer.from(text).toString('hex');
  const found: string[] = [];
  for (const { name } of rows) {
    const { rows: hits } = await sql<{ row: string }>`
      select t::text as row from ${sql.raw(name)} t
      where strpos(t::text, ${text}) > 0 or strpos(t::text, ${hex}) > 0 limit 1`.execute(server.db);
    if (hits.length > 0) found.push(name);
  }
  return found;
}

/** Forms and origins with secrets in them, tokens at userinfo, and sign-ins at a provider that it refuses. */
async function refusePages(browser: TestBrowser, url: string, texts: readonly string[]): Promise<void> {
  const page = await browser.open(url);
  for (const [index, text] of texts.entries()) {
    // Refusals of one address are limited.
    const from = { 'x-forwarded-for': `192.0.2.${index + 1}` };
    const post = (body: Record<string, string>, headers = {}) =>
      browser.request(page.url, {
        method: 'POST',
        headers: { ...from, ...headers },
        body: new URLSearchParams(body),
      });
    await post({ form_token: text, email: text, action: text, provider: text });
    await post({ form_token: text }, { origin: `https://${text}@x.example/?code=${text}` });
    const userInfo = `${server.baseUrl}/oauth/userinfo`;
    await fetch(userInfo, { headers: { ...from, authorization: `Bearer ${text}` } });
    await fetch(userInfo, { headers: { ...from, authorization: text } });
    const body = new URLSearchParams({ access_token: text, scope: text });
    await fetch(userInfo, { method: 'POST', headers: from, body });
    const sent = (await pressButton(browser, page, 'provider')).leftTo as URL;
    for (const name of ['state', 'nonce']) secrets.add(sent.searchParams.get(name) ?? '');
    for (const { name, value } of browser.cookies) if (name.includes('upstream')) secrets.add(value);
    const refused = { error: text, error_description: text, iss: provider.issuer, code: text };
    await browser.open(callbackOf(sent, refused), { headers: from });
    await browser.open(callbackOf(sent, { ...refused, state: text }), { headers: from });
  }
}

test('attack: no table contains a secret after successful and failed flows of every grant', async () => {
  const grantTypes = ['authorization_code', 'refresh_token', 'client_credentials', 'password'];
  const client = await createTestClient(server, { grantTypes, scopes, authMethod: 'client_secret_post' });
  const publicClient = await createTestClient(server, { authMethod: 'none' });
  // The code grant, with a proof, a replay, a wrong verifier, a wrong secret and the secrets in each other's place.
  const { form } = await obtainCodeForm(server, { account, client, scopes });
  const key = await createProofKey();
  const url = `${server.baseUrl}/oauth/token`;
  const proof = await createProof(key, { method: 'POST', url, token: '' }, { claims: { ath: undefined } });
  secrets.add(proof);
  const { body } = await post('/oauth/token', client, form, { dpop: proof });
  await post('/oauth/token', client, form, { dpop: proof });
  const second = await obtainCodeForm(server, { account, client: publicClient, scopes });
  await post('/oauth/token', publicClient, { ...second.form, code_verifier: createPkce().verifier });
  await post(
    '/oauth/token',
    { ...client, secret: `${client.secret}x` },
    { grant_type: 'client_credentials' },
  );
  const swapped = {
    ...client,
    id: String(client.secret),
    secret: client.id,
    authMethod: 'client_secret_post' as const,
  };
  await post('/oauth/token', swapped, { grant_type: 'client_credentials' });
  for (const text of [client.secret, body.access_token, form.code]) {
    const sent = {
      client_id: String(text),
      redirect_uri: `https://x.example/cb?code=${text}`,
      scope: String(text),
    };
    await open(authorizationUrl(server, client, sent));
    await open(authorizationUrl(server, client, { redirect_uri: sent.redirect_uri }));
    await open(authorizationUrl(server, client, { scope: String(text), resource: String(text) }));
    await fetch(`${server.baseUrl}/?access_token=${text}`);
    await fetch(server.baseUrl, { headers: { authorization: `Bearer ${text}` } });
    await post('/oauth/token', client, { grant_type: String(text), refresh_token: String(text) });
    await post('/oauth/token', client, {
      grant_type: 'refresh_token',
      refresh_token: `${text}`,
      scope: `${text}`,
    });
  }
  // Refresh, machine, password, device, pushed request, implicit.
  const plain = await obtainCodeForm(server, { account, client, scopes });
  const tokens = (await post('/oauth/token', client, plain.form)).body;
  const refresh = { grant_type: 'refresh_token', refresh_token: String(tokens.refresh_token) };
  await post('/oauth/token', client, refresh);
  await post('/oauth/token', client, { grant_type: 'client_credentials' });
  const password = { grant_type: 'password', username: account.email, password: account.password };
  await post('/oauth/token', client, password);
  await post('/oauth/token', client, { ...password, password: `${account.password}-wrong` });
  const deviceClient = await createTestClient(server, {
    authMethod: 'none',
    redirectUris: [],
    grantTypes: [deviceCodeGrantType],
  });
  const device = await post('/oauth/device', deviceClient, { scope: 'read:profile' });
  const poll = { grant_type: deviceCodeGrantType, device_code: String(device.body.device_code) };
  await post('/oauth/token', deviceClient, poll);
  await post('/oauth/token', deviceClient, { ...poll, device_code: `${poll.device_code}x` });
  const { challenge } = createPkce();
  const pushed = {
    response_type: 'code',
    redirect_uri: client.redirectUri,
    code_challenge: challenge,
    code_challenge_method: 'S256',
  };
  await post('/oauth/par', client, pushed);
  await post('/oauth/par', client, { ...pushed, redirect_uri: `https://x.example/?code=${form.code}` });
  const browser = new TestBrowser(server.baseUrl);
  const page = await browser.open(
    authorizationUrl(server, client, { state: form.code, scope: 'read:profile', ...pushed }),
  );
  await browser.submit(page, { email: account.email, password: `${account.password}-typo`, action: 'login' });

  const texts = [client.secret, body.access_token, form.code].map(String);
  await refusePages(browser, authorizationUrl(server, client, { scope: 'read:profile', ...pushed }), texts);

  // Steps are written in their order.
  const elsewhere = { 'x-forwarded-for': '198.51.100.1' };
  const last = await open(authorizationUrl(server, { ...client, id: 'the-last' }, {}), elsewhere);
  await until(
    () => readConnections(server.db, { requestId: last.headers.get('request-id') }, 1),
    (rows) => rows.length > 0,
  );
  const { rows: steps } = await sql<{ error: string }>`
    select distinct step->>'error' as error from connections, jsonb_array_elements(steps) as step`.execute(
    server.db,
  );
  for (const error of [
    'form-token',
    'upstream-refused',
    'upstream-expired',
    'invalid-token',
    'invalid-request',
  ])
    assert.ok(
      steps.some((step) => step.error === error),
      error,
    );
  // Sent in the place of a secret.
  secrets.delete(client.id);
  assert.ok(secrets.size > 12);
  const found: string[] = [];
  for (const secret of secrets) {
    for (const table of await findInDatabase(secret)) found.push(`${table}: ${secret.slice(0, 12)}`);
  }
  // The pending request of the open sign-in page keeps `state`, which this test filled with a code.
  assert.deepEqual(
    found.filter((line) => !line.includes('interactions')),
    [],
  );
  assert.ok(
    (await findInDatabase(client.id)).some((table) => table.endsWith('connections')),
    'the search finds rows',
  );
});
