/** `openid-client` as apps use it: each flow from discovery to the API, through the library's own functions. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { exportJWK, generateKeyPair } from 'jose';
import { sql } from 'kysely';
import * as openid from 'openid-client';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import { digest } from '../../src/crypto/digest.ts';
import { createPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import {
  createTestAccount,
  createTestClient,
  passPages,
  type TestAccount,
  type TestClient,
} from '../support/clients/oauth.ts';
import { startTestServer, type TestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);
const insecure = { execute: [openid.allowInsecureRequests] };

function discover(as: TestClient, authentication?: openid.ClientAuth, on: TestServer = server) {
  return openid.discovery(
    new URL(on.baseUrl),
    as.id,
    as.secret ?? undefined,
    authentication ?? authenticateBy[as.authMethod as keyof typeof authenticateBy](as.secret ?? ''),
    insecure,
  );
}

/** The user signs in and consents. */
async function allow(url: URL, on: TestServer = server, as: TestAccount = account): Promise<URL> {
  const browser = new TestBrowser(on.baseUrl);
  return passPages(browser, await browser.open(url.href), as);
}

/** Prepares the parameters of a request and the values that the response is checked against. */
async function prepare(as: Pick<TestClient, 'redirectUri'>, scope: string) {
  const pkceCodeVerifier = openid.randomPKCECodeVerifier();
  const expectedState = openid.randomState();
  const parameters = {
    redirect_uri: as.redirectUri,
    scope,
    state: expectedState,
    code_challenge: await openid.calculatePKCECodeChallenge(pkceCodeVerifier),
    code_challenge_method: 'S256',
  };
  return { parameters, checks: { pkceCodeVerifier, expectedState } };
}

/** Requests the API. @returns the client and account that the API sees in the token */
async function askApi(
  config: openid.Configuration,
  accessToken: string,
  options?: openid.DPoPOptions,
  on: TestServer = server,
): Promise<{ client: { id: string } }> {
  const url = new URL('/api', on.baseUrl);
  const response = await openid.fetchProtectedResource(
    config,
    accessToken,
    url,
    'GET',
    undefined,
    undefined,
    options,
  );
  assert.equal(response.status, 200);
  return (await response.json()) as { client: { id: string } };
}

/** Creates a client with a key, registered by value. */
async function createKeyClient(fields: Parameters<typeof createTestClient>[1] = {}) {
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const jwks = { keys: [{ ...(await exportJWK(publicKey)), kid: 'one', alg: 'ES256', use: 'sig' }] };
  const keyClient = await createTestClient(server, {
    ...fields,
    metadata: { jwks, ...fields.metadata },
  });
  return { keyClient, key: { key: privateKey, kid: 'one' } };
}

const authenticateBy = {
  client_secret_basic: openid.ClientSecretBasic,
  client_secret_post: openid.ClientSecretPost,
  none: openid.None,
};

for (const authMethod of ['client_secret_basic', 'client_secret_post', 'none'] as const) {
  test(`openid-client completes the code flow with PKCE, state, nonce and userinfo by ${authMethod}`, async () => {
    const app = await createTestClient(server, {
      authMethod,
      grantTypes: ['authorization_code', 'refresh_token'],
    });
    const config = await discover(app, authenticateBy[authMethod](app.secret ?? ''));
    const { parameters, checks } = await prepare(app, 'openid read:profile read:posts');
    const expectedNonce = openid.randomNonce();
    const url = openid.buildAuthorizationUrl(config, { ...parameters, nonce: expectedNonce });
    const tokens = await openid.authorizationCodeGrant(config, await allow(url), {
      ...checks,
      expectedNonce,
      idTokenExpected: true,
    });
    assert.equal(tokens.claims()?.sub, account.id);
    assert.equal((await askApi(config, tokens.access_token)).client.id, app.id);
    const info = await openid.fetchUserInfo(config, tokens.access_token, account.id);
    assert.equal(info.email, account.email);
  });
}

test('openid-client verifies the id_token with the published keys', async () => {
  const config = await discover(client);
  openid.enableNonRepudiationChecks(config);
  const { parameters, checks } = await prepare(client, 'openid');
  const redirect = await allow(openid.buildAuthorizationUrl(config, parameters));
  const tokens = await openid.authorizationCodeGrant(config, redirect, { ...checks, idTokenExpected: true });
  assert.equal(tokens.claims()?.aud, client.id);
});

test('openid-client gets access_denied with state and iss when the user refuses', async () => {
  const config = await discover(client);
  const { parameters, checks } = await prepare(client, 'read:posts');
  const browser = new TestBrowser(server.baseUrl);
  const login = await browser.open(openid.buildAuthorizationUrl(config, parameters).href);
  const { email, password } = account;
  const consent = await browser.submit(login, { email, password, action: 'login' });
  const { leftTo } = await browser.submit(consent, { action: 'deny' });
  assert.ok(leftTo);
  await assert.rejects(openid.authorizationCodeGrant(config, leftTo, checks), { error: 'access_denied' });
});

test('openid-client pushes its authorization request', async () => {
  const strict = await createTestClient(server, {
    metadata: { require_pushed_authorization_requests: true },
  });
  const config = await discover(strict);
  const { parameters, checks } = await prepare(strict, 'read:posts');
  const url = await openid.buildAuthorizationUrlWithPAR(config, parameters);
  assert.deepEqual([...url.searchParams.keys()].sort(), ['client_id', 'request_uri']);
  const tokens = await openid.authorizationCodeGrant(config, await allow(url), checks);
  assert.equal(tokens.scope, 'read:posts');
  assert.equal((await askApi(config, tokens.access_token)).client.id, strict.id);
  await assert.rejects(
    openid.buildAuthorizationUrlWithPAR(config, { ...parameters, redirect_uri: 'https://evil.example/' }),
    { error: 'invalid_request' },
  );
});

test('openid-client uses DPoP through code, API, userinfo and refresh', async () => {
  const app = await createTestClient(server, {
    authMethod: 'none',
    grantTypes: ['authorization_code', 'refresh_token'],
  });
  const config = await discover(app);
  const DPoP = openid.getDPoPHandle(config, await openid.randomDPoPKeyPair('ES256'));
  const { parameters, checks } = await prepare(app, 'openid read:profile');
  const url = openid.buildAuthorizationUrl(config, {
    ...parameters,
    dpop_jkt: await DPoP.calculateThumbprint(),
  });
  const tokens = await openid.authorizationCodeGrant(config, await allow(url), checks, undefined, { DPoP });
  assert.equal(tokens.token_type, 'dpop');
  await askApi(config, tokens.access_token, { DPoP });
  const info = await openid.fetchUserInfo(config, tokens.access_token, account.id, { DPoP });
  assert.equal(info.sub, account.id);
  const refreshToken = tokens.refresh_token ?? '';
  const stranger = openid.getDPoPHandle(config, await openid.randomDPoPKeyPair('ES256'));
  await assert.rejects(openid.refreshTokenGrant(config, refreshToken, undefined, { DPoP: stranger }), {
    name: 'ResponseBodyError',
    status: 400,
  });
  const refreshed = await openid.refreshTokenGrant(config, refreshToken, undefined, { DPoP });
  await askApi(config, refreshed.access_token, { DPoP });
  await assert.rejects(askApi(config, refreshed.access_token), openid.WWWAuthenticateChallengeError);
});

test('openid-client uses the DPoP nonces that the server requires', async (context) => {
  const asking = await startTestServer(context, {}, 'dev', createPlatform({ oauth: { dpopNonce: true } }));
  const machine = await createTestClient(asking, { scopes: ['read:profile'] });
  const config = await discover(machine, undefined, asking);
  const DPoP = openid.getDPoPHandle(config, await openid.randomDPoPKeyPair('ES256'));
  const tokens = await openid.clientCredentialsGrant(config, { scope: 'read:profile' }, { DPoP });
  assert.equal(tokens.token_type, 'dpop');
  assert.equal((await askApi(config, tokens.access_token, { DPoP }, asking)).client.id, machine.id);
});

test('openid-client signs requests, in the query and pushed, with private_key_jwt', async () => {
  const { keyClient, key } = await createKeyClient({
    authMethod: 'private_key_jwt',
    metadata: { require_signed_request_object: true, request_object_signing_alg: 'ES256' },
  });
  const config = await discover(keyClient, openid.PrivateKeyJwt(key));
  const first = await prepare(keyClient, 'read:posts');
  const signed = await openid.buildAuthorizationUrlWithJAR(config, first.parameters, key);
  assert.deepEqual([...signed.searchParams.keys()].sort(), ['client_id', 'request']);
  const tokens = await openid.authorizationCodeGrant(config, await allow(signed), first.checks);
  assert.equal((await askApi(config, tokens.access_token)).client.id, keyClient.id);

  const second = await prepare(keyClient, 'read:posts');
  const request = await openid.buildAuthorizationUrlWithJAR(config, second.parameters, key);
  const pushed = await openid.buildAuthorizationUrlWithPAR(config, request.searchParams);
  assert.ok(pushed.searchParams.get('request_uri'));
  const others = await openid.authorizationCodeGrant(config, await allow(pushed), second.checks);
  assert.equal((await askApi(config, others.access_token)).client.id, keyClient.id);

  const plain = await prepare(keyClient, 'read:posts');
  await assert.rejects(openid.buildAuthorizationUrlWithPAR(config, plain.parameters), {
    error: 'invalid_request',
  });
});

test('openid-client completes the device flow, polling while the user decides', async (context) => {
  const device = await createTestClient(server, {
    authMethod: 'none',
    redirectUris: [],
    grantTypes: [deviceCodeGrantType, 'refresh_token'],
  });
  const config = await discover(device);
  const started = await openid.initiateDeviceAuthorization(config, { scope: 'read:posts' });
  const polling = openid.pollDeviceAuthorizationGrant(config, started, undefined, {
    // Without a signal, the device would poll until its code expires.
    signal: context.signal,
  });
  polling.catch(() => {});
  await hasPolled(started.device_code);
  const browser = new TestBrowser(server.baseUrl);
  // The complete URI submits its code as a form. The user confirms it, signs in and consents.
  let page = await browser.submit(await browser.open(started.verification_uri_complete ?? ''), {});
  assert.match(page.text, /name="confirm"/);
  page = await browser.submit(page, {});
  const { email, password } = account;
  page = await browser.submit(page, { email, password, action: 'login' });
  assert.match((await browser.submit(page, { action: 'allow' })).text, /Device connected/);
  const tokens = await polling;
  assert.equal(tokens.scope, 'read:posts');
  assert.equal((await askApi(config, tokens.access_token)).client.id, device.id);
  const refreshed = await openid.refreshTokenGrant(config, tokens.refresh_token ?? '');
  await askApi(config, refreshed.access_token);
});

/** Waits for the device's first poll, which returns `authorization_pending`. */
async function hasPolled(deviceCode: string): Promise<void> {
  for (let tries = 0; tries < 1_000; tries += 1) {
    const { rows } = await sql`
      select from device_codes
      where digest = ${digest(deviceCode)} and last_polled_at is not null`.execute(server.db);
    if (rows.length > 0) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail('the device has never polled');
}

test('openid-client refreshes, with fewer scopes and again', async () => {
  const config = await discover(client);
  const { parameters, checks } = await prepare(client, 'read:profile read:posts');
  const redirect = await allow(openid.buildAuthorizationUrl(config, parameters));
  const tokens = await openid.authorizationCodeGrant(config, redirect, checks);
  const narrow = await openid.refreshTokenGrant(config, tokens.refresh_token ?? '', { scope: 'read:posts' });
  assert.equal(narrow.scope, 'read:posts');
  const wide = await openid.refreshTokenGrant(config, narrow.refresh_token ?? '');
  assert.deepEqual(wide.scope?.split(' ').sort(), ['read:posts', 'read:profile']);
  await assert.rejects(openid.refreshTokenGrant(config, wide.refresh_token ?? '', { scope: 'write:posts' }), {
    error: 'invalid_scope',
  });
});

test('openid-client gets client credentials by secret and by key', async () => {
  const config = await discover(client);
  const tokens = await openid.clientCredentialsGrant(config, { scope: 'read:posts' });
  assert.equal(tokens.scope, 'read:posts');
  assert.equal(tokens.refresh_token, undefined);
  assert.equal((await askApi(config, tokens.access_token)).client.id, client.id);
  const { keyClient, key } = await createKeyClient({ authMethod: 'private_key_jwt' });
  const byKey = await discover(keyClient, openid.PrivateKeyJwt(key));
  const others = await openid.clientCredentialsGrant(byKey, { scope: 'read:posts' });
  assert.equal((await askApi(byKey, others.access_token)).client.id, keyClient.id);
  const stranger = await generateKeyPair('ES256');
  const forged = await discover(keyClient, openid.PrivateKeyJwt({ key: stranger.privateKey, kid: 'one' }));
  await assert.rejects(openid.clientCredentialsGrant(forged, { scope: 'read:posts' }), {
    error: 'invalid_client',
  });
});

test('openid-client introspects and revokes', async () => {
  const config = await discover(client);
  const { parameters, checks } = await prepare(client, 'read:posts');
  const redirect = await allow(openid.buildAuthorizationUrl(config, parameters));
  const tokens = await openid.authorizationCodeGrant(config, redirect, checks);
  const seen = await openid.tokenIntrospection(config, tokens.access_token);
  assert.deepEqual(
    [seen.active, seen.scope, seen.client_id, seen.sub],
    [true, 'read:posts', client.id, account.id],
  );
  const refreshToken = tokens.refresh_token ?? '';
  assert.equal((await openid.tokenIntrospection(config, refreshToken)).active, true);
  await openid.tokenRevocation(config, refreshToken, { token_type_hint: 'refresh_token' });
  for (const token of [refreshToken, tokens.access_token]) {
    assert.deepEqual(await openid.tokenIntrospection(config, token), { active: false });
  }
  await assert.rejects(openid.refreshTokenGrant(config, refreshToken), { error: 'invalid_grant' });
  await openid.tokenRevocation(config, 'a token that nobody knows');
});

test('openid-client registers dynamically and completes the code flow', async () => {
  const redirectUri = 'https://registered-by-library.example/callback';
  const config = await openid.dynamicClientRegistration(
    new URL(server.baseUrl),
    {
      client_name: 'Registered by its library',
      redirect_uris: [redirectUri],
      grant_types: ['authorization_code', 'refresh_token'],
    },
    undefined,
    insecure,
  );
  const { client_id: id, client_secret: secret } = config.clientMetadata();
  assert.ok(secret);
  const { parameters, checks } = await prepare({ redirectUri }, 'openid read:posts');
  const redirect = await allow(openid.buildAuthorizationUrl(config, parameters));
  const tokens = await openid.authorizationCodeGrant(config, redirect, checks);
  assert.equal(tokens.claims()?.aud, id);
  assert.equal((await askApi(config, tokens.access_token)).client.id, id);
  assert.ok((await openid.refreshTokenGrant(config, tokens.refresh_token ?? '')).access_token);
});

test('openid-client logs out and returns to the app with its state', async () => {
  const signedOutUri = 'https://app.example/signed-out';
  const app = await createTestClient(server, { metadata: { post_logout_redirect_uris: [signedOutUri] } });
  const config = await discover(app);
  const { parameters, checks } = await prepare(app, 'openid');
  const browser = new TestBrowser(server.baseUrl);
  const asked = await browser.open(openid.buildAuthorizationUrl(config, parameters).href);
  const redirect = await passPages(browser, asked, account);
  const tokens = await openid.authorizationCodeGrant(config, redirect, checks);
  const url = openid.buildEndSessionUrl(config, {
    id_token_hint: tokens.id_token ?? '',
    post_logout_redirect_uri: signedOutUri,
    state: 'signed out',
  });
  const { leftTo } = await browser.submit(await browser.open(url.href), { logout: 'yes' });
  assert.equal(leftTo?.href, `${signedOutUri}?state=signed+out`);
  const silent = await prepare(app, 'openid');
  const again = openid.buildAuthorizationUrl(config, { ...silent.parameters, prompt: 'none' });
  const { leftTo: refused } = await browser.open(again.href);
  assert.ok(refused);
  await assert.rejects(openid.authorizationCodeGrant(config, refused, silent.checks), {
    error: 'login_required',
  });
});
