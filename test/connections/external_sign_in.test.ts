/** What traces say about refused sign-ins on the application's own page, during the authorization request of an app. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { readConnections } from '../../src/connections/connection_store.ts';
import { newId } from '../../src/crypto/ids.ts';
import { loadPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import { requester } from '../support/clients/api_client.ts';
import { authorizationUrl, clientToken, createPkce, createTestClient } from '../support/clients/oauth.ts';
import { createTraceReader } from '../support/clients/trace_reader.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const platform = await loadPlatform(null);
const login = { url: 'https://app.example.com/login', acrValues: [], administrators: false };
const accounts = { ...platform.accounts, login };
const server = await startTestServer({ after }, {}, 'dev', { ...platform, accounts });
const machine = await createTestClient(server, { scopes: ['write:logins'] });
const request = requester(server, await clientToken(server, machine, ['write:logins']));
const connectionOf = await createTraceReader(server);

async function begin() {
  const client = await createTestClient(server, { authMethod: 'none' });
  const browser = new TestBrowser(server.baseUrl);
  const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256', scope: 'read:posts' };
  const { leftTo } = await browser.open(authorizationUrl(server, client, pkce));
  const id = leftTo?.searchParams.get('login_request');
  assert.ok(id, String(leftTo));
  return { client, browser, id };
}

test('a return from the application without its sign-in is a refused sign-in of the app', async () => {
  const { client, browser, id } = await begin();
  const json = { account: { external_id: newId(), name: 'Ann' } };
  const { body } = await request('POST', `/login-requests/${id}/accept`, { json });
  const url = new URL(String(body.redirect_to));
  const verifier = url.searchParams.get('login_verifier') ?? '';
  url.searchParams.set('login_verifier', `${verifier.slice(0, -4)}AAAA`);
  const lost = await browser.open(url.href);
  assert.equal(lost.response.status, 400);
  const connection = await connectionOf(lost.response.headers.get('request-id'));
  assert.equal(connection.client, client.id);
  assert.deepEqual([connection.refused.name, connection.refused.error], ['sign-in', 'sign-in-expired']);
  assert.match(connection.refused.explanation ?? '', /one browser that accepts cookies/);
  assert.equal(JSON.stringify(connection).includes(verifier.slice(0, -4)), false);
  assert.equal(connection.steps.filter(({ name }) => name === 'authorize').length, 1);
});

test('a sign-in that the application refuses is a refused sign-in of the app', async () => {
  const { client, browser, id } = await begin();
  const json = { error: 'access_denied' };
  const { status, body, text } = await request('POST', `/login-requests/${id}/reject`, { json });
  assert.equal(status, 200, text);
  const { leftTo } = await browser.open(String(body.redirect_to));
  assert.equal(leftTo?.searchParams.get('error'), 'access_denied');
  const [found] = await until(
    () => readConnections(server.db, { clientId: client.id }, 9),
    ([first]) => first?.outcome === 'refused',
  );
  const step = found?.steps.at(-1);
  assert.deepEqual([step?.name, step?.error], ['sign-in', 'access_denied']);
});
