/** Connection traces over HTTP: what is recorded, who sees it, and what a flood can do. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { deviceCodeGrantType } from '../../src/clients/client.ts';
import {
  type Connection,
  pruneConnections,
  readConnections,
} from '../../src/connections/connection_store.ts';
import { ConnectionTraces } from '../../src/connections/traces.ts';
import { newId } from '../../src/crypto/ids.ts';
import { TestBrowser } from '../support/browser/browser.ts';
import {
  authorizationUrl,
  authorize,
  clientToken,
  createPkce,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  obtainCode,
  obtainCodeForm,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after }, { NUNCIO_TRUST_PROXY: '127.0.0.1,::1' });
const account = await createTestAccount(server);
const scopes = ['read:posts'];

/** Waits until a connection of the client has a step. */
async function waitForStep(client: { id: string }, step: string): Promise<Connection> {
  const find = async () => {
    const found = await readConnections(server.db, { clientId: client.id }, 50);
    return found.find(({ steps }) => steps.some(({ name, outcome }) => `${name} ${outcome}` === step));
  };
  return (await until(find, (found) => found !== undefined)) as Connection;
}

async function waitForRequest(requestId: string): Promise<Connection> {
  const find = async () => (await readConnections(server.db, { requestId }, 1))[0];
  return (await until(find, (found) => found !== undefined)) as Connection;
}

async function get(path: string, token: string) {
  const headers = { authorization: `Bearer ${token}` };
  const response = await fetch(`${server.baseUrl}${path}`, { headers });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

async function adminToken(): Promise<string> {
  const admin = await createTestAccount(server, { isAdmin: true });
  const client = await createTestClient(server, { scopes: ['admin'] });
  return (await mintAccessToken(server, { account: admin, client, scopes: ['admin'] })).accessToken;
}

test('a connection has every step in order, from discovery to the first call', async () => {
  const client = await createTestClient(server);
  const address = { 'x-forwarded-for': '192.0.2.10' };
  await fetch(`${server.baseUrl}/.well-known/oauth-authorization-server`, { headers: address });
  const asked = ['read:webhooks'];
  const { code, form } = await obtainCodeForm(server, { account, client, scopes: asked });
  assert.notEqual(code, '');
  const { body } = await postForm(server, '/oauth/token', client, form, address);
  assert.equal((await get('/subscriptions', String(body.access_token))).status, 200);
  const connection = await waitForStep(client, 'call ok');
  assert.deepEqual(
    connection.steps.map(({ name }) => name).filter((name) => name !== 'discovery'),
    ['authorize', 'sign-in', 'consent', 'code', 'token', 'call'],
  );
  assert.ok(
    connection.steps.some(
      ({ name, explanation }) => name === 'discovery' && /oauth-auth/.test(explanation ?? ''),
    ),
  );
  assert.equal(connection.outcome, 'connected');
  assert.equal(connection.accountId, account.id);
  assert.ok(connection.steps.every(({ request }) => request !== null));
});

test('a wrong redirect URI is found by the request id of the error page, with the reason', async () => {
  const client = await createTestClient(server);
  const url = authorizationUrl(server, client, { redirect_uri: 'https://evil.example/cb?token=abc' });
  const page = await fetch(url);
  const requestId = /request <code>([^<]+)</.exec(await page.text())?.[1] ?? '';
  await waitForStep(client, 'authorize refused');
  const { status, body } = await get(`/admin/connections?request=${requestId}`, await adminToken());
  assert.equal(status, 200);
  const [item] = body.items as { client: string; steps: { explanation: string }[] }[];
  assert.equal(item?.client, client.id);
  const explanation = item?.steps[0]?.explanation ?? '';
  assert.match(explanation, /sent redirect_uri https:\/\/evil\.example\/cb\?…/);
  assert.match(explanation, new RegExp(`registered \\(${client.redirectUri}\\)`));
  assert.doesNotMatch(explanation, /abc/);
});

test('an unknown app is found by the request id, and never gets a secret into the trace', async () => {
  const secret = 'Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6';
  const page = await fetch(authorizationUrl(server, { id: secret, redirectUri: 'https://x.example/' }, {}));
  const requestId = page.headers.get('request-id') ?? '';
  const found = await waitForRequest(requestId);
  assert.equal(found.clientId, null);
  assert.equal(found.outcome, 'refused');
  assert.match(found.steps[0]?.explanation ?? '', /registered/);
  assert.doesNotMatch(JSON.stringify(found), new RegExp(secret));
});

test('a refused code belongs to its own connection, and the log of the server says the same', async () => {
  const client = await createTestClient(server, { authMethod: 'none' });
  const { form } = await obtainCodeForm(server, { account, client, scopes });
  const other = createPkce().verifier;
  const { status } = await postForm(server, '/oauth/token', client, { ...form, code_verifier: other });
  assert.equal(status, 400);
  const connection = await waitForStep(client, 'token refused');
  assert.deepEqual(connection.steps.at(-2)?.name, 'code');
  assert.match(connection.steps.at(-1)?.explanation ?? '', /code_verifier whose SHA-256/);
  assert.equal(connection.outcome, 'refused');
});

test('attack: the code of another app does not lead into its connection', async () => {
  const victim = await createTestClient(server, { authMethod: 'none' });
  const thief = await createTestClient(server, { authMethod: 'none' });
  const { form } = await obtainCodeForm(server, { account, client: victim, scopes });
  await waitForStep(victim, 'code ok');
  await postForm(server, '/oauth/token', thief, form);
  const stolen = await waitForStep(thief, 'token refused');
  assert.equal(stolen.accountId, null);
  const [own] = await readConnections(server.db, { clientId: victim.id }, 1);
  assert.deepEqual(own?.steps.at(-1)?.name, 'code');
});

test('a wrong client secret, a declined consent and a call without its scope are explained', async () => {
  const client = await createTestClient(server);
  await postForm(
    server,
    '/oauth/token',
    { ...client, secret: 'wrong' },
    { grant_type: 'client_credentials' },
  );
  const wrong = await waitForStep(client, 'token refused');
  assert.match(wrong.steps.at(-1)?.explanation ?? '', /client secret/);

  const browser = new TestBrowser(server.baseUrl);
  const parameters = {
    scope: 'read:posts',
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
  };
  const page = await browser.open(authorizationUrl(server, client, parameters));
  const consent = await browser.submit(page, {
    email: account.email,
    password: account.password,
    action: 'login',
  });
  await browser.submit(consent, { action: 'deny' });
  const denied = await waitForStep(client, 'consent refused');
  assert.match(denied.steps.at(-1)?.explanation ?? '', /did not allow/);

  const { accessToken } = await authorize(server, { account, client, scopes });
  assert.equal((await get('/subscriptions', accessToken)).status, 403);
  const refused = await waitForStep(client, 'call refused');
  assert.match(refused.steps.at(-1)?.explanation ?? '', /lacks the scope read:webhooks/);
});

test('a token for another resource is explained with the resource to ask for', async () => {
  const client = await createTestClient(server);
  const { accessToken, grantId } = await authorize(server, { account, client, scopes });
  await waitForStep(client, 'token ok');
  const response = await fetch(`${server.baseUrl}/mcp`, {
    method: 'POST',
    headers: { authorization: `Bearer ${accessToken}`, 'content-type': 'application/json' },
    body: '{}',
  });
  assert.equal(response.status, 401);
  const connection = await waitForStep(client, 'call refused');
  assert.equal(connection.grantId, grantId);
  assert.match(connection.steps.at(-1)?.explanation ?? '', /Send resource=\S+\/mcp /);
});

test('a machine and a device have connections of their own', async () => {
  const machine = await createTestClient(server);
  await clientToken(server, machine, []);
  await clientToken(server, machine, []);
  const connection = await waitForStep(machine, 'token ok');
  assert.equal(connection.outcome, 'connected');
  assert.equal((await readConnections(server.db, { clientId: machine.id }, 9)).length, 1);

  const grantTypes = [deviceCodeGrantType, 'refresh_token'];
  const device = await createTestClient(server, { authMethod: 'none', redirectUris: [], grantTypes });
  const { body } = await postForm(server, '/oauth/device', device, { scope: 'read:posts' });
  const browser = new TestBrowser(server.baseUrl);
  let page = await browser.submit(await browser.open(`${server.baseUrl}/device`), {
    user_code: String(body.user_code),
  });
  page = await browser.submit(page, {});
  page = await browser.submit(page, { email: account.email, password: account.password, action: 'login' });
  await browser.submit(page, { action: 'allow' });
  const form = { grant_type: deviceCodeGrantType, device_code: String(body.device_code) };
  assert.equal((await postForm(server, '/oauth/token', device, form)).status, 200);
  const done = await waitForStep(device, 'token ok');
  assert.deepEqual(
    done.steps.map(({ name }) => name),
    ['authorize', 'sign-in', 'consent', 'code', 'token'],
  );
});

test('a registered app has its registration in its first connection', async () => {
  const response = await fetch(`${server.baseUrl}/oauth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ redirect_uris: ['https://reg.example/cb'], token_endpoint_auth_method: 'none' }),
  });
  if (response.status === 401 || response.status === 404) return assert.fail('registration is off');
  const { client_id: id } = (await response.json()) as { client_id: string };
  const client = { id, redirectUri: 'https://reg.example/cb' } as TestClient;
  await obtainCode(server, { account, client, scopes });
  const connection = await waitForStep(client, 'code ok');
  assert.equal(connection.steps.find(({ name }) => name !== 'discovery')?.name, 'registration');
});

test('attack: nobody sees the connections of an app of others, and developers see no users', async () => {
  const owner = await createTestAccount(server);
  const stranger = await createTestAccount(server);
  const tool = await createTestClient(server, { scopes: ['read:apps', 'write:apps'] });
  const as = async (user: { id: string }) =>
    (await mintAccessToken(server, { account: user, client: tool, scopes: ['read:apps', 'write:apps'] }))
      .accessToken;
  const token = await as(owner);
  const created = await fetch(`${server.baseUrl}/apps`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      'idempotency-key': newId(),
    },
    body: JSON.stringify({
      client_name: 'Mine',
      redirect_uris: ['https://mine.example/cb'],
      token_endpoint_auth_method: 'none',
      scope: 'read:posts',
    }),
  });
  const { client_id: id } = (await created.json()) as { client_id: string };
  const client = {
    id,
    redirectUri: 'https://mine.example/cb',
    authMethod: 'none',
    secret: null,
  } as TestClient;
  await obtainCode(server, { account, client, scopes });
  await waitForStep(client, 'code ok');
  const path = `/apps/${id}/connections`;
  const seen = await get(path, token);
  assert.equal(seen.status, 200);
  assert.equal((seen.body.items as unknown[]).length, 1);
  assert.doesNotMatch(
    JSON.stringify(seen.body),
    new RegExp(`${account.id}|${account.email}|"account|"grant`),
  );
  assert.equal((await get(path, await as(stranger))).status, 404);
  assert.equal((await get('/admin/connections', token)).status, 403);
  const next = await get(`${path}?limit=1&after=bm8`, token);
  assert.equal(next.status, 400);
});

test('attack: a flood by one address causes few writes and displaces no other trace', async () => {
  const client = await createTestClient(server);
  const count = async () =>
    Number((await sql<{ n: string }>`select count(*) as n from connections`.execute(server.db)).rows[0]?.n);
  const url = authorizationUrl(server, client, { redirect_uri: 'https://evil.example/' });
  const before = await count();
  const flood = (address: string) =>
    fetch(url, { headers: { 'x-forwarded-for': address } }).then((r) => r.text());
  await Promise.all(Array.from({ length: 200 }, () => flood('198.51.100.7')));
  await flood('198.51.100.8');
  const last = await fetch(url, { headers: { 'x-forwarded-for': '198.51.100.9' } });
  const requestId = last.headers.get('request-id') ?? '';
  await waitForRequest(requestId);
  assert.ok((await count()) - before <= 45, 'the flood is bounded');
});

test('attack: pruning removes the traces of the busiest address first, and keeps those of others', async () => {
  const client = await createTestClient(server);
  const add = (source: string, count: number, age: string) =>
    sql`
      insert into connections (id, started_at, updated_at, client_id, is_known, outcome, keys, request_ids, source, steps)
      select gen_random_uuid(), now() - ${age}::interval, now(), ${client.id}, true, 'refused', '{}', '{}', ${source}, '[]'
      from generate_series(1, ${count}::int)`.execute(server.db);
  await add('others', 10, '2 days');
  await add('flood', 600, '1 minute');
  await pruneConnections(server.db);
  const { rows } = await sql<{ source: string; n: number }>`
    select source, count(*)::int as n from connections where client_id = ${client.id}
    group by source order by source`.execute(server.db);
  assert.deepEqual(rows, [
    { source: 'flood', n: 490 },
    { source: 'others', n: 10 },
  ]);
});

test('the account page tells its user in words, and nobody else', async () => {
  const mine = await createTestAccount(server);
  const client = await createTestClient(server, { name: 'Robot <b>', authMethod: 'none' });
  const { form } = await obtainCodeForm(server, { account: mine, client, scopes });
  await postForm(server, '/oauth/token', client, { ...form, code_verifier: createPkce().verifier });
  await waitForStep(client, 'token refused');
  const read = async (user: typeof account) => {
    const browser = new TestBrowser(server.baseUrl);
    const page = await browser.open(`${server.baseUrl}/account`);
    return (await browser.submit(page, { email: user.email, password: user.password })).text;
  };
  assert.match(
    await read(mine),
    /<strong>Robot &lt;b&gt;<\/strong> could not finish connecting on .*: you did your part/,
  );
  assert.doesNotMatch(await read(account), /Robot/);
});

test('a step that the database refuses does not cost the steps of others', async () => {
  const client = await createTestClient(server);
  const step = {
    ...({ name: 'authorize', outcome: 'ok', clientId: client.id, isKnown: true } as const),
    isAuthenticated: true,
    ...{ address: '192.0.2.1', requestId: newId(), keys: ['a key of this test'] },
  };
  const failures: unknown[] = [];
  const traces = new ConnectionTraces({
    db: server.db,
    key: Buffer.alloc(32),
    onError: (_error, lost) => failures.push(lost),
  });
  traces.add({ ...step, name: 'registration' });
  traces.add({ ...step, accountId: 'no UUID', keys: ['another key'] });
  traces.add({ ...step, name: 'consent' });
  await traces.stop();
  assert.deepEqual(failures, [1]);
  const [stored, ...others] = await readConnections(server.db, { clientId: client.id }, 10);
  assert.deepEqual(others, []);
  assert.deepEqual(
    stored?.steps.map(({ name }) => name),
    ['registration', 'consent'],
  );
});
