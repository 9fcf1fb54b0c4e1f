/** Concurrent creations share statements, and each request gets its own response. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../src/crypto/ids.ts';
import { type ApiResponse, createApiUser } from '../support/clients/api_client.ts';
import { testPlatform as platform } from '../support/servers/platform.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, { NUNCIO_INSECURE_SUBSCRIBERS: '1' }, 'dev', platform);
const ada = await createApiUser(server);
const bob = await createApiUser(server);
const bystander = await createApiUser(server, ['read:posts']);

async function eventsOf(kind: string, mark: string): Promise<{ account: string; body: unknown }[]> {
  const { rows } = await sql<{ account: string; body: string }>`
    select account_id as account, body from events where kind = ${kind} and body like ${`%${mark}%`}
    order by position`.execute(server.db);
  return rows.map(({ account, body }) => ({ account, body: JSON.parse(body) }));
}

test('concurrent creations, some invalid, each get their own response and event', async () => {
  const mark = newId();
  const titles = Array.from({ length: 24 }, (_, index) => `${mark} ${index}`);
  const [good, bad] = await Promise.all([
    Promise.all(
      titles.map((title, index) =>
        (index % 2 === 0 ? ada : bob).request('POST', '/articles', {
          json: { title, body: `"{\\,}' NULL ${index}` },
        }),
      ),
    ),
    Promise.all([
      ada.request('POST', '/articles', { json: { title: '' } }),
      ada.request('POST', '/articles', { json: { title: mark, state: 'published' } }),
      ada.request('POST', '/articles', { raw: '{', headers: { 'content-type': 'application/json' } }),
      bystander.request('POST', '/articles', { json: { title: mark } }),
    ]),
  ]);
  assert.deepEqual(
    bad.map(({ status }) => status),
    [422, 422, 400, 403],
  );
  for (const [index, { status, body, headers }] of good.entries()) {
    assert.equal(status, 201);
    assert.equal(body.title, titles[index]);
    assert.equal(body.body, `"{\\,}' NULL ${index}`);
    assert.equal(body.author, (index % 2 === 0 ? ada : bob).account.id);
    assert.equal(headers.get('location'), `/articles/${body.id}`);
    const read = await (index % 2 === 0 ? ada : bob).request('GET', `/articles/${body.id}`);
    assert.deepEqual(read.body, body);
    assert.equal(read.headers.get('etag'), headers.get('etag'));
  }
  const events = await eventsOf('article.created', mark);
  const told = new Map(
    events.map(({ account, body }) => {
      const { article } = body as { article: { id: string; title: string } };
      return [article.id, { account, title: article.title }];
    }),
  );
  assert.equal(events.length, titles.length);
  for (const { body } of good) {
    assert.deepEqual(told.get(body.id), { account: body.author, title: body.title });
  }
});

test('fields of every type keep their values in a shared statement', async () => {
  const linker = await createApiUser(server, ['read:links', 'write:links']);
  const given = [
    { label: 'plain', address: 'https://a.example' },
    { label: 'null, "x"', address: 'https://b.example', weight: 0.1, tags: ['a,b', 'c"d', '{e}', '\\'] },
    { label: '{NULL}', address: 'https://c.example', pinned: true, rank: -7, place: { city: '"', zip: '1' } },
    { label: 'time', address: 'https://d.example', seen_at: '2026-01-02T03:04:05.678Z', place: null },
  ];
  const answers = await Promise.all(given.map((json) => linker.request('POST', '/bookmarks', { json })));
  for (const [index, { status, body }] of answers.entries()) {
    assert.equal(status, 201);
    const defaults = { rank: 0, weight: null, pinned: false, seen_at: null, tags: [], place: null };
    for (const [name, value] of Object.entries({ ...defaults, ...given[index] }))
      assert.deepEqual(body[name], value, name);
    assert.deepEqual((await linker.request('GET', `/bookmarks/${body.id}`)).body, body);
  }
});

test('concurrent comments are each checked against their own parent', async () => {
  const mark = newId();
  const create = async (user: typeof ada) => {
    const { body } = await user.request('POST', '/articles', { json: { title: mark } });
    return body.id as string;
  };
  const [open, draft, others] = await Promise.all([create(ada), create(ada), create(bob)]);
  assert.equal((await ada.request('POST', `/articles/${open}/publish`)).status, 200);
  const comment = (user: typeof ada, article: string, body = mark) =>
    user.request('POST', `/articles/${article}/comments`, { json: { body } });
  const answers: ApiResponse[] = await Promise.all([
    comment(bob, open),
    comment(ada, open),
    comment(ada, draft),
    comment(bob, draft),
    comment(ada, others),
    comment(bob, others),
    comment(ada, newId()),
    comment(ada, 'none'),
    comment(ada, open, ''),
    comment(bystander, open),
  ]);
  assert.deepEqual(
    answers.map(({ status }) => status),
    [201, 201, 201, 404, 404, 201, 404, 404, 422, 403],
  );
  const events = await eventsOf('comment.created', mark);
  assert.deepEqual(
    events.map(({ account }) => account).sort(),
    [ada.account.id, ada.account.id, ada.account.id, bob.account.id].sort(),
  );
  const authors = new Map(
    events.map((event) => {
      const { comment: told } = event.body as { comment: { id: string; author: string } };
      return [told.id, told.author];
    }),
  );
  for (const { body } of answers.filter(({ status }) => status === 201))
    assert.equal(authors.get(body.id), body.author);
  // Only the owner of a ticket adds notes to it.
  const holder = await createApiUser(server, ['read:tickets', 'write:tickets']);
  const stranger = await createApiUser(server, ['read:tickets', 'write:tickets']);
  const { body: ticket } = await holder.request('POST', '/tickets', { json: { subject: 'One' } });
  const note = { json: { text: 'A note' } };
  const notes = await Promise.all([
    holder.request('POST', `/tickets/${ticket.id}/notes`, note),
    stranger.request('POST', `/tickets/${ticket.id}/notes`, note),
  ]);
  assert.deepEqual(
    notes.map(({ status }) => status),
    [201, 404],
  );
});

test('concurrent requests with one Idempotency-Key create one article, and another user’s key is separate', async () => {
  const title = newId();
  const headers = { 'idempotency-key': title };
  const send = (user: typeof ada, json = { title }) => user.request('POST', '/articles', { json, headers });
  const answers = await Promise.all([
    ...Array.from({ length: 8 }, () => send(ada)),
    send(bob),
    ada.request('POST', '/articles', { json: { title: `${title} unkeyed` } }),
  ]);
  assert.deepEqual(
    answers.slice(8).map(({ status }) => status),
    [201, 201],
  );
  const made = answers.slice(0, 8).filter(({ status }) => status === 201);
  assert.ok(made.length > 0);
  assert.equal(new Set(made.map(({ body }) => body.id)).size, 1);
  assert.ok(answers.every(({ status }) => status === 201 || status === 409));
  const again = await send(ada);
  assert.equal(again.headers.get('idempotency-replayed'), 'true');
  assert.deepEqual(again.body, made[0]?.body);
  assert.equal(again.headers.get('location'), made[0]?.headers.get('location'));
  assert.equal((await send(ada, { title: 'another' })).body.code, 'idempotency-key-reused');
  assert.equal((await eventsOf('article.created', title)).length, 3);
});

test('an article that the database refuses fails alone', async (t) => {
  const mark = newId();
  await sql`alter table articles add constraint no_poison check (title not like '%poison%') not valid`.execute(
    server.db,
  );
  t.after(async () => {
    await sql`alter table articles drop constraint no_poison`.execute(server.db);
  });
  const answers = await Promise.all(
    Array.from({ length: 20 }, (_, index) =>
      ada.request('POST', '/articles', { json: { title: index === 13 ? `${mark} poison` : `${mark} good` } }),
    ),
  );
  assert.deepEqual(
    answers.map(({ status }) => status),
    answers.map((_answer, index) => (index === 13 ? 500 : 201)),
  );
  assert.equal((await eventsOf('article.created', mark)).length, 19);
});

test('creations that share a commit are each delivered once', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, kinds: ['article.created'] });
  const answers = await Promise.all(
    Array.from({ length: 20 }, (_, index) =>
      app.request('POST', '/articles', { json: { title: `Article ${index}` } }),
    ),
  );
  const received = await subscriber.waitFor(20);
  assert.deepEqual(
    received.map(({ body }) => JSON.parse(body).article.id).sort(),
    answers.map(({ body }) => body.id).sort(),
  );
  const { rows } = await until(
    async () => sql<{ count: string }>`select count(*) as count from outbox`.execute(server.db),
    ({ rows: [row] }) => row?.count === '0',
  );
  assert.equal(rows.length, 1);
});
