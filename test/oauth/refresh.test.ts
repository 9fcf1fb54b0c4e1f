/**
 * Refresh tokens: rotation, lost responses, replay and withdrawal (RFC 6749 section 6, RFC 9700 section
 * 4.14).
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { disableAccount } from '../../src/accounts/account.ts';
import { digest } from '../../src/crypto/digest.ts';
import { endClient, withdrawGrant } from '../../src/grants/grant.ts';
import {
  authorize,
  createTestAccount,
  createTestClient,
  obtainCode,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const account = await createTestAccount(server);
const client = await createTestClient(server);
const publicClient = await createTestClient(server, {
  authMethod: 'none',
  grantTypes: ['authorization_code', 'refresh_token'],
});
const scopes = ['read:posts', 'write:posts'];

function refresh(refreshToken: string, as: TestClient | null = client, form: Record<string, string> = {}) {
  return postForm(server, '/oauth/token', as, {
    grant_type: 'refresh_token',
    refresh_token: refreshToken,
    ...form,
  });
}

/** Moves the first use of a token back in time. */
async function ageUse(refreshToken: string, seconds: number): Promise<void> {
  await sql`
    update refresh_tokens set consumed_at = consumed_at - ${seconds} * interval '1 second'
    where digest = ${digest(refreshToken)}`.execute(server.db);
}

async function userinfo(accessToken: string): Promise<number> {
  const headers = { authorization: `Bearer ${accessToken}` };
  const response = await fetch(`${server.baseUrl}/oauth/userinfo`, { headers });
  return response.status;
}

test('oauth 44: a refresh token is bound to its client, and a confidential client authenticates', async () => {
  const { refreshToken } = await authorize(server, { account, client, scopes });
  const other = await refresh(refreshToken, await createTestClient(server));
  assert.deepEqual([other.status, other.body.error], [400, 'invalid_grant']);
  const anonymous = await refresh(refreshToken, null, { client_id: client.id });
  assert.deepEqual([anonymous.status, anonymous.body.error], [401, 'invalid_client']);
  assert.equal((await refresh(refreshToken)).status, 200);
});

test('oauth 45: fewer scopes narrow the access token and not the grant, and more are refused', async () => {
  const { refreshToken } = await authorize(server, { account, client, scopes });
  const narrow = await refresh(refreshToken, client, { scope: 'read:posts' });
  assert.equal(narrow.status, 200);
  assert.equal(narrow.body.scope, 'read:posts');
  const wide = await refresh(String(narrow.body.refresh_token), client, { scope: 'read:posts read:profile' });
  assert.deepEqual([wide.status, wide.body.error], [400, 'invalid_scope']);
  const whole = await refresh(String(narrow.body.refresh_token));
  assert.deepEqual(String(whole.body.scope).split(' ').sort(), scopes);
});

test('oauth 46: each use returns a new refresh token to public and confidential clients', async () => {
  for (const as of [publicClient, client]) {
    const { refreshToken } = await authorize(server, { account, client: as, scopes });
    const { body } = await refresh(refreshToken, as);
    assert.notEqual(body.refresh_token, refreshToken);
    assert.equal((await refresh(String(body.refresh_token), as)).status, 200);
  }
});

test('oauth 47: a use after the window ends its family and no other', async () => {
  for (const as of [publicClient, client]) {
    const family = await authorize(server, { account, client: as, scopes: ['openid', ...scopes] });
    const other = await authorize(server, {
      account,
      client: as,
      scopes: ['openid', ...scopes],
      browser: family.browser,
    });
    const next = await refresh(family.refreshToken, as);
    await ageUse(family.refreshToken, 61);
    const replay = await refresh(family.refreshToken, as);
    assert.deepEqual([replay.status, replay.body.error], [400, 'invalid_grant']);
    assert.equal((await refresh(String(next.body.refresh_token), as)).status, 400);
    assert.equal(await userinfo(family.accessToken), 401);
    assert.equal(await userinfo(String(next.body.access_token)), 401);
    assert.equal(await userinfo(other.accessToken), 200);
    assert.equal((await refresh(other.refreshToken, as)).status, 200);
  }
});

test('oauth 48: a repeated use within the window returns the same successor and never a second branch', async () => {
  const { refreshToken } = await authorize(server, { account, client: publicClient, scopes });
  const first = await refresh(refreshToken, publicClient);
  const again = await refresh(refreshToken, publicClient);
  assert.equal(again.status, 200);
  assert.equal(again.body.refresh_token, first.body.refresh_token);
  // The successor has been used in the meantime. The repeated response contains it, and it stays used.
  const later = await refresh(String(first.body.refresh_token), publicClient);
  const once = await refresh(refreshToken, publicClient);
  assert.equal(once.body.refresh_token, first.body.refresh_token);
  await ageUse(String(first.body.refresh_token), 61);
  assert.equal((await refresh(String(once.body.refresh_token), publicClient)).status, 400);
  assert.equal((await refresh(String(later.body.refresh_token), publicClient)).status, 400);
});

test('oauth 49: 20 concurrent refreshes all succeed with the same successor', async () => {
  const { refreshToken } = await authorize(server, { account, client, scopes });
  const answers = await Promise.all(Array.from({ length: 20 }, () => refresh(refreshToken)));
  assert.deepEqual([...new Set(answers.map(({ status }) => status))], [200]);
  assert.equal(new Set(answers.map(({ body }) => body.refresh_token)).size, 1);
});

test('oauth 50: rotation keeps the absolute expiry', async () => {
  const { refreshToken } = await authorize(server, { account, client, scopes });
  await sql`
    update refresh_tokens set payload = payload || jsonb_build_object(
      'iiat', floor(extract(epoch from now())) - 180 * 86400 + 5)
    where digest = ${digest(refreshToken)}`.execute(server.db);
  const { body } = await refresh(refreshToken);
  const { rows } = await sql<{ seconds: number }>`
    select extract(epoch from expires_at - now())::float8 as seconds from refresh_tokens
    where digest = ${digest(String(body.refresh_token))}`.execute(server.db);
  assert.ok((rows[0]?.seconds ?? 99) <= 5);
});

test('oauth 50: a refresh is refused after its user is disabled, its grant withdrawn or its client deleted', async () => {
  const endings: ((ids: { accountId: string; clientId: string; grantId: string }) => Promise<unknown>)[] = [
    ({ accountId }) => disableAccount(server.db, accountId),
    ({ grantId }) => withdrawGrant(server.db, grantId, 'user'),
  ];
  for (const end of endings) {
    const user = await createTestAccount(server);
    const { refreshToken, grantId } = await authorize(server, { account: user, client, scopes });
    await end({ accountId: user.id, clientId: client.id, grantId });
    const { status, body } = await refresh(refreshToken);
    assert.deepEqual([status, body.error], [400, 'invalid_grant']);
  }
  const gone = await createTestClient(server);
  const { refreshToken } = await authorize(server, { account, client: gone, scopes });
  await endClient(server.db, gone.id);
  await new Promise((resolve) => setTimeout(resolve, 200));
  const { status, body } = await refresh(refreshToken, gone);
  assert.deepEqual([status, body.error], [401, 'invalid_client']);
});

test('a client without the grant type gets no refresh token', async () => {
  const plain = await createTestClient(server, { grantTypes: ['authorization_code'] });
  const { code, verifier } = await obtainCode(server, { account, client: plain, scopes });
  const { status, body } = await postForm(server, '/oauth/token', plain, {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: plain.redirectUri,
  });
  assert.equal(status, 200);
  assert.equal(body.refresh_token, undefined);
});

test('codes and tokens are stored only as digests', async () => {
  const { refreshToken } = await authorize(server, { account, client, scopes });
  const { code } = await obtainCode(server, { account, client, scopes });
  const tables = ['authorization_codes', 'refresh_tokens', 'login_sessions', 'interactions', 'grants'];
  for (const table of tables) {
    const { rows } = await sql<{ text: string }>`select t::text as text from ${sql.table(table)} t`.execute(
      server.db,
    );
    for (const { text } of rows) {
      assert.ok(!text.includes(refreshToken), table);
      assert.ok(!text.includes(code), table);
    }
  }
});
