/** The endpoint as a protected resource of its own: its tokens, challenges and metadata. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import shipped from '../../nuncio.config.ts';
import { createPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { createProof, createProofKey } from '../support/clients/dpop_proof.ts';
import { callMcp, callOlder, mcpToken, postMcp } from '../support/clients/mcp_client.ts';
import {
  authorizationUrl,
  authorize,
  clientToken,
  createPkce,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  obtainCodeForm,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);
const url = `${server.baseUrl}/mcp`;
const metadataUrl = `${server.baseUrl}/.well-known/oauth-protected-resource/mcp`;
const scopes = ['read:posts', 'write:posts'];
const request = { jsonrpc: '2.0', id: 1, method: 'tools/list' };
const challengeOf = ({ headers }: { headers: Headers }) => headers.get('www-authenticate') ?? '';

test('agents 19: a token works in the Authorization header only', async () => {
  const { accessToken } = await mcpToken(server, { account, client, scopes });
  assert.equal((await postMcp(server, accessToken, request)).status, 200);
  const inQuery = await fetch(`${url}?access_token=${accessToken}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(request),
  });
  assert.equal(inQuery.status, 400);
  const inCookie = await postMcp(server, null, request, { cookie: `access_token=${accessToken}` });
  assert.equal(inCookie.status, 401);
});

test('agents 19: an expired token, and one for another resource, get 401', async () => {
  const refused = async (claims: Record<string, unknown>) => {
    const { accessToken } = await mintAccessToken(server, { account, client, scopes, claims });
    const answer = await postMcp(server, accessToken, request);
    assert.equal(answer.status, 401, JSON.stringify(claims));
    assert.match(challengeOf(answer), /error="invalid_token"/);
  };
  await refused({ aud: url, exp: Math.floor(Date.now() / 1_000) - 5 });
  await refused({ aud: `${url}/` });
  await refused({ aud: url.toUpperCase() });
  await refused({ aud: 'https://elsewhere.example/mcp' });
  await refused({ aud: [] });
  await refused({ aud: url, iss: 'https://elsewhere.example' });
});

test('agents 20: a 401 names the metadata and the scopes to ask for', async () => {
  const without = await postMcp(server, null, request);
  assert.equal(without.status, 401);
  const parameters = `scope="read:posts write:posts read:profile", resource_metadata="${metadataUrl}"`;
  assert.equal(challengeOf(without), `Bearer ${parameters}`);
  const wrong = await postMcp(server, 'nonsense', request);
  assert.equal(wrong.status, 401);
  assert.match(challengeOf(wrong), /^Bearer error="invalid_token", /);
  assert.ok(challengeOf(wrong).endsWith(parameters));
});

test('agents 20, 77: a call that needs another scope gets 403 with what it needs', async () => {
  const { accessToken } = await mcpToken(server, { account, client, scopes: ['read:posts'] });
  for (const call of [callMcp, callOlder]) {
    const answer = await call(server, accessToken, 'tools/call', {
      name: 'article_create',
      arguments: { title: 'x' },
    });
    assert.equal(answer.status, 403);
    assert.match(challengeOf(answer), /^Bearer error="insufficient_scope", /);
    assert.match(challengeOf(answer), /scope="write:posts"/);
    assert.ok(challengeOf(answer).includes(`resource_metadata="${metadataUrl}"`));
  }
});

test('agents 14, 77: the list has the tools that the scopes of the token cover', async () => {
  const listed = async (granted: string[]) => {
    const { accessToken } = await mcpToken(server, { account, client, scopes: granted });
    const { body } = await callMcp(server, accessToken, 'tools/list');
    return body.result.tools.map(({ name }: { name: string }) => name);
  };
  assert.deepEqual(await listed(['read:posts']), ['articles_list', 'article_get', 'article_comments_list']);
  assert.deepEqual(await listed(['write:posts']), [
    'article_create',
    'article_update',
    'article_delete',
    'article_publish',
    'article_comments_create',
  ]);
  assert.deepEqual(await listed(['read:profile']), []);
});

test('agents 21: the metadata document names the exact URL of the endpoint', async () => {
  const response = await fetch(metadataUrl);
  assert.equal(response.status, 200);
  const document = (await response.json()) as Record<string, unknown>;
  assert.equal(document.resource, url);
  assert.deepEqual(document.authorization_servers, [server.baseUrl]);
  assert.deepEqual(document.scopes_supported, [...scopes, 'read:profile']);
  assert.deepEqual(document.bearer_methods_supported, ['header']);
});

test('agents 22: the authorization server has what clients of the protocol look for', async () => {
  const response = await fetch(`${server.baseUrl}/.well-known/oauth-authorization-server`);
  const document = (await response.json()) as Record<string, unknown>;
  assert.equal(document.issuer, server.baseUrl);
  assert.deepEqual(document.code_challenge_methods_supported, ['S256']);
  assert.equal(document.authorization_response_iss_parameter_supported, true);
  assert.equal(document.client_id_metadata_document_supported, true);
  assert.equal(document.registration_endpoint, `${server.baseUrl}/oauth/register`);
});

test('agents 22: a grant for the endpoint refreshes to tokens for it, with a new refresh token', async () => {
  const open = await createTestClient(server, { authMethod: 'none' });
  const granted = await authorize(server, { account, client: open, scopes, parameters: { resource: url } });
  assert.equal(decodeJwt(granted.accessToken).aud, url);
  const form = { grant_type: 'refresh_token', refresh_token: granted.refreshToken };
  const { status, body } = await postForm(server, '/oauth/token', open, form);
  assert.equal(status, 200);
  assert.equal(decodeJwt(body.access_token as string).aud, url);
  assert.notEqual(body.refresh_token, granted.refreshToken);
  assert.equal((await postMcp(server, body.access_token as string, request)).status, 200);
});

test('agents 74: tokens of the API do not open the endpoint, nor the reverse', async () => {
  const forApi = await authorize(server, { account, client, scopes });
  const forAgents = await mcpToken(server, { account, client, scopes: [...scopes, 'openid'] });
  const atApi = async (token: string) => {
    const headers = { authorization: `Bearer ${token}` };
    return Promise.all(
      ['/articles', '/api', '/subscriptions', '/oauth/userinfo'].map(
        async (path) => (await fetch(server.baseUrl + path, { headers })).status,
      ),
    );
  };
  assert.equal((await postMcp(server, forApi.accessToken, request)).status, 401);
  assert.equal((await postMcp(server, forAgents.accessToken, request)).status, 200);
  assert.deepEqual((await atApi(forApi.accessToken)).slice(0, 2), [200, 200]);
  assert.deepEqual(await atApi(forAgents.accessToken), [401, 401, 401, 401]);
});

test('agents 74: a client that acts for itself gets a token for the resource that it names', async () => {
  const machine = await createTestClient(server, {
    grantTypes: ['client_credentials'],
    redirectUris: [],
    scopes: ['read:posts'],
  });
  const form = { grant_type: 'client_credentials', scope: 'read:posts' };
  const { body } = await postForm(server, '/oauth/token', machine, { ...form, resource: url });
  assert.equal(decodeJwt(body.access_token as string).aud, url);
  assert.equal((await postMcp(server, body.access_token as string, request)).status, 200);
  const plain = await clientToken(server, machine, ['read:posts']);
  assert.equal((await postMcp(server, plain, request)).status, 401);
});

test('a token that is bound to a key needs a proof for the endpoint', async () => {
  const key = await createProofKey();
  const claims = { aud: url, cnf: { jkt: key.jkt } };
  const { accessToken } = await mintAccessToken(server, { account, client, scopes, claims });
  const send = async (target: string) => {
    const dpop = await createProof(key, { method: 'POST', url: target, token: accessToken });
    return postMcp(server, null, request, { authorization: `DPoP ${accessToken}`, dpop });
  };
  assert.equal((await send(url)).status, 200);
  assert.equal((await send(`${server.baseUrl}/articles`)).status, 401);
  assert.equal((await postMcp(server, accessToken, request)).status, 401);
});

test('the consent page says that the permissions are for the tools', async () => {
  const { challenge } = createPkce();
  const consentPage = async (parameters: Record<string, string>) => {
    const browser = new TestBrowser(server.baseUrl);
    const first = await browser.open(
      authorizationUrl(server, client, {
        code_challenge: challenge,
        code_challenge_method: 'S256',
        scope: scopes.join(' '),
        ...parameters,
      }),
    );
    const { email, password } = await createTestAccount(server);
    return browser.submit(first, { email, password, action: 'login' });
  };
  const page = await consentPage({ resource: url });
  assert.match(page.text, /This server’s tools for AI agents/);
  assert.ok(page.text.includes(url));
  assert.doesNotMatch((await consentPage({})).text, /AI agents|apply to this API/);
});

test('opaque tokens work like signed ones', async (context) => {
  const platform = createPlatform({ ...shipped, oauth: { accessTokenFormat: 'opaque' } });
  const opaque = await startTestServer(context, {}, 'dev', platform);
  const user = await createTestAccount(opaque);
  const app = await createTestClient(opaque);
  const obtain = async (parameters: Record<string, string>) => {
    const { form } = await obtainCodeForm(opaque, { account: user, client: app, scopes, parameters });
    const { status, body } = await postForm(opaque, '/oauth/token', app, form);
    assert.equal(status, 200);
    return body.access_token as string;
  };
  const forAgents = await obtain({ resource: `${opaque.baseUrl}/mcp` });
  assert.doesNotMatch(forAgents, /\./);
  assert.equal((await postMcp(opaque, forAgents, request)).status, 200);
  assert.equal((await postMcp(opaque, await obtain({}), request)).status, 401);
});
