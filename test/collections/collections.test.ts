/** Articles, comments and publish over HTTP: formats, statuses, ownership and events. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../src/crypto/ids.ts';
import { type ApiUser, createApiUser, requester } from '../support/clients/api_client.ts';
import { createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const ada = await createApiUser(server);
const bob = await createApiUser(server);

async function newArticle(user: ApiUser, title = 'A title'): Promise<{ id: string; path: string }> {
  const { status, body } = await user.request('POST', '/articles', { json: { title } });
  assert.equal(status, 201, JSON.stringify(body));
  return { id: body.id, path: `/articles/${body.id}` };
}

async function eventsOf(id: string): Promise<{ kind: string; account_id: string; body: unknown }[]> {
  const { rows } = await sql<{ kind: string; account_id: string; body: string }>`
    select kind, account_id, body from events where body like ${`%${id}%`} order by position`.execute(
    server.db,
  );
  return rows.map((row) => ({ ...row, body: JSON.parse(row.body) }));
}

test('an article is created with its defaults, links and Location', async () => {
  const { status, headers, body } = await ada.request('POST', '/articles', { json: { title: 'Hello' } });
  assert.equal(status, 201);
  assert.match(body.id, /^[0-9a-f]{8}-[0-9a-f]{4}-7/);
  assert.equal(headers.get('location'), `/articles/${body.id}`);
  assert.match(headers.get('content-type') ?? '', /^application\/json\b/);
  const path = `/articles/${body.id}`;
  assert.deepEqual(body, {
    id: body.id,
    title: 'Hello',
    body: '',
    state: 'draft',
    published_at: null,
    author: ada.account.id,
    created_at: body.created_at,
    updated_at: body.created_at,
    _links: {
      self: { href: path },
      comments: { href: `${path}/comments` },
      publish: { href: `${path}/publish`, method: 'POST' },
    },
  });
  assert.match(body.created_at, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/);
  const read = await ada.request('GET', path);
  assert.equal(read.status, 200);
  assert.deepEqual(read.body, body);
});

test('an invisible resource is 404, and a visible but read-only one 403', async () => {
  const { path } = await newArticle(ada);
  for (const [method, json] of [
    ['GET', undefined],
    ['PUT', { title: 'x' }],
    ['PATCH', { title: 'x' }],
    ['DELETE', undefined],
  ] as const) {
    assert.equal((await bob.request(method, path, { json })).status, 404, method);
  }
  assert.equal((await bob.request('POST', `${path}/publish`)).status, 404);
  assert.equal((await bob.request('GET', `${path}/comments`)).status, 404);
  assert.equal((await bob.request('POST', `${path}/comments`, { json: { body: 'x' } })).status, 404);

  assert.equal((await ada.request('POST', `${path}/publish`)).status, 200);
  assert.equal((await bob.request('GET', path)).status, 200);
  for (const [method, json] of [
    ['PUT', { title: 'x' }],
    ['PATCH', { title: 'x' }],
    ['DELETE', undefined],
  ] as const) {
    const { status, body } = await bob.request(method, path, { json });
    assert.equal(status, 403, method);
    assert.equal(body.code, 'not-owner');
  }
  assert.equal((await bob.request('POST', `${path}/publish`)).status, 403);
  assert.equal((await ada.request('GET', path)).body.title, 'A title');
});

test('an invalid id is 404', async () => {
  for (const id of ['1', 'x%00y', "'; drop table articles; --", '../articles', 'A'.repeat(3_000), '%ff']) {
    const { status } = await ada.request(
      'GET',
      `/articles/${id.startsWith('%') ? id : encodeURIComponent(id)}`,
    );
    assert.ok([400, 404, 414].includes(status), `${id.slice(0, 30)}: ${status}`);
  }
});

test('PUT replaces the resource and sets omitted fields to their defaults', async () => {
  const { path } = await newArticle(ada);
  await ada.request('PATCH', path, { json: { body: 'text' } });
  const { status, body } = await ada.request('PUT', path, { json: { title: 'New' } });
  assert.equal(status, 200);
  assert.equal(body.title, 'New');
  assert.equal(body.body, '');
  assert.equal((await ada.request('PUT', path, { json: { body: 'no title' } })).status, 422);
});

test('PUT accepts the representation that GET returned with one changed member', async () => {
  const { path } = await newArticle(ada);
  const { body: got } = await ada.request('GET', path);
  const { status, body } = await ada.request('PUT', path, { json: { ...got, title: 'Changed' } });
  assert.equal(status, 200);
  assert.equal(body.title, 'Changed');
  const refused = await ada.request('PUT', path, {
    json: { ...got, state: 'published', author: bob.account.id },
  });
  assert.equal(refused.status, 422);
  assert.deepEqual(
    refused.body.errors.map((error: { pointer: string }) => error.pointer),
    ['/state', '/author'],
  );
});

test('PATCH applies a merge patch', async () => {
  const { path } = await newArticle(ada);
  const merge = { 'content-type': 'application/merge-patch+json' };
  const first = await ada.request('PATCH', path, { raw: '{"body":"text"}', headers: merge });
  assert.equal(first.status, 200);
  assert.equal(first.body.body, 'text');
  assert.equal(first.body.title, 'A title');
  const removed = await ada.request('PATCH', path, { raw: '{"body":null}', headers: merge });
  assert.equal(removed.body.body, '');
  for (const raw of [
    '{"title":null}',
    '{"title":""}',
    '{"title":7}',
    '{"state":"published"}',
    '{"id":null}',
    '[]',
    '"x"',
    'null',
    '{"x":1}',
  ]) {
    const { status, body } = await ada.request('PATCH', path, { raw, headers: merge });
    assert.equal(status, 422, raw);
    assert.ok(body.errors.length > 0);
  }
  assert.equal((await ada.request('PATCH', path, { raw: '{"x":null}', headers: merge })).status, 200);
});

test('a patch without changes leaves no trace', async () => {
  const { id, path } = await newArticle(ada);
  const before = await ada.request('GET', path);
  const { status, body } = await ada.request('PATCH', path, { json: { title: 'A title' } });
  assert.equal(status, 200);
  assert.deepEqual(body, before.body);
  assert.deepEqual(
    (await eventsOf(id)).map((event) => event.kind),
    ['article.created'],
  );
});

test('publishing works once, and its link is present only while it applies', async () => {
  const { path } = await newArticle(ada);
  const published = await ada.request('POST', `${path}/publish`);
  assert.equal(published.status, 200);
  assert.equal(published.body.state, 'published');
  assert.match(published.body.published_at, /Z$/);
  assert.equal(published.body._links.publish, undefined);
  const again = await ada.request('POST', `${path}/publish`);
  assert.equal(again.status, 409);
  assert.equal(again.headers.get('content-type'), 'application/problem+json');
});

test('exactly one of 20 concurrent publish requests succeeds', async () => {
  const { id, path } = await newArticle(ada);
  const answers = await Promise.all(Array.from({ length: 20 }, () => ada.request('POST', `${path}/publish`)));
  assert.equal(answers.filter(({ status }) => status === 200).length, 1);
  assert.equal(answers.filter(({ status }) => status === 409).length, 19);
  assert.equal((await eventsOf(id)).filter((event) => event.kind === 'article.published').length, 1);
});

test('a token without the write scope sees no publish link and may not publish', async () => {
  const { path } = await newArticle(ada);
  const reader = await createApiUser(server, ['read:posts'], ada.account);
  const { body } = await reader.request('GET', path);
  assert.equal(body._links.publish, undefined);
  const refused = await reader.request('POST', `${path}/publish`);
  assert.equal(refused.status, 403);
  assert.match(
    refused.headers.get('www-authenticate') ?? '',
    /error="insufficient_scope".*scope="write:posts"/,
  );
  const writer = await createApiUser(server, ['write:posts'], ada.account);
  assert.equal((await writer.request('GET', path)).status, 403);
  assert.equal((await requester(server)('GET', path)).status, 401);
});

test('comments are created by any reader of the article, listed, read, and deleted with it', async () => {
  const { id, path } = await newArticle(ada);
  await ada.request('POST', `${path}/publish`);
  const { status, headers, body } = await bob.request('POST', `${path}/comments`, {
    json: { body: 'Well said.' },
  });
  assert.equal(status, 201);
  const self = `${path}/comments/${body.id}`;
  assert.equal(headers.get('location'), self);
  assert.deepEqual(body, {
    id: body.id,
    body: 'Well said.',
    author: bob.account.id,
    created_at: body.created_at,
    _links: { self: { href: self }, article: { href: path } },
  });
  const list = await ada.request('GET', `${path}/comments`);
  assert.deepEqual(list.body.items, [body]);
  assert.deepEqual((await ada.request('GET', self)).body, body);
  // It does not exist under another article.
  const other = await newArticle(ada);
  assert.equal((await ada.request('GET', `${other.path}/comments/${body.id}`)).status, 404);
  assert.equal((await ada.request('DELETE', path)).status, 204);
  assert.equal((await ada.request('GET', self)).status, 404);
  const { rows } = await sql`select from article_comments where parent_id = ${id}`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('a comment’s body has 1 to 10,000 characters, a title 1 to 200', async () => {
  const { path } = await newArticle(ada);
  for (const [body, expected] of [
    ['', 422],
    ['x', 201],
    ['x'.repeat(10_000), 201],
    ['x'.repeat(10_001), 422],
    // Lengths count characters, not UTF-16 code units.
    ['😀'.repeat(10_000), 201],
  ] as const) {
    assert.equal((await ada.request('POST', `${path}/comments`, { json: { body } })).status, expected);
  }
  for (const [title, expected] of [
    ['', 422],
    ['😀'.repeat(200), 201],
    ['x'.repeat(201), 422],
  ] as const) {
    assert.equal((await ada.request('POST', '/articles', { json: { title } })).status, expected);
  }
});

test('each change publishes its event to the article’s owner in the same transaction', async () => {
  const { id, path } = await newArticle(ada, 'Events');
  await ada.request('PATCH', path, { json: { title: 'Events, changed' } });
  await ada.request('POST', `${path}/publish`);
  const comment = await bob.request('POST', `${path}/comments`, { json: { body: 'Hm.' } });
  const { body: last } = await ada.request('GET', path);
  await ada.request('DELETE', path);
  const events = await eventsOf(id);
  assert.deepEqual(
    events.map((event) => event.kind),
    ['article.created', 'article.updated', 'article.published', 'comment.created', 'article.deleted'],
  );
  assert.ok(events.every((event) => event.account_id === ada.account.id));
  const { _links, ...article } = last;
  assert.deepEqual(events[4]?.body, { article });
  const { _links: _, ...said } = comment.body;
  assert.deepEqual(events[3]?.body, { comment: said, article: { id } });
});

test('a failed change leaves neither resource nor event', async () => {
  await sql`
    create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$`.execute(
    server.db,
  );
  await sql`create constraint trigger refuse after insert on articles deferrable initially deferred
    for each row when (new.title = 'refused at commit') execute function refuse()`.execute(server.db);
  const { status } = await ada.request('POST', '/articles', { json: { title: 'refused at commit' } });
  assert.equal(status, 500);
  const { rows } = await sql`select from events where body like '%refused at commit%'`.execute(server.db);
  assert.equal(rows.length, 0);
});

test('a client for itself reads published resources and writes nothing', async () => {
  const draft = await newArticle(ada);
  const open = await newArticle(ada);
  await ada.request('POST', `${open.path}/publish`);
  const client = await createTestClient(server);
  const { accessToken } = await mintAccessToken(server, { client, scopes: ['read:posts', 'write:posts'] });
  const request = requester(server, accessToken);
  assert.equal((await request('GET', open.path)).status, 200);
  assert.equal((await request('GET', draft.path)).status, 404);
  const list = await request('GET', '/articles?limit=200');
  assert.ok(list.body.items.every((item: { state: string }) => item.state === 'published'));
  const refused = await request('POST', '/articles', { json: { title: 'x' } });
  assert.equal(refused.status, 403);
  assert.equal(refused.body.code, 'user-required');
  assert.equal((await request('POST', `${open.path}/comments`, { json: { body: 'x' } })).status, 403);
  assert.equal((await request('PATCH', open.path, { json: { title: 'x' } })).status, 403);
});

test('GET /api names the token’s principal and what it may use', async () => {
  const { status, body } = await ada.request('GET', '/api');
  assert.equal(status, 200);
  assert.deepEqual(body.account, { id: ada.account.id });
  assert.equal(typeof body.client.id, 'string');
  assert.deepEqual(body.scopes, ['read:posts', 'write:posts']);
  assert.deepEqual(body._links.self, { href: '/api' });
  assert.deepEqual(body._links.articles, { href: '/articles' });
  const other = await createApiUser(server, ['read:profile']);
  assert.equal((await other.request('GET', '/api')).body._links.articles, undefined);
  const client = await createTestClient(server);
  const { accessToken } = await mintAccessToken(server, { client, scopes: ['read:posts'] });
  assert.equal((await requester(server, accessToken)('GET', '/api')).body.account, null);
  assert.equal((await requester(server)('GET', '/api')).status, 401);
});

test('concurrent requests of many users see only the resources each may see', async () => {
  const mine = await newArticle(ada, 'Ada’s draft');
  const theirs = await newArticle(bob, 'Bob’s draft');
  const open = await newArticle(bob, 'Open');
  await bob.request('POST', `${open.path}/publish`);
  const answers = await Promise.all(
    Array.from({ length: 240 }, async (_, index) => {
      const user = index % 2 === 0 ? ada : bob;
      const article = [mine, theirs, open, { id: 'x', path: `/articles/${newId()}` }][
        index % 4 === 3 ? 3 : index % 3
      ];
      const { status, body } = await user.request('GET', article?.path ?? '');
      const isSeen = article === open || article === (user === ada ? mine : theirs);
      assert.equal(status, isSeen ? 200 : 404);
      if (isSeen) assert.equal(body.id, article?.id);
      return status;
    }),
  );
  assert.ok(answers.includes(200) && answers.includes(404));
});
