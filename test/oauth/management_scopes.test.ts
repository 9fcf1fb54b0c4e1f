/** Management scopes: only the console and clients named by the operator get them. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { consoleClientId, docsClientId } from '../../src/clients/own_clients.ts';
import {
  authorizationUrl,
  clientToken,
  createPkce,
  createTestAccount,
  createTestClient,
  obtainCode,
  postForm,
} from '../support/clients/oauth.ts';
import { consoleClientOf, signInToConsole } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const management = ['read:apps', 'write:apps', 'admin'];
const developer = 'openid read:profile read:webhooks write:webhooks read:apps write:apps';

test('the console’s request without scope gets every scope its account may have', async () => {
  const admin = await createTestAccount(server, { isAdmin: true });
  const ofAdmin = await signInToConsole(server, admin);
  assert.equal(ofAdmin.tokens.scope, `${developer} admin`);

  const user = await createTestAccount(server);
  const ofUser = await signInToConsole(server, user);
  assert.equal(ofUser.tokens.scope, developer);
  assert.ok(typeof ofUser.tokens.id_token === 'string');
});

test('an account that is no administrator gets no admin scope by request or refresh', async () => {
  const user = await createTestAccount(server);
  const { tokens } = await signInToConsole(server, user, { scope: 'read:apps admin' });
  assert.equal(tokens.scope, 'read:apps');
  const { rows } = await sql<{ scopes: string[] }>`
    select scopes from grants where account_id = ${user.id}`.execute(server.db);
  assert.deepEqual(rows, [{ scopes: ['read:apps'] }]);
  const again = await postForm(server, '/oauth/token', consoleClientOf(server), {
    grant_type: 'refresh_token',
    refresh_token: tokens.refresh_token as string,
  });
  assert.equal(again.body.scope, 'read:apps');
  // The engine rejects the request if no scope remains.
  await assert.rejects(signInToConsole(server, user, { scope: 'admin' }), /error=access_denied/);
});

test('a self-registered app never gets a management scope, whatever its row says', async () => {
  const client = await createTestClient(server, {
    origin: 'registration',
    scopes: ['read:posts', ...management],
  });
  const { challenge } = createPkce();
  for (const scope of management) {
    const pkce = { code_challenge: challenge, code_challenge_method: 'S256' };
    const answer = await fetch(authorizationUrl(server, client, { scope, ...pkce }), { redirect: 'manual' });
    // For a self-registered app, a page shows the error and a link instead of a redirect.
    assert.equal(answer.status, 400);
    assert.match(await answer.text(), /Error <code>invalid_scope<\/code>/);
    const machine = { grant_type: 'client_credentials', scope };
    const { status, body } = await postForm(server, '/oauth/token', client, machine);
    assert.deepEqual([status, body.error], [400, 'invalid_scope']);
  }
  const registered = await fetch(`${server.baseUrl}/oauth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ redirect_uris: ['https://a.example/cb'], scope: 'read:posts read:apps admin' }),
  });
  assert.equal(((await registered.json()) as { scope: string }).scope, 'read:posts');
  const { rows } = await sql<{ scopes: string[] }>`
    select scopes from clients where id = ${docsClientId}`.execute(server.db);
  assert.ok(rows[0]?.scopes.every((scope) => !management.includes(scope)));
});

test('a client named by the operator gets management scopes, for a user and for itself', async () => {
  const client = await createTestClient(server, { scopes: management });
  assert.ok(await clientToken(server, client, ['admin']));
  const account = await createTestAccount(server);
  const { code, verifier } = await obtainCode(server, { account, client, scopes: ['read:apps'] });
  const { body } = await postForm(server, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code,
    redirect_uri: client.redirectUri,
    code_verifier: verifier,
  });
  assert.equal(body.scope, 'read:apps');
});

test('the console’s codes are not sent to another port of a loopback address', async () => {
  const url = new URL(`${server.baseUrl}/oauth/authorize`);
  const port = Number(new URL(server.baseUrl).port);
  url.search = new URLSearchParams({
    client_id: consoleClientId,
    response_type: 'code',
    redirect_uri: `${server.baseUrl.replace(String(port), String(port + 1))}/console/callback`,
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
  }).toString();
  assert.equal((await fetch(url, { redirect: 'manual' })).status, 400);
});
