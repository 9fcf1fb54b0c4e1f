/** Calls of the UserInfo endpoint in connection traces. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { readConnections } from '../../src/connections/connection_store.ts';
import { withdrawGrant } from '../../src/grants/grant.ts';
import {
  authorizationUrl,
  authorize,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  type TestClient,
} from '../support/clients/oauth.ts';
import { createTraceReader } from '../support/clients/trace_reader.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const connectionOf = await createTraceReader(server);

async function userInfo(token: string | null, init: RequestInit = {}) {
  const headers = { ...(token === null ? {} : { authorization: `Bearer ${token}` }), ...init.headers };
  const response = await fetch(`${server.baseUrl}/oauth/userinfo`, { ...init, headers });
  await response.arrayBuffer();
  return { status: response.status, requestId: response.headers.get('request-id') };
}

async function callOf(client: TestClient) {
  const [found] = await until(
    () => readConnections(server.db, { clientId: client.id }, 9),
    ([first]) => first?.steps.some(({ name }) => name === 'call') === true,
  );
  return found;
}

test('the first accepted call of userinfo is the first call of the connection', async () => {
  const client = await createTestClient(server);
  const { accessToken, grantId } = await authorize(server, {
    account,
    client,
    scopes: ['openid', 'read:posts'],
  });
  const first = await userInfo(accessToken);
  assert.equal(first.status, 200);
  assert.equal((await userInfo(accessToken)).status, 200);
  const form = new URLSearchParams({ access_token: accessToken });
  assert.equal((await userInfo(null, { method: 'POST', body: form })).status, 200);
  const found = await callOf(client);
  assert.equal(found?.grantId, grantId);
  assert.equal(found?.outcome, 'connected');
  const calls = found?.steps.filter(({ name }) => name === 'call') ?? [];
  assert.deepEqual(
    calls.map(({ outcome, explanation, request }) => [outcome, explanation, request]),
    [['ok', `GET /oauth/userinfo at ${server.baseUrl}.`, first.requestId]],
  );
});

test('a token without the scope openid is a refused call that says which scope to ask for', async () => {
  const client = await createTestClient(server);
  const { accessToken } = await authorize(server, { account, client, scopes: ['read:posts'] });
  const { status, requestId } = await userInfo(accessToken);
  assert.equal(status, 403);
  const connection = await connectionOf(requestId);
  assert.equal(connection.client, client.id);
  assert.deepEqual([connection.refused.name, connection.refused.error], ['call', 'insufficient-scope']);
  assert.match(
    connection.refused.explanation ?? '',
    /^The access token lacks the scope openid\. Ask for the missing scope in a new authorization request/,
  );
  // The app has its token.
  assert.equal(connection.outcome, 'connected');
  // Once for each error.
  for (let count = 0; count < 5; count += 1) await userInfo(accessToken);
  await connectionOf((await userInfo('made-up')).requestId);
  const found = await callOf(client);
  assert.equal(found?.steps.filter(({ name }) => name === 'call').length, 1);
});

test('a revoked token, and one of another resource, are refused calls of their own connection', async () => {
  const client = await createTestClient(server);
  const { accessToken, grantId } = await authorize(server, { account, client, scopes: ['openid'] });
  assert.equal((await userInfo(accessToken)).status, 200);
  await withdrawGrant(server.db, grantId, 'user');
  const revoked = await until(
    () => userInfo(accessToken),
    ({ status }) => status === 401,
  );
  const connection = await connectionOf(revoked.requestId);
  assert.equal(connection.client, client.id);
  assert.match(connection.refused.explanation ?? '', /has been revoked\. Get a new token/);

  const other = await createTestClient(server);
  const foreign = await authorize(server, {
    ...{ account, client: other, scopes: ['openid'] },
  });
  const { accessToken: token } = await mintAccessToken(server, {
    ...{ account, client: other, scopes: ['openid'], grantId: foreign.grantId },
    claims: { aud: 'https://elsewhere.example' },
  });
  const refused = await userInfo(token);
  assert.equal(refused.status, 401);
  const { refused: step } = await connectionOf(refused.requestId);
  assert.match(
    step.explanation ?? '',
    new RegExp(`^The token is for https://elsewhere\\.example\\. Expected one for ${server.baseUrl}`),
  );
});

test('a made-up token, or one sent twice, is an attempt of an unknown app', async () => {
  const token = 'made-up-token-of-this-test';
  const madeUp = await userInfo(token);
  assert.equal(madeUp.status, 401);
  const connection = await connectionOf(madeUp.requestId);
  assert.equal(connection.client, null);
  assert.equal(connection.refused.error, 'invalid-token');
  assert.match(connection.refused.explanation ?? '', /invalid or has expired\. Get a new token/);
  assert.doesNotMatch(JSON.stringify(connection), new RegExp(token));
  const body = new URLSearchParams({ access_token: token });
  const twice = await userInfo(token, { method: 'POST', body });
  assert.equal(twice.status, 400);
  const { refused } = await connectionOf(twice.requestId);
  assert.match(
    refused.explanation ?? '',
    /only be provided using one mechanism\. Send the token in one Authorization/,
  );
});

test('a call without a token leaves no trace, as at the API', async () => {
  const { status, requestId } = await userInfo(null);
  assert.ok(status >= 400);
  const marker = await fetch(
    authorizationUrl(server, { id: 'marker', redirectUri: 'https://x.example/' }, {}),
  );
  await connectionOf(marker.headers.get('request-id'));
  assert.deepEqual(await readConnections(server.db, { requestId }, 1), []);
});

test('attack: the token of one app does not get into the connection of another', async () => {
  const [one, two] = [await createTestClient(server), await createTestClient(server)];
  const { accessToken } = await authorize(server, { account, client: one, scopes: ['openid'] });
  const other = await authorize(server, { account, client: two, scopes: ['openid'] });
  // A changed payload has no valid signature, so the grant that it names does not count.
  const [head, , signature] = accessToken.split('.');
  const payload = Buffer.from(JSON.stringify({ client_id: two.id, grant_id: other.grantId })).toString(
    'base64url',
  );
  const forged = await userInfo(`${head}.${payload}.${signature}`);
  assert.equal(forged.status, 401);
  assert.equal((await connectionOf(forged.requestId)).client, null);
  const [found] = await readConnections(server.db, { clientId: two.id }, 9);
  assert.ok(found?.steps.every(({ name }) => name !== 'call'));
});
