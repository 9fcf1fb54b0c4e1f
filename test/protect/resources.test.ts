/**
 * Tokens for an external API (RFC 8707). A client that knows only the API's URL finds its issuer (RFC 9728)
 * and gets a token that works nowhere else.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { createPlatform } from '../../src/platform.ts';
import { createProtector, type ProtectorOptions } from '../../src/protect/protect.ts';
import {
  createTestAccount,
  createTestClient,
  obtainCode,
  postForm,
  type TestAccount,
  type TestClient,
} from '../support/clients/oauth.ts';
import { startTestServer, type TestServer } from '../support/servers/server.ts';

const url = 'https://notes.example';

interface House {
  server: TestServer;
  account: TestAccount;
  client: TestClient;
  /** Calls the external API. @returns the status */
  ask: (token: string, options?: Partial<ProtectorOptions>) => Promise<number>;
}

async function setUp(accessTokenFormat: 'jwt' | 'opaque'): Promise<House> {
  const platform = createPlatform({ oauth: { accessTokenFormat, resources: [url] } });
  const server = await startTestServer({ after }, {}, 'dev', platform);
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const notes = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    scopes: ['read:tokens'],
    redirectUris: [],
  });
  return {
    server,
    account,
    client,
    async ask(token, options = {}) {
      const protect = createProtector({
        issuer: server.baseUrl,
        url,
        audience: url,
        clientId: notes.id,
        clientSecret: notes.secret ?? '',
        ...options,
      });
      const headers = { authorization: `Bearer ${token}` };
      const outcome = await protect.check({ method: 'GET', url: '/', headers }, 'read:posts');
      return outcome.granted ? 200 : outcome.status;
    },
  };
}

const houses = { jwt: await setUp('jwt'), opaque: await setUp('opaque') };

/** Runs the code flow for one resource or none. */
async function obtainTokens(
  { server, account, client }: House,
  resource?: string,
  scopes: readonly string[] = ['read:posts'],
) {
  const { code, verifier } = await obtainCode(server, {
    account,
    client,
    scopes,
    parameters: { resource },
  });
  const { status, body } = await postForm(server, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: client.redirectUri,
  });
  assert.equal(status, 200, JSON.stringify(body));
  return { accessToken: String(body.access_token), refreshToken: String(body.refresh_token) };
}

async function statusOf(target: string, token: string): Promise<number> {
  return (await fetch(target, { headers: { authorization: `Bearer ${token}` } })).status;
}

for (const [format, house] of Object.entries(houses)) {
  const { server, client, ask } = house;

  test(`oauth 59: ${format}: a token for an external API opens that API and not ours`, async () => {
    const { accessToken, refreshToken } = await obtainTokens(house, url);
    assert.equal(await ask(accessToken), 200);
    assert.equal(await ask(accessToken, { audience: [server.baseUrl, url] }), 200);
    assert.equal(await ask(accessToken, { audience: 'https://other.example' }), 401);
    assert.equal(await statusOf(`${server.baseUrl}/api`, accessToken), 401);

    const { body } = await postForm(server, '/oauth/token', client, {
      grant_type: 'refresh_token',
      refresh_token: refreshToken,
    });
    assert.equal(await ask(String(body.access_token)), 200, 'refreshed, for the same API');
    const wider = await postForm(server, '/oauth/token', client, {
      grant_type: 'refresh_token',
      refresh_token: String(body.refresh_token),
      resource: server.baseUrl,
    });
    assert.equal(wider.body.error, 'invalid_target');
  });

  test(`oauth 59: ${format}: userinfo refuses a token for an external API`, async () => {
    const scopes = ['openid', 'read:posts'];
    const userinfo = `${server.baseUrl}/oauth/userinfo`;
    const { accessToken } = await obtainTokens(house, url, scopes);
    assert.equal(await ask(accessToken), 200);
    assert.equal(await statusOf(userinfo, accessToken), 401);
    const ours = await obtainTokens(house, undefined, scopes);
    assert.equal(await statusOf(userinfo, ours.accessToken), 200);
  });

  test(`oauth 60: ${format}: a token without a resource is for ours, and for APIs with the issuer’s audience`, async () => {
    const { accessToken } = await obtainTokens(house);
    assert.equal(await statusOf(`${server.baseUrl}/api`, accessToken), 200);
    assert.equal(await ask(accessToken, { audience: [url, server.baseUrl] }), 200);
    assert.equal(await ask(accessToken), 401);
  });

  test(`oauth 63: ${format}: an external API’s token is introspected with its audience and revoked like any other`, async () => {
    const { accessToken } = await obtainTokens(house, url);
    const { body } = await postForm(server, '/oauth/introspect', client, { token: accessToken });
    assert.equal(body.active, true);
    assert.equal(body.aud, url);
    await postForm(server, '/oauth/revoke', client, { token: accessToken });
    assert.equal(await ask(accessToken), 401);
  });
}

test('oauth 60: the audience is the exact resource', async () => {
  const { accessToken } = await obtainTokens(houses.jwt, url);
  assert.equal(decodeJwt(accessToken).aud, url);
  const { server, client } = houses.jwt;
  const form = { grant_type: 'client_credentials', scope: 'read:posts' };
  const machine = await postForm(server, '/oauth/token', client, { ...form, resource: url });
  assert.equal(decodeJwt(String(machine.body.access_token)).aud, url);
  for (const resource of [`${url}/`, `${url}/notes`, 'https://NOTES.example', 'https://other.example']) {
    const { status, body } = await postForm(server, '/oauth/token', client, { ...form, resource });
    assert.deepEqual([status, body.error], [400, 'invalid_target'], resource);
  }
});

test('start-up fails when a resource declaration is invalid', () => {
  for (const resources of [
    'https://a.example',
    ['relative'],
    ['https://a.example/#x'],
    ['ftp://a.example'],
    [7],
  ]) {
    assert.throws(
      () => createPlatform({ oauth: { resources: resources as string[] } }),
      /oauth\.resources: must be an array/,
    );
  }
});
