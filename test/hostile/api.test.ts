/** Regression tests from a hostile review of the API, of publishing and of the settings. */

import assert from 'node:assert/strict';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { ConfigError, loadConfig } from '../../src/config/config.ts';
import { loadSecret } from '../../src/config/secret.ts';
import { isDatabaseUnavailable } from '../../src/database/database.ts';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { createApiUser, requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import {
  appScopes,
  createApp,
  createPublisher,
  pushBody,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const url = 'https://example.com/hooks';
const jsonType = { 'content-type': 'application/json' };

/** A request whose body the test sends in parts. @returns the raw response and the function that sends */
function slowRequest(method: string, path: string, accessToken: string | null, length: number) {
  const { promise: answer, resolve } = Promise.withResolvers<string>();
  const socket = connect(Number(new URL(server.baseUrl).port), '127.0.0.1');
  let text = '';
  socket.on('data', (data) => {
    text += data;
  });
  socket.on('close', () => resolve(text));
  socket.on('error', () => {});
  socket.write(
    [
      `${method} ${path} HTTP/1.1`,
      'Host: localhost',
      'Connection: close',
      ...(accessToken === null ? [] : [`Authorization: Bearer ${accessToken}`]),
      'Content-Type: application/json',
      `Content-Length: ${length}`,
      '\r\n',
    ].join('\r\n'),
  );
  return { answer, send: (part: string) => socket.write(part) };
}

test('a token withdrawn while the body arrives changes nothing', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server, { scopes: appScopes });
  const { accessToken, grantId } = await mintAccessToken(server, { account, client, scopes: appScopes });
  const bodies: [path: string, body: string][] = [
    ['/articles', JSON.stringify({ title: 'late' })],
    ['/subscriptions', JSON.stringify({ url, kinds: ['*'] })],
  ];
  const requests = bodies.map(([path, body]) => {
    const request = slowRequest('POST', path, accessToken, body.length);
    request.send(body.slice(0, 1));
    return { ...request, rest: body.slice(1) };
  });
  const ask = requester(server, accessToken);
  assert.equal((await ask('GET', '/articles')).status, 200);
  await withdrawGrant(server.db, grantId as string, 'user');
  await until(
    () => ask('GET', '/articles'),
    ({ status }) => status === 401,
  );
  for (const { send, rest } of requests) send(rest);
  for (const { answer } of requests) assert.match(await answer, /^HTTP\/1\.1 401 /);
  const { rows } = await sql`select from articles where author = ${account.id}`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('a request without a token is refused before its body is read', async () => {
  const stranger = requester(server);
  for (const [method, path] of [
    ['POST', '/events'],
    ['POST', '/subscriptions'],
    ['PATCH', '/subscriptions/x'],
    ['POST', '/subscriptions/x/recover'],
    ['POST', '/articles'],
  ] as const) {
    assert.equal((await stranger(method, path, { raw: '{', headers: jsonType })).status, 401, path);
    // The body is never sent.
    const { answer } = slowRequest(method, path, null, 1_000_000);
    assert.match(await answer, /^HTTP\/1\.1 401 /, path);
  }
});

test('a request with a body is counted once', async (context) => {
  const limited = await startTestServer(context, { NUNCIO_RATE_LIMIT: '10' });
  const user = await createApiUser(limited);
  const remaining: (string | null)[] = [];
  for (let count = 0; count < 2; count++) {
    const { headers } = await user.request('POST', '/articles', { json: { title: 'x' } });
    remaining.push(headers.get('ratelimit-remaining'));
  }
  // A new minute may begin between the requests.
  assert.ok(remaining.join() === '9,8' || remaining.join() === '9,9', remaining.join());
});

test('a text of digits stays a text, however long', async () => {
  const { request } = await createApiUser(server);
  const body = '1'.repeat(400);
  const created = await request('POST', '/articles', { json: { title: 'digits', body } });
  assert.equal(created.status, 201);
  assert.equal(created.body.body, body);
  const raw = `{"title":"digits","body":${body}}`;
  const refused = await request('POST', '/articles', { raw, headers: jsonType });
  assert.equal(refused.status, 422);
  assert.deepEqual(refused.body.errors, [{ pointer: '/body', message: 'is a number out of range' }]);
});

test('JSON Patch cannot replace an object’s prototype and report success', async () => {
  const { request } = await createApiUser(server);
  const { id } = (await request('POST', '/articles', { json: { title: 'x' } })).body;
  for (const operation of [
    { op: 'add', path: '/__proto__', value: { a: 1 } },
    { op: 'copy', from: '/title', path: '/__proto__' },
  ]) {
    const { status } = await request('PATCH', `/articles/${id}`, {
      raw: JSON.stringify([operation]),
      headers: { 'content-type': 'application/json-patch+json' },
    });
    assert.equal(status, 422, operation.op);
  }
});

test('a published number that would be sent as another number is refused', async () => {
  const publisher = await createPublisher(server);
  const account = await createTestAccount(server);
  const publishCommit = (member: string) =>
    publisher('POST', '/events', {
      raw: `{"kind":"push","account":"${account.id}","body":{"ref":"r","repository":{"name":"n"},"commits":[{"id":"a","message":"m",${member}}]}}`,
      headers: jsonType,
    });
  for (const member of [
    '"n":1e400',
    '"n":-1e999',
    '"n":12345678901234567890',
    `"n":[1, 9${'0'.repeat(320)}]`,
  ]) {
    const { status, body } = await publishCommit(member);
    assert.equal(status, 422, member);
    assert.equal(body.code, 'inexact-number', member);
  }
  for (const member of [
    '"n":9007199254740991',
    '"n":9007199254740992',
    '"n":1e300',
    '"n":0.1234567890123456789',
    '"n":"12345678901234567890"',
    '"n":"a:12345678901234567890, 1e400"',
  ]) {
    assert.equal((await publishCommit(member)).status, 202, member);
  }
});

test('an event’s nesting is limited to what its readers can follow', async () => {
  const publisher = await createPublisher(server);
  const { id: account } = await createTestAccount(server);
  const send = (depth: number, more = '') => {
    const deep = '['.repeat(depth) + more + ']'.repeat(depth);
    const commit = `{"id":"a","message":"m","deep":${deep}}`;
    return publisher('POST', '/events', {
      raw: `{"kind":"push","account":"${account}","body":{"ref":"r","repository":{"name":"n"},"commits":[${commit}]}}`,
      headers: { ...jsonType, 'idempotency-key': `deep ${depth}${more}` },
    });
  };
  // The body, the list and the commit add three levels.
  assert.equal((await send(61)).status, 202);
  for (const [depth, more] of [
    [62, ''],
    [8_000, ''],
    [100_000, ''],
    [100_000, '1e400'],
  ] as const) {
    const { status, body } = await send(depth, more);
    assert.equal(status, 422, String(depth));
    assert.equal(body.code, more === '' ? 'too-deep' : 'inexact-number', String(depth));
  }
});

test('the id of a single event is at /id', async () => {
  const publisher = await createPublisher(server);
  const { id: account } = await createTestAccount(server);
  const event = (mark: string) => ({ kind: 'push', account, id: 'taken', body: pushBody(mark) });
  assert.equal((await publisher('POST', '/events', { json: event('one') })).status, 202);
  const single = await publisher('POST', '/events', { json: event('two') });
  assert.equal(single.body.errors[0].pointer, '/id');
  const listed = await publisher('POST', '/events', {
    json: [event('one'), { ...event('two'), id: 'taken' }],
  });
  assert.equal(listed.body.errors[0].pointer, '/1/id');
});

test('a subscription to a removed kind can still be changed and disabled', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url });
  await sql`update subscriptions set kinds = '{gone.away}' where id = ${id}`.execute(server.db);
  const patch = (json: unknown) => app.request('PATCH', `/subscriptions/${id}`, { json });
  const changed = await patch({ description: 'still mine' });
  assert.equal(changed.status, 200);
  assert.deepEqual(changed.body.kinds, ['gone.away']);
  assert.equal(changed.body.url, url);
  assert.equal((await patch({ state: 'disabled' })).body.state, 'disabled');
  assert.equal((await patch({ kinds: ['gone.away'] })).status, 422);
});

test('a recovery accepts only existing times, and names each state once', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url });
  const recover = (json: unknown) => app.request('POST', `/subscriptions/${id}/recover`, { json });
  for (const since of [
    '0000-01-01T00:00:00Z',
    '0001-01-01T00:00:00+23:59',
    '9999-12-31T23:59:59-23:59',
    '2026-02-30T00:00:00Z',
    '2026-01-01T24:00:00Z',
  ]) {
    assert.equal((await recover({ since })).status, 422, since);
  }
  const since = '2024-02-29T23:59:59.5+01:00';
  const { status, body } = await recover({ since, status: Array(20_000).fill('failed') });
  assert.equal(status, 202);
  assert.equal(body.since, '2024-02-29T22:59:59.500Z');
  assert.deepEqual(body.status, ['failed']);
  const unknown = Object.fromEntries(Array.from({ length: 300 }, (_, index) => [`a${index}`, 1]));
  assert.equal((await recover({ since, ...unknown })).body.errors.length, 100);
  assert.equal((await app.request('POST', '/subscriptions', { json: unknown })).body.errors.length, 100);
});

test('the lists of subscriptions and deliveries accept numbers in digits and unchanged cursors', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url });
  for (const limit of ['0x10', '1e1', '%201', '200.0', '%2B5', '0', '-1', '201', '', '5&limit=6']) {
    for (const path of ['/subscriptions', `/subscriptions/${id}/deliveries`]) {
      assert.equal((await app.request('GET', `${path}?limit=${limit}`)).status, 400, `${path} ${limit}`);
    }
  }
  for (const after of ['', '1e5', '-5', ' 12 ', '0x1F', 'Infinity']) {
    const text = Buffer.from(after).toString('base64url');
    const { status } = await app.request('GET', `/subscriptions/${id}/deliveries?after=${text}`);
    assert.equal(status, 400, after);
  }
});

test('a database without network or without writes is reported as unreachable', () => {
  for (const code of ['EHOSTUNREACH', 'ENETUNREACH', 'EHOSTDOWN', 'ENETDOWN', 'ECONNABORTED', '25006']) {
    assert.ok(isDatabaseUnavailable(Object.assign(new Error('no'), { code })), code);
  }
  assert.ok(!isDatabaseUnavailable(Object.assign(new Error('no'), { code: '25001' })));
});

test('a truncated secret file is refused, because an empty one is a known key', () => {
  const directory = mkdtempSync(join(tmpdir(), 'nuncio-secret-'));
  const config = loadConfig({ NUNCIO_DATA_DIR: directory }, 'dev');
  const made = loadSecret(config);
  assert.deepEqual(loadSecret(config), made);
  for (const content of ['', '\n', 'too short\n']) {
    writeFileSync(join(directory, 'secret'), content);
    assert.throws(() => loadSecret(config), ConfigError, JSON.stringify(content));
  }
});

test('no part of a password appears in the line that reports a wrong URL', () => {
  for (const [name, text] of [
    ['DATABASE_URL', 'mysql://user:se@cr/et@host/db'],
    ['DATABASE_URL', 'postgres:/user:se@cr/et@host/db'],
    ['DATABASE_URL', 'postgres://user:se@cret@[::1'],
    ['NUNCIO_BASE_URL', 'https://user:se@cr/et@host/'],
  ] as const) {
    assert.throws(
      () => loadConfig({ [name]: text }, 'dev'),
      (error: Error) => error instanceof ConfigError && !/se@|cr\/|et@|cret/.test(error.message),
      text,
    );
  }
});

test('an invalid database URL is reported in one line without a stack', () => {
  for (const text of ['postgres://[::1', 'postgres://host:port/db', 'postgresql://a b:5432/db']) {
    assert.throws(() => loadConfig({ DATABASE_URL: text }, 'dev'), ConfigError, text);
  }
  for (const text of [
    'postgres://',
    'postgres:///db?host=/run/postgresql',
    'postgres://user:pass@/db?host=/run/postgresql',
    'postgresql://user:p%40ss@[::1]:5432/db?sslmode=require',
    'postgres://%2Frun%2Fpostgresql/db',
  ]) {
    assert.equal(loadConfig({ DATABASE_URL: text }, 'dev').databaseUrl, text);
  }
});
