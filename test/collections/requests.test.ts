/** Single requests over HTTP: conditions, idempotency keys, partial updates and rate limits. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { decodeJwt } from 'jose';
import { sql } from 'kysely';
import { openDatabase } from '../../src/database/database.ts';
import { sweepIdempotencyKeys } from '../../src/http/idempotency.ts';
import { networksOf } from '../../src/http/network.ts';
import { RateLimiter } from '../../src/http/rate_limit.ts';
import { createApiUser, requester } from '../support/clients/api_client.ts';
import { mintAccessToken } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { startOfMinute } from '../support/values/minute.ts';

const server = await startTestServer({ after });
const ada = await createApiUser(server);
const bob = await createApiUser(server);

async function newArticle(title = 'A title') {
  const { body, headers } = await ada.request('POST', '/articles', { json: { title } });
  return { id: body.id as string, path: `/articles/${body.id}`, etag: headers.get('etag') as string };
}

test('a resource has a strong ETag that lasts until it changes', async () => {
  const { path, etag } = await newArticle();
  assert.match(etag, /^"[\w.-]+"$/);
  const first = await ada.request('GET', path);
  assert.equal(first.headers.get('etag'), etag);
  assert.equal(first.headers.get('last-modified'), new Date(first.body.updated_at).toUTCString());
  const changed = await ada.request('PATCH', path, { json: { title: 'Another' } });
  assert.notEqual(changed.headers.get('etag'), etag);
  assert.equal((await ada.request('GET', path)).headers.get('etag'), changed.headers.get('etag'));
});

test('another representation has another ETag', async () => {
  const { path, etag } = await newArticle();
  const reader = await createApiUser(server, ['read:posts'], ada.account);
  assert.notEqual((await reader.request('GET', path)).headers.get('etag'), etag);
  assert.notEqual((await ada.request('GET', `${path}?fields=title`)).headers.get('etag'), etag);
});

test('If-None-Match returns 304 with the headers of the 200 and no body', async () => {
  const { path, etag } = await newArticle();
  for (const tag of [etag, `W/${etag}`, `"other", ${etag}`, '*']) {
    const { status, headers, text } = await ada.request('GET', path, { headers: { 'if-none-match': tag } });
    assert.equal(status, 304, tag);
    assert.equal(text, '');
    assert.equal(headers.get('etag'), etag);
    assert.match(headers.get('cache-control') ?? '', /private/);
    assert.match(headers.get('vary') ?? '', /Authorization/);
  }
  for (const tag of ['"other"', etag.slice(0, -2), '']) {
    assert.equal((await ada.request('GET', path, { headers: { 'if-none-match': tag } })).status, 200, tag);
  }
  assert.equal((await ada.request('HEAD', path, { headers: { 'if-none-match': etag } })).status, 304);
  // A tag does not reveal a resource to a user who cannot read it.
  assert.equal((await bob.request('GET', path, { headers: { 'if-none-match': etag } })).status, 404);
});

test('If-Modified-Since applies when no ETag is sent', async () => {
  const { path } = await newArticle();
  const later = { 'if-modified-since': new Date(Date.now() + 60_000).toUTCString() };
  const earlier = { 'if-modified-since': new Date(Date.now() - 60_000).toUTCString() };
  assert.equal((await ada.request('GET', path, { headers: later })).status, 304);
  assert.equal((await ada.request('GET', path, { headers: earlier })).status, 200);
  assert.equal((await ada.request('GET', path, { headers: { 'if-modified-since': 'soon' } })).status, 200);
  assert.equal(
    (await ada.request('GET', path, { headers: { ...later, 'if-none-match': '"x"' } })).status,
    200,
  );
});

test('If-Match guards PUT, PATCH, DELETE and actions', async () => {
  const stale = await newArticle();
  const { headers } = await ada.request('PATCH', stale.path, { json: { title: 'Changed' } });
  const fresh = headers.get('etag') as string;
  const requests = [
    ['PUT', stale.path, { title: 'x' }],
    ['PATCH', stale.path, { title: 'x' }],
    ['POST', `${stale.path}/publish`, undefined],
    ['DELETE', stale.path, undefined],
  ] as const;
  for (const [method, path, json] of requests) {
    for (const tag of [stale.etag, `W/${fresh}`, '"nonsense"', '']) {
      const { status, body } = await ada.request(method, path, { json, headers: { 'if-match': tag } });
      assert.equal(status, 412, `${method} ${tag}`);
      assert.equal(body.code, 'precondition-failed');
    }
    const notOlder = { 'if-unmodified-since': new Date(Date.now() - 3_600_000).toUTCString() };
    assert.equal((await ada.request(method, path, { json, headers: notOlder })).status, 412);
    assert.equal((await ada.request(method, path, { json, headers: { 'if-none-match': '*' } })).status, 412);
  }
  let tag = fresh;
  for (const [method, path, json] of requests) {
    const { status, headers: after } = await ada.request(method, path, {
      json,
      headers: { 'if-match': `"old", ${tag}` },
    });
    assert.ok(status === 200 || status === 204, `${method}: ${status}`);
    tag = after.get('etag') ?? tag;
  }
  const missing = await ada.request('PATCH', stale.path, {
    json: { title: 'x' },
    headers: { 'if-match': '*' },
  });
  assert.equal(missing.status, 404);
});

test('exactly one of 20 concurrent writes with one ETag succeeds', async () => {
  const { path, etag } = await newArticle();
  const writes = await Promise.all(
    Array.from({ length: 20 }, (_, index) =>
      ada.request(index % 2 === 0 ? 'PATCH' : 'PUT', path, {
        json: { title: `Writer ${index}` },
        headers: { 'if-match': etag },
      }),
    ),
  );
  const won = writes.filter(({ status }) => status === 200);
  assert.equal(won.length, 1);
  assert.equal(writes.filter(({ status }) => status === 412).length, 19);
  assert.equal((await ada.request('GET', path)).body.title, won[0]?.body.title);
});

test('JSON Patch applies all operations or none', async () => {
  const { path } = await newArticle();
  const patch = (operations: unknown) =>
    ada.request('PATCH', path, {
      raw: JSON.stringify(operations),
      headers: { 'content-type': 'application/json-patch+json' },
    });
  const good = await patch([
    { op: 'test', path: '/title', value: 'A title' },
    { op: 'replace', path: '/title', value: 'Patched' },
    { op: 'copy', from: '/title', path: '/body' },
  ]);
  assert.equal(good.status, 200, good.text);
  assert.deepEqual([good.body.title, good.body.body], ['Patched', 'Patched']);
  const failed = await patch([
    { op: 'replace', path: '/body', value: 'x' },
    { op: 'test', path: '/title', value: 'Something else' },
  ]);
  assert.equal(failed.status, 409);
  assert.deepEqual(failed.body.errors, [{ pointer: '/1', message: 'the value is different' }]);
  assert.equal((await ada.request('GET', path)).body.body, 'Patched');
  for (const operations of [
    {},
    [{ op: 'wrong', path: '/title' }],
    [{ op: 'replace', path: 'title', value: 'x' }],
    [{ op: 'replace', path: '/title' }],
    [{ op: 'replace', path: '', value: {} }],
    [{ op: 'replace', path: '/state', value: 'published' }],
    [{ op: 'replace', path: '/author', value: bob.account.id }],
    [{ op: 'remove', path: '/id' }],
    [{ op: 'remove', path: '/title' }],
    [{ op: 'move', from: '/id', path: '/title' }],
    [{ op: 'add', path: '/unknown', value: 1 }],
    [{ op: 'add', path: '/__proto__/state', value: 'published' }],
    [{ op: 'add', path: '/constructor/prototype/state', value: 'published' }],
    [{ op: 'replace', path: '/title/0', value: 'x' }],
    [{ op: 'remove', path: '/nothing' }],
    // Inherited properties are not members of the document.
    [{ op: 'remove', path: '/toString' }],
    [{ op: 'remove', path: '/__proto__' }],
    [{ op: 'replace', path: '/toString', value: 'x' }],
    [{ op: 'copy', from: '/toString', path: '/body' }],
    [{ op: 'move', from: '/hasOwnProperty', path: '/body' }],
    [{ op: 'add', path: '/toString/marked', value: true }],
    [{ op: 'remove', path: '/title/length' }],
    [{ op: 'move', from: '/title', path: '/title/x' }],
    [null],
    Array(1_001).fill({ op: 'test', path: '/title', value: 'Patched' }),
  ]) {
    const { status } = await patch(operations);
    assert.equal(status, 422, JSON.stringify(operations).slice(0, 80));
  }
  assert.equal(({} as { state?: string }).state, undefined);
  assert.equal('marked' in Object.prototype.toString, false);
  const doubling = [
    { op: 'add', path: '/x', value: ['xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'] },
    ...Array.from({ length: 60 }, () => ({ op: 'copy', from: '/x', path: '/x/-' })),
  ];
  assert.equal((await patch(doubling)).status, 422);
});

test('a repeated Idempotency-Key returns the first response', async () => {
  const headers = { 'idempotency-key': 'create-1' };
  const first = await ada.request('POST', '/articles', { json: { title: 'Once' }, headers });
  const again = await ada.request('POST', '/articles', { json: { title: 'Once' }, headers });
  assert.equal(first.status, 201);
  assert.equal(again.status, 201);
  assert.deepEqual(again.body, first.body);
  assert.equal(again.headers.get('location'), first.headers.get('location'));
  assert.equal(again.headers.get('etag'), first.headers.get('etag'));
  assert.equal(first.headers.get('idempotency-replayed'), null);
  assert.equal(again.headers.get('idempotency-replayed'), 'true');

  const other = await ada.request('POST', '/articles', { json: { title: 'Other' }, headers });
  assert.equal(other.status, 422);
  assert.equal(other.body.code, 'idempotency-key-reused');
  // A different path is a different request.
  const path = `/articles/${first.body.id}`;
  assert.equal((await ada.request('POST', `${path}/publish`, { headers })).status, 422);
  // Other accounts and clients have separate keys.
  const bobs = await bob.request('POST', '/articles', { json: { title: 'Once' }, headers });
  assert.equal(bobs.status, 201);
  assert.notEqual(bobs.body.id, first.body.id);
  const otherApp = await createApiUser(server, ['read:posts', 'write:posts'], ada.account);
  const theirs = await otherApp.request('POST', '/articles', { json: { title: 'Once' }, headers });
  assert.notEqual(theirs.body.id, first.body.id);
});

test('an action and a comment run once with an Idempotency-Key', async () => {
  const { path } = await newArticle();
  const publish = { headers: { 'idempotency-key': 'publish-1' } };
  assert.equal((await ada.request('POST', `${path}/publish`, publish)).status, 200);
  assert.equal((await ada.request('POST', `${path}/publish`, publish)).status, 200);
  assert.equal((await ada.request('POST', `${path}/publish`)).status, 409);
  const comment = { json: { body: 'Hm.' }, headers: { 'idempotency-key': 'comment-1' } };
  const first = await bob.request('POST', `${path}/comments`, comment);
  const again = await bob.request('POST', `${path}/comments`, comment);
  assert.equal(again.body.id, first.body.id);
  assert.equal((await ada.request('GET', `${path}/comments`)).body.items.length, 1);
});

test('a subscription is created once, and its stored response does not show the secret', async () => {
  const app = await createApiUser(server, ['read:posts', 'read:webhooks', 'write:webhooks']);
  const request = {
    json: { url: 'http://127.0.0.1:4799/hook', kinds: ['article.*'] },
    headers: { 'idempotency-key': 'subscription-1' },
  };
  const first = await app.request('POST', '/subscriptions', request);
  assert.equal(first.status, 201, first.text);
  const again = await app.request('POST', '/subscriptions', request);
  assert.deepEqual(again.body, first.body);
  assert.equal(again.headers.get('idempotency-replayed'), 'true');
  assert.equal((await app.request('GET', '/subscriptions')).body.items.length, 1);
  const { rows } = await sql<{ body: string }>`
    select body from idempotency_keys where key = 'subscription-1'`.execute(server.db);
  assert.equal(rows.length, 1);
  assert.ok(!rows[0]?.body.includes(first.body.secret));
  const path = `/subscriptions/${first.body.id}`;
  const ping = { headers: { 'idempotency-key': 'ping-1' } };
  const pinged = await app.request('POST', `${path}/test`, ping);
  assert.equal((await app.request('POST', `${path}/test`, ping)).body.delivery, pinged.body.delivery);
  const rotate = { json: { overlap: 60 }, headers: { 'idempotency-key': 'rotate-1' } };
  const rotated = await app.request('POST', `${path}/rotate-secret`, rotate);
  assert.deepEqual((await app.request('POST', `${path}/rotate-secret`, rotate)).body, rotated.body);
  assert.equal((await app.request('GET', `${path}/secret`)).body.secret, rotated.body.secret);
});

test('the work runs once when 10 concurrent requests share a key', async () => {
  const send = () =>
    ada.request('POST', '/articles', { json: { title: 'Ten' }, headers: { 'idempotency-key': 'ten' } });
  const answers = await Promise.all(Array.from({ length: 10 }, send));
  const ids = new Set(answers.filter(({ status }) => status === 201).map(({ body }) => body.id));
  assert.equal(ids.size, 1);
  assert.ok(answers.every(({ status }) => status === 201 || status === 409));
  const { rows } = await sql`select from articles where title = 'Ten'`.execute(server.db);
  assert.equal(rows.length, 1);
});

test('a second request is 409 while the first runs, and does the work after the first died', async () => {
  const owner = await sql<{ owner: string }>`
    select owner from idempotency_keys where key = 'create-1' and owner like ${`${ada.account.id}%`} limit 1`.execute(
    server.db,
  );
  const other = openDatabase({ connectionString: server.databaseUrl, connectionsMax: 1 });
  after(() => other.destroy());
  const clientOf = (await ada.request('GET', '/api')).body.client.id;
  const lockName = `${ada.account.id} ${clientOf} slow`;
  assert.ok(owner.rows.length > 0);
  const send = () =>
    ada.request('POST', '/articles', { json: { title: 'Slow' }, headers: { 'idempotency-key': 'slow' } });
  // Another node holds the key in a transaction that is aborted later.
  await other.connection().execute(async (connection) => {
    await sql`begin`.execute(connection);
    await sql`select pg_advisory_xact_lock(hashtextextended(salt || ${lockName}, 50)) from lock_salt`.execute(
      connection,
    );
    const { status, body, headers } = await send();
    assert.equal(status, 409);
    assert.equal(body.code, 'idempotency-key-in-use');
    assert.ok(headers.get('retry-after'));
    await sql`rollback`.execute(connection);
  });
  assert.equal((await send()).status, 201);
});

test('a refused request leaves its key free, and an invalid key is 400', async () => {
  const headers = { 'idempotency-key': 'refused-1' };
  assert.equal((await ada.request('POST', '/articles', { json: {}, headers })).status, 422);
  assert.equal((await ada.request('POST', '/articles', { json: { title: 'Now' }, headers })).status, 201);
  for (const key of ['', 'x'.repeat(256), 'caf\u00e9']) {
    const { status } = await ada.request('POST', '/articles', {
      json: { title: 'x' },
      headers: { 'idempotency-key': key },
    });
    assert.equal(status, 400, key.slice(0, 10));
  }
});

test('a key expires after 24 hours', async () => {
  const headers = { 'idempotency-key': 'old-1' };
  const first = await ada.request('POST', '/articles', { json: { title: 'Old' }, headers });
  await sql`update idempotency_keys set created_at = now() - interval '24 hours 1 second' where key = 'old-1'`.execute(
    server.db,
  );
  const second = await ada.request('POST', '/articles', { json: { title: 'Old' }, headers });
  assert.notEqual(second.body.id, first.body.id);
  await sql`update idempotency_keys set created_at = now() - interval '25 hours' where key = 'old-1'`.execute(
    server.db,
  );
  await sweepIdempotencyKeys(server.db);
  const { rows } = await sql`select from idempotency_keys where key = 'old-1'`.execute(server.db);
  assert.equal(rows.length, 0);
  const kept = await sql`select from idempotency_keys where key = 'refused-1'`.execute(server.db);
  assert.equal(kept.rows.length, 1);
});

test('attack: expired keys are deleted as fast as an app can make them', async () => {
  const many = 25_000;
  await sql`
    insert into idempotency_keys (owner, key, request_digest, status, headers, created_at)
    select 'fast', number::text, '', 201, '{}', now() - interval '25 hours' from generate_series(1, ${many}::int) as number`.execute(
    server.db,
  );
  await sweepIdempotencyKeys(server.db);
  const { rows } = await sql`select from idempotency_keys where owner = 'fast' limit 1`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('a request past the limit is 429 with the remaining count and Retry-After', async (t) => {
  const small = await startTestServer(t, { NUNCIO_RATE_LIMIT: '5' });
  const user = await createApiUser(small);
  await startOfMinute();
  for (const left of ['4', '3', '2', '1', '0']) {
    const { status, headers } = await user.request('GET', '/api');
    assert.equal(status, 200);
    assert.equal(headers.get('ratelimit-limit'), '5');
    assert.equal(headers.get('ratelimit-remaining'), left);
    assert.ok(Number(headers.get('ratelimit-reset')) <= 60);
  }
  const refused = await user.request('GET', '/articles');
  assert.equal(refused.status, 429);
  assert.equal(refused.headers.get('content-type'), 'application/problem+json');
  assert.equal(refused.headers.get('ratelimit-remaining'), '0');
  assert.ok(Number(refused.headers.get('retry-after')) > 0);
  // A new token of the same grant does not reset the count.
  const client = { id: decodeJwt(user.accessToken).client_id as string };
  const { account, grantId } = user;
  assert.ok(grantId !== null);
  const fresh = await mintAccessToken(small, { account, client, grantId, scopes: ['read:posts'] });
  assert.equal((await requester(small, fresh.accessToken)('GET', '/api')).status, 429);
  // Other grants have separate counts.
  assert.equal((await (await createApiUser(small)).request('GET', '/api')).status, 200);
  // Requests without a token are told what is missing, however many others at the address have none.
  for (let count = 0; count < 8; count++) {
    for (const nobody of [requester(small), requester(small, 'nonsense')]) {
      const { status, headers } = await nobody('GET', '/api');
      assert.deepEqual([status, headers.has('www-authenticate')], [401, true]);
    }
  }
});

test('nodes share counts without a write per request', async (t) => {
  await startOfMinute();
  const [one, two] = [new RateLimiter(server.db, 10), new RateLimiter(server.db, 10)];
  for (const node of [one, two]) {
    node.start();
    t.after(() => node.stop());
  }
  for (let count = 0; count < 5; count++) one.count('token:shared');
  for (let count = 0; count < 4; count++) two.count('token:shared');
  const total = async () => {
    const { rows } = await sql<{ used: string }>`
      select coalesce(max(used), 0) as used from rate_windows where key = 'token:shared'`.execute(server.db);
    return Number(rows[0]?.used);
  };
  assert.ok((await total()) < 9, 'each count was written');
  while ((await total()) < 9) await new Promise((resolve) => setTimeout(resolve, 50));
  // The first node gets the total with its next exchange.
  one.count('token:shared');
  while ((await total()) < 10) await new Promise((resolve) => setTimeout(resolve, 50));
  assert.throws(() => one.count('token:shared'), /limit is 10 /);
});

test('an IPv6 address counts with its /64 and /48, an IPv4 address alone', () => {
  const wide = '2001:db8:1::/48';
  assert.deepEqual(networksOf('2001:db8:1:2:3:4:5:6'), { near: '2001:db8:1:2::/64', wide });
  assert.deepEqual(networksOf('2001:DB8:1:2::'), { near: '2001:db8:1:2::/64', wide });
  assert.deepEqual(networksOf('2001:db8:1::9'), { near: '2001:db8:1:0::/64', wide });
  assert.deepEqual(networksOf('::1'), { near: '0:0:0:0::/64', wide: '0:0:0::/48' });
  assert.deepEqual(networksOf('fe80::1%eth0'), { near: 'fe80:0:0:0::/64', wide: 'fe80:0:0::/48' });
  for (const address of ['10.0.0.1', '::ffff:10.0.0.1', '::ffff:a00:1']) {
    assert.deepEqual(networksOf(address), { near: '10.0.0.1', wide: null });
  }
  assert.deepEqual(networksOf(''), { near: '', wide: null });
});
