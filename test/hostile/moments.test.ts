/**
 * Attacks that choose their moment: during a sign-out, an outage of the database or a wrong clock, or with unlimited
 * requests.
 */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CompactSign, exportJWK, generateKeyPair } from 'jose';
import { sql } from 'kysely';
import { changePassword } from '../../src/accounts/account.ts';
import { AuditLog, readAuditLog } from '../../src/audit/audit_log.ts';
import { createClient } from '../../src/clients/client.ts';
import { newId } from '../../src/crypto/ids.ts';
import { openDatabase } from '../../src/database/database.ts';
import { Notifications } from '../../src/database/notifications.ts';
import { WithdrawalList, withdrawToken } from '../../src/grants/withdrawals.ts';
import { runHousekeeping } from '../../src/oauth/housekeeping.ts';
import { countDocument, registrationLimits } from '../../src/oauth/registration/registration_limit.ts';
import { endSessions } from '../../src/oauth/storage/end_sessions.ts';
import { formsOf, TestBrowser } from '../support/browser/browser.ts';
import { createProof, createProofKey } from '../support/clients/dpop_proof.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  createTestClient,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const site = await startSite({ after });
const server = await startTestServer({ after }, {}, 'dev', undefined, siteEgress);
const account = await createTestAccount(server);

async function signedIn(): Promise<TestBrowser> {
  const browser = new TestBrowser(server.baseUrl);
  const form = await browser.open(`${server.baseUrl}/account`);
  const page = await browser.submit(form, { email: account.email, password: account.password });
  assert.match(page.text, /Connected apps/);
  return browser;
}

test('a thief’s request in flight does not restore the session when its owner signs out', async () => {
  const owner = await signedIn();
  const thief = new TestBrowser(server.baseUrl);
  for (const { name, value, path } of owner.cookies) thief.setCookie(name, value, path);
  // The thief's request has found the session, and waits for the look-up of the client.
  const [held, released] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const holding = server.db.transaction().execute(async (tx) => {
    await sql`lock table clients in access exclusive mode`.execute(tx);
    held.resolve();
    await released.promise;
  });
  await held.promise;
  const request = thief.request(
    authorizationUrl(server, { id: 'nobody', redirectUri: 'https://a.example' }, {}),
  );
  const isWaiting = async () => {
    const { rows } = await sql`
      select from pg_locks where relation = 'clients'::regclass and not granted`.execute(server.db);
    return rows.length > 0;
  };
  while (!(await isWaiting())) await sleep(10);

  const question = await owner.open(`${server.baseUrl}/oauth/logout`);
  assert.match((await owner.submit(question, { logout: 'yes' })).text, /You are signed out/);
  released.resolve();
  await holding;
  await request;
  const seen = await thief.open(`${server.baseUrl}/account`);
  assert.match(seen.text, /name="password"/);
});

test('two concurrent requests of one browser both keep its session', async () => {
  const browser = await signedIn();
  const client = await createTestClient(server);
  const ask = () => {
    const { challenge } = createPkce();
    const pkce = { code_challenge: challenge, code_challenge_method: 'S256' };
    return browser.request(authorizationUrl(server, client, { scope: 'read:posts', ...pkce }));
  };
  const answers = await Promise.all([ask(), ask(), ask()]);
  for (const { status } of answers) assert.equal(status, 303);
  assert.match((await browser.open(`${server.baseUrl}/account`)).text, /Connected apps/);
});

test('a pending sign-in is rejected after a password change', async () => {
  const other = await createTestAccount(server);
  const browser = new TestBrowser(server.baseUrl);
  const client = await createTestClient(server);
  const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
  const login = await browser.open(authorizationUrl(server, client, { scope: 'read:posts', ...pkce }));
  const form = formsOf(login.text)[0];
  const body = new URLSearchParams({
    ...form?.fields,
    email: other.email,
    password: other.password,
    action: 'login',
  });
  const answer = await browser.request(login.url, { method: 'POST', body });
  assert.equal(answer.status, 303);
  await changePassword(server.db, other.id, 'another password');
  await server.db.transaction().execute((tx) => endSessions(tx, other.id));
  const next = await browser.open(new URL(answer.headers.get('location') ?? '', server.baseUrl).href);
  assert.doesNotMatch(next.text, /value="allow"/);
  assert.match((await browser.open(`${server.baseUrl}/account`)).text, /name="password"/);
});

test('a client that cannot be stored causes no server error', async () => {
  const browser = await signedIn();
  const page = await browser.open(`${server.baseUrl}/account?withdrawn=%00`);
  assert.equal(page.response.status, 200);
  const client = await createTestClient(server);
  const { challenge } = createPkce();
  const request = { scope: 'read:posts', code_challenge: challenge, code_challenge_method: 'S256' };
  const consent = await browser.open(authorizationUrl(server, client, request));
  await browser.submit(consent, { action: 'allow' });
  const account = await browser.open(`${server.baseUrl}/account`);
  const answer = await browser.submit(account, { client_id: 'a\0b' });
  assert.equal(answer.response.status, 200);
});

test('what was withdrawn stays withdrawn after the clock ran ahead', async (t) => {
  const list = new WithdrawalList(server.db, new Notifications(server.databaseUrl, () => {}));
  const token = {
    tokenId: newId(),
    grantId: null,
    grantRevision: 0,
    clientEpoch: newId(),
  };
  await withdrawToken(server.db, token.tokenId, new Date(Date.now() + 900_000));
  await list.fresh();
  assert.ok(list.has(token));
  const [now, monotonic] = [Date.now(), performance.now()];
  t.mock.method(Date, 'now', () => now + 7_200_000);
  // Long enough for the next sweep.
  t.mock.method(performance, 'now', () => monotonic + 120_000);
  await list.fresh();
  t.mock.restoreAll();
  assert.ok(list.has(token));
});

test('a node that starts while the database’s clock is ahead refuses withdrawn tokens, also afterwards', async (t) => {
  const token = {
    tokenId: newId(),
    grantId: null,
    grantRevision: 0,
    clientEpoch: newId(),
  };
  await withdrawToken(server.db, token.tokenId, new Date(Date.now() + 900_000));
  // By a clock that is nine days ahead, the entry has expired.
  await sql`
    update withdrawals set until = until - interval '9 days' where subject = ${token.tokenId}`.execute(
    server.db,
  );
  const list = new WithdrawalList(server.db, new Notifications(server.databaseUrl, () => {}));
  await list.fresh();
  assert.ok(list.has(token));
  const monotonic = performance.now();
  // Long enough for the next sweep.
  t.mock.method(performance, 'now', () => monotonic + 120_000);
  await list.fresh();
  assert.ok(list.has(token));
});

test('what was issued during a database outage is in the audit log afterwards', async (t) => {
  const proxy = await startDatabaseProxy(server.databaseUrl);
  t.after(() => proxy.close());
  const db = openDatabase({ connectionString: proxy.url, connectionsMax: 2, onIdleError: () => {} });
  t.after(() => db.destroy());
  const lost: number[] = [];
  const audit = new AuditLog(db, (_error, entries) => lost.push(entries));
  const clientId = newId();
  proxy.cut();
  audit.add({ kind: 'token.issued', accountId: null, clientId, grantId: null, details: {} });
  // Longer than an entry waits to be written with others.
  await sleep(1_200);
  proxy.mend();
  const written = async () => (await readAuditLog(server.db, { clientId, limit: 10 })).length;
  await until(written, (count) => count > 0);
  assert.deepEqual([await written(), lost], [1, []]);

  proxy.cut();
  audit.add({ kind: 'token.issued', accountId: null, clientId, grantId: null, details: {} });
  await audit.stop();
  assert.deepEqual(lost, [1]);
});

test('a proof from the future is remembered until it is too old', async () => {
  const client = await createTestClient(server);
  const key = await createProofKey();
  const url = `${server.baseUrl}/oauth/token`;
  const iat = Math.floor(Date.now() / 1_000) + 290;
  const proof = await createProof(
    key,
    { method: 'POST', url, token: '' },
    { claims: { ath: undefined, iat } },
  );
  const ask = () =>
    postForm(server, '/oauth/token', client, { grant_type: 'client_credentials' }, { dpop: proof });
  assert.equal((await ask()).status, 200);
  // Five minutes later, when the time in the proof is reached.
  await sql`update used_proofs set expires_at = expires_at - interval '310 seconds'`.execute(server.db);
  await runHousekeeping(server.db);
  assert.equal((await ask()).status, 400);
});

/** @param more additional claims, as JSON text */
async function assertion(
  client: TestClient,
  privateKey: CryptoKey,
  more = '',
): Promise<Record<string, string>> {
  const now = Math.floor(Date.now() / 1_000);
  const claims = {
    iss: client.id,
    sub: client.id,
    aud: server.baseUrl,
    jti: newId(),
    iat: now,
    exp: now + 60,
  };
  const text = JSON.stringify(claims).replace(/}$/, `${more}}`);
  return {
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
    client_assertion: await new CompactSign(Buffer.from(text))
      .setProtectedHeader({ alg: 'ES256', kid: 'one' })
      .sign(privateKey),
  };
}

test('requests to this server do not cause as many requests to another', async () => {
  const { privateKey } = await generateKeyPair('ES256');
  site.serve('/failing.json', { status: 500 });
  const client = await createTestClient(server, {
    authMethod: 'private_key_jwt',
    metadata: { jwks_uri: site.url('/failing.json') },
  });
  const begunAt = performance.now();
  const attempts = Array.from({ length: 30 }, async () => {
    const form = { grant_type: 'client_credentials', ...(await assertion(client, privateKey)) };
    return (await postForm(server, '/oauth/token', null, form)).status;
  });
  assert.deepEqual(new Set(await Promise.all(attempts)), new Set([401]));
  // Ten at once, and one more each second.
  const allowed = () => 10 + Math.ceil((performance.now() - begunAt) / 1_000);
  assert.ok(site.requests('/failing.json') <= allowed(), `${site.requests('/failing.json')} requests`);

  const id = site.url('/pairwise.json');
  const redirectUri = site.url('/callback');
  site.serve('/sector.json', { body: [redirectUri] });
  const sector = { subject_type: 'pairwise', sector_identifier_uri: site.url('/sector.json') };
  site.serve('/pairwise.json', { body: { client_id: id, redirect_uris: [redirectUri], ...sector } });
  const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
  for (let count = 0; count < 30; count += 1) {
    const { status } = await new TestBrowser(server.baseUrl).request(
      authorizationUrl(server, { id, redirectUri }, pkce),
    );
    assert.equal(status, 303);
  }
  // On a slow machine 30 requests may take longer than the seconds that allow for them.
  assert.ok(site.requests('/sector.json') <= allowed(), `${site.requests('/sector.json')} requests`);
});

test('an oversized response is refused every time', async () => {
  const id = site.url('/large.json');
  const redirectUri = site.url('/callback');
  site.serve('/large.json', { body: { client_id: id, redirect_uris: [redirectUri], x: 'x'.repeat(65_000) } });
  for (let count = 0; count < 15; count += 1) {
    const answer = await fetch(authorizationUrl(server, { id, redirectUri }, {}), { redirect: 'manual' });
    assert.equal(answer.status, 400);
  }
});

test('changed keys are found, although their URL was fetched a moment ago', async () => {
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  site.serve('/keys.json', { status: 503 });
  const client = await createTestClient(server, {
    authMethod: 'private_key_jwt',
    metadata: { jwks_uri: site.url('/keys.json') },
  });
  const ask = async () => {
    const form = { grant_type: 'client_credentials', ...(await assertion(client, privateKey)) };
    return (await postForm(server, '/oauth/token', null, form)).status;
  };
  assert.equal(await ask(), 401);
  site.serve('/keys.json', {
    body: { keys: [{ ...(await exportJWK(publicKey)), kid: 'one', alg: 'ES256' }] },
  });
  await until(ask, (status) => status === 200);
  assert.equal(await ask(), 200);
});

test('apps introduced by documents are limited for a network and in total', async () => {
  for (let apps = 0; apps < registrationLimits.remote; apps += 1) {
    assert.equal(await countDocument(server.db, '192.0.2.66'), true);
  }
  for (let apps = 0; apps < registrationLimits.all + 10; apps += 1) {
    assert.equal(await countDocument(server.db, '192.0.2.66'), false);
  }
  // The refused apps of one network do not use up the limit of the others.
  assert.equal(await countDocument(server.db, '198.51.100.1'), true);

  await sql`update registration_windows set registrations = ${registrationLimits.remote}`.execute(server.db);
  await countDocument(server.db, '127.0.0.1');
  await sql`update registration_windows set registrations = ${registrationLimits.remote}`.execute(server.db);
  const id = site.url('/one-more.json');
  const redirectUri = site.url('/callback');
  site.serve('/one-more.json', { body: { client_id: id, redirect_uris: [redirectUri] } });
  const answer = await fetch(authorizationUrl(server, { id, redirectUri }, {}), { redirect: 'manual' });
  assert.equal(answer.status, 400);
  assert.match(await answer.text(), /Too many new apps/);
  const { rows } = await sql`select from clients where id = ${id}`.execute(server.db);
  assert.equal(rows.length, 0);
  await sql`delete from registration_windows`.execute(server.db);
});

test('exactly one of several concurrent changes of a registration gets the next token', async () => {
  const body = { client_name: 'One', redirect_uris: ['https://one.example/callback'] };
  const send = async (method: string, url: string, token: string | null, sent: object) => {
    const headers = {
      'content-type': 'application/json',
      ...(token && { authorization: `Bearer ${token}` }),
    };
    return fetch(url, { method, headers, body: JSON.stringify(sent) });
  };
  const made = (await (await send('POST', `${server.baseUrl}/oauth/register`, null, body)).json()) as {
    client_id: string;
    registration_client_uri: string;
    registration_access_token: string;
  };
  const { client_id, registration_client_uri: uri, registration_access_token: token } = made;
  const answers = await Promise.all(
    Array.from({ length: 6 }, () => send('PUT', uri, token, { ...body, client_id })),
  );
  const statuses = answers.map(({ status }) => status).toSorted();
  assert.deepEqual(statuses, [200, 401, 401, 401, 401, 401]);
  const { rows } = await sql`
    select from registration_access_tokens where client_id = ${client_id}`.execute(server.db);
  assert.equal(rows.length, 1);
});

test('a public client gets no token for itself', async () => {
  const wanted = { name: 'Public', authMethod: 'none' as const, grantTypes: ['client_credentials'] };
  await assert.rejects(createClient(server.db, wanted), /public client/);
  // Simulates a client that an earlier version has registered.
  const client = await createTestClient(server, { authMethod: 'none', scopes: ['write:events'] });
  await sql`update clients set grant_types = '{client_credentials}' where id = ${client.id}`.execute(
    server.db,
  );
  const { status, body } = await postForm(server, '/oauth/token', client, {
    grant_type: 'client_credentials',
  });
  assert.deepEqual([status, body.error], [400, 'unauthorized_client']);
});

test('endlessly nested claims are refused without a server error', async () => {
  const client = await createTestClient(server);
  const pkce = { code_challenge: createPkce().challenge, code_challenge_method: 'S256' };
  const app = { client_id: client.id, redirect_uri: client.redirectUri, scope: 'openid read:profile' };
  const request = { response_type: 'code', ...app, ...pkce };
  for (const [depth, status] of [
    [20, 201],
    [2_500, 400],
  ] as const) {
    const claims = `{"id_token":{"email":{"values":${'['.repeat(depth)}${']'.repeat(depth)}}}}`;
    const answer = await postForm(server, '/oauth/par', client, { ...request, claims });
    assert.equal(answer.status, status, JSON.stringify(answer.body));
  }
});

test('an endlessly nested assertion is refused without a server error', async () => {
  const { privateKey, publicKey } = await generateKeyPair('ES256', { extractable: true });
  const jwks = { keys: [{ ...(await exportJWK(publicKey)), kid: 'one', alg: 'ES256' }] };
  const client = await createTestClient(server, { authMethod: 'private_key_jwt', metadata: { jwks } });
  for (const [depth, status] of [
    [20, 200],
    [12_000, 400],
  ] as const) {
    const deep = await assertion(client, privateKey, `,"x":${'['.repeat(depth)}${']'.repeat(depth)}`);
    const form = { grant_type: 'client_credentials', ...deep };
    const answer = await postForm(server, '/oauth/token', null, form);
    assert.equal(answer.status, status, JSON.stringify(answer.body));
  }
});

test('a neighbouring host cannot set our cookies under https', async (t: TestContext) => {
  const secure = await startTestServer(t, { NUNCIO_BASE_URL: 'https://auth.example' });
  const url = `http://127.0.0.1:${secure.config.port}/account`;
  const page = await fetch(url);
  const [cookie = ''] = page.headers.getSetCookie();
  assert.match(cookie, /^__Host-nuncio_form=[\w-]{32}; Path=\/; HttpOnly; SameSite=Strict; Secure$/);
  const { email, password } = await createTestAccount(secure);
  const fields = formsOf(await page.text())[0]?.fields;
  const signIn = (sent: string) =>
    fetch(`${url}/sign-in`, {
      method: 'POST',
      redirect: 'manual',
      headers: { cookie: sent },
      body: new URLSearchParams({ ...fields, email, password }),
    });
  const own = cookie.split(';', 1)[0] ?? '';
  assert.equal((await signIn(own.replace('__Host-', ''))).status, 403);
  const answer = await signIn(own);
  assert.equal(answer.status, 303);
  for (const line of answer.headers.getSetCookie()) assert.match(line, /^__Host-.*; secure/i);
});

test('the rate limit page cannot be framed', async (t: TestContext) => {
  const limited = await startTestServer(t, { NUNCIO_RATE_LIMIT: '1' });
  const url = `${limited.baseUrl}/oauth/authorize?client_id=nobody`;
  const first = await fetch(url);
  const second = await fetch(url);
  assert.deepEqual([first.status, second.status], [400, 429]);
  for (const name of ['content-security-policy', 'x-frame-options', 'referrer-policy']) {
    assert.ok(first.headers.get(name));
    assert.equal(second.headers.get(name), first.headers.get(name), name);
  }
});
