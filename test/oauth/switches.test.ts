/** Deprecated grants: implicit and password, off by default and behind two switches each. */

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { sql } from 'kysely';
import { grantsMax } from '../../src/grants/grant_limit.ts';
import { createPlatform } from '../../src/platform.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  createTestAccount,
  createTestClient,
  passPages,
  postForm,
} from '../support/clients/oauth.ts';
import { beginReset, untilBlocked } from '../support/clients/password_reset.ts';
import { startTestServer } from '../support/servers/server.ts';

const shipped = await startTestServer({ after });
const loose = await startTestServer(
  { after },
  {},
  'dev',
  createPlatform({ oauth: { implicit: true, password: true } }),
);

async function metadata(baseUrl: string) {
  const response = await fetch(`${baseUrl}/.well-known/oauth-authorization-server`);
  return (await response.json()) as Record<string, string[]>;
}

test('a switch that is off leaves no trace in the metadata', async () => {
  const off = await metadata(shipped.baseUrl);
  const on = await metadata(loose.baseUrl);
  for (const name of ['implicit', 'password']) {
    assert.ok(!off.grant_types_supported?.includes(name));
    assert.ok(on.grant_types_supported?.includes(name));
  }
  assert.ok(!off.response_types_supported?.some((type) => type.includes('token')));
});

test('oauth 52: the password grant is unsupported while it is off, also for a client registered for it', async () => {
  const account = await createTestAccount(shipped);
  const client = await createTestClient(shipped, { grantTypes: ['password', 'client_credentials'] });
  const form = { grant_type: 'password', username: account.email, password: account.password };
  const { status, body } = await postForm(shipped, '/oauth/token', client, form);
  assert.deepEqual([status, body.error], [400, 'unsupported_grant_type']);
});

test('the password grant works behind both switches, for confidential clients, throttled', async () => {
  const account = await createTestAccount(loose);
  const client = await createTestClient(loose, { grantTypes: ['password', 'refresh_token'] });
  const form = {
    grant_type: 'password',
    username: account.email,
    password: account.password,
    scope: 'read:posts',
  };
  const { status, headers, body } = await postForm(loose, '/oauth/token', client, form);
  assert.equal(status, 200, JSON.stringify(body));
  assert.match(headers.get('deprecation') ?? '', /^@\d+$/);
  assert.equal(decodeJwt(String(body.access_token)).sub, account.id);
  assert.equal(body.scope, 'read:posts');
  const api = await fetch(`${loose.baseUrl}/api`, {
    headers: { authorization: `Bearer ${body.access_token}` },
  });
  assert.equal(api.status, 200);
  const refreshed = await postForm(loose, '/oauth/token', client, {
    grant_type: 'refresh_token',
    refresh_token: String(body.refresh_token),
  });
  assert.equal(refreshed.status, 200);

  const plain = await createTestClient(loose, { grantTypes: ['client_credentials'] });
  assert.equal((await postForm(loose, '/oauth/token', plain, form)).body.error, 'unauthorized_client');
  const open = await createTestClient(loose, { authMethod: 'none', grantTypes: ['password'] });
  assert.equal((await postForm(loose, '/oauth/token', open, form)).body.error, 'unauthorized_client');
  const bound = await createTestClient(loose, {
    grantTypes: ['password'],
    metadata: { dpop_bound_access_tokens: true },
  });
  assert.equal((await postForm(loose, '/oauth/token', bound, form)).body.error, 'unauthorized_client');
  for (let guess = 0; guess < 10; guess += 1) {
    const wrong = await postForm(loose, '/oauth/token', client, { ...form, password: 'wrong-one' });
    assert.equal(wrong.body.error, 'invalid_grant');
  }
  const throttled = await postForm(loose, '/oauth/token', client, form);
  assert.equal(throttled.body.error, 'invalid_grant');
  assert.ok(throttled.headers.get('retry-after'));
  // A rejected client gets the header too; other responses do not have it.
  assert.match(throttled.headers.get('deprecation') ?? '', /^@\d+$/);
  const machine = await postForm(loose, '/oauth/token', plain, { grant_type: 'client_credentials' });
  assert.deepEqual([machine.status, machine.headers.get('deprecation')], [200, null]);
});

test('the password grant keeps to the limit of grants, also with several requests at once', async () => {
  const account = await createTestAccount(loose);
  const client = await createTestClient(loose, { grantTypes: ['password', 'refresh_token'] });
  await sql`
    insert into grants (id, account_id, client_id, scopes)
    select gen_random_uuid(), ${account.id}, ${client.id}, '{read:posts}' from generate_series(2, ${grantsMax}::int)`.execute(
    loose.db,
  );
  const credentials = { username: account.email, password: account.password, scope: 'read:posts' };
  const form = { grant_type: 'password', ...credentials };
  const answers = await Promise.all([1, 2, 3].map(() => postForm(loose, '/oauth/token', client, form)));
  assert.deepEqual(
    answers.map(({ status }) => status),
    [200, 200, 200],
  );
  const { rows } = await sql`
    select from grants where client_id = ${client.id} and withdrawn_at is null`.execute(loose.db);
  assert.ok(rows.length <= grantsMax, `${rows.length}`);
});

test('an old password gets no token when it is reset while the request is in progress', async () => {
  const account = await createTestAccount(loose);
  const client = await createTestClient(loose, { grantTypes: ['password', 'refresh_token'] });
  const form = {
    grant_type: 'password',
    username: account.email,
    password: account.password,
    scope: 'read:posts',
  };
  const reset = await beginReset(loose.db, account);
  // The reset is not visible yet, so the old password is right.
  const asked = postForm(loose, '/oauth/token', client, form);
  await untilBlocked(loose.db, asked);
  await reset.commit();
  const { status, body } = await asked;
  assert.deepEqual([status, body.error], [400, 'invalid_grant']);
  const { rows } = await sql`select from grants where account_id = ${account.id}`.execute(loose.db);
  assert.equal(rows.length, 0);
});

test('the implicit flow works behind both switches, and is refused otherwise', async () => {
  const account = await createTestAccount(loose);
  const client = await createTestClient(loose, { grantTypes: ['implicit'], authMethod: 'none' });
  const parameters = {
    response_type: 'id_token token',
    scope: 'openid read:posts',
    nonce: 'n-1',
    state: 's',
  };
  const browser = new TestBrowser(loose.baseUrl);
  const redirect = await passPages(
    browser,
    await browser.open(authorizationUrl(loose, client, parameters)),
    account,
  );
  const answer = new URLSearchParams(redirect.hash.slice(1));
  const token = answer.get('access_token') ?? '';
  assert.equal(answer.get('state'), 's');
  const idToken = decodeJwt(answer.get('id_token') ?? '');
  assert.equal(idToken.nonce, 'n-1');
  // oauth 90: at_hash is the left half of the token's hash.
  const half = createHash('sha256').update(token).digest().subarray(0, 16).toString('base64url');
  assert.equal(idToken.at_hash, half);
  const api = await fetch(`${loose.baseUrl}/api`, { headers: { authorization: `Bearer ${token}` } });
  assert.equal(api.status, 200);

  const once = await browser.open(authorizationUrl(loose, client, parameters));
  assert.match(once.leftTo?.hash ?? '', /access_token=/);
  assert.match(once.response.headers.get('deprecation') ?? '', /^@\d+$/);

  const plain = await createTestClient(loose);
  const refused = await new TestBrowser(loose.baseUrl).open(authorizationUrl(loose, plain, parameters));
  assert.match(refused.leftTo?.href ?? '', /error=unauthorized_client/);
  const registered = await createTestClient(shipped, { grantTypes: ['implicit', 'authorization_code'] });
  const off = await new TestBrowser(shipped.baseUrl).open(authorizationUrl(shipped, registered, parameters));
  assert.match(off.leftTo?.href ?? '', /error=unsupported_response_type/);
});
