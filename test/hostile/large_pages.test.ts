/**
 * Lists of the largest resources: all clients of a node share its memory and its server thread, so a page is short when its resources
 * are large. Control characters make six bytes of JSON each.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { type ApiUser, createApiUser } from '../support/clients/api_client.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createApp, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const pageBytesMax = 4_200_000;
const largest = { article: 65_536, comment: 10_000 };

/** Adds the largest articles that the API accepts. */
async function addArticles({ account }: ApiUser, count: number): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    insert into articles (id, author, title, body, state)
    select gen_random_uuid(), ${account.id}, 'a', repeat(chr(1), ${largest.article}::int), 'published'
    from generate_series(1, ${count}::int)
    returning id`.execute(server.db);
  return rows.map(({ id }) => id);
}

async function addComments({ account }: ApiUser, articles: readonly string[], count: number): Promise<void> {
  await sql`
    insert into article_comments (id, parent_id, author, body)
    select gen_random_uuid(), article, ${account.id}, repeat(chr(1), ${largest.comment}::int)
    from unnest(${articles}::uuid[]) as article, generate_series(1, ${count}::int)`.execute(server.db);
}

/** Follows the links. @returns the ids of all resources, after it has checked each page */
async function readPages(user: ApiUser, first: string): Promise<string[]> {
  const ids: string[] = [];
  for (let path: string | undefined = first; path !== undefined; ) {
    const { status, body, text } = await user.request('GET', path);
    assert.equal(status, 200);
    assert.ok(text.length <= pageBytesMax, `a page has ${text.length} characters`);
    ids.push(...body.items.map(({ id }: { id: string }) => id));
    path = body._links.next?.href;
  }
  return ids;
}

test('a page of the largest resources is short, and its links lead to all of them', async () => {
  const user = await createApiUser(server);
  const articles = await addArticles(user, 60);
  const byId = await readPages(user, `/articles?author=${user.account.id}&limit=200`);
  assert.deepEqual(byId, articles.toSorted().reverse());
  const byTime = await readPages(user, `/articles?author=${user.account.id}&limit=200&sort=published_at`);
  assert.deepEqual(byTime, articles.toSorted());
});

test('a page of short resources has as many as asked for', async () => {
  const user = await createApiUser(server);
  await sql`
    insert into articles (id, author, title, body, state)
    select gen_random_uuid(), ${user.account.id}, 'a', repeat('b', 10000), 'published' from generate_series(1, 201)`.execute(
    server.db,
  );
  const { body } = await user.request('GET', `/articles?author=${user.account.id}&limit=200`);
  assert.equal(body.items.length, 200);
  assert.ok(body._links.next);
});

test('a page with the largest embedded resources is short', async () => {
  const user = await createApiUser(server);
  const [first = '', ...others] = await addArticles(user, 30);
  await addComments(user, others, 20);
  const withComments = `/articles?author=${user.account.id}&limit=200&expand=comments&fields=title`;
  assert.equal((await readPages(user, withComments)).length, 30);
  // Many resources embed the same large one.
  await sql`
    insert into article_comments (id, parent_id, author, body)
    select gen_random_uuid(), ${first}, ${user.account.id}, 'c' from generate_series(1, 40)`.execute(
    server.db,
  );
  assert.equal((await readPages(user, `/articles/${first}/comments?limit=200&expand=article`)).length, 40);
});

test('a delivery with very many large responses shows the newest', async (t) => {
  const subscriber = await startSubscriber(t, (_received, response) => response.end('\u0001'.repeat(16_000)));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, kinds: ['article.*'] });
  await app.request('POST', '/articles', { json: { title: 'a' } });
  const { body } = await until(
    () => app.request('GET', `/subscriptions/${id}/deliveries`),
    (page) => page.body.items[0]?.state === 'succeeded',
  );
  await sql`
    insert into attempts (day, lane, sequence, started_at, number, trigger, status, truncated, revision, duration_ms, headers, body)
    select day, lane, sequence, started_at + copy * interval '1 second', copy + 1, 'm', status, truncated, revision,
      duration_ms, headers, body
    from attempts a cross join generate_series(1, 900) as copy
    where lane = (select lane from subscriptions where id = ${id})`.execute(server.db);
  const details = await app.request('GET', `/deliveries/${body.items[0].id}`);
  assert.ok(details.text.length < 8_000_000, `the delivery has ${details.text.length} characters`);
  const { attempts } = details.body;
  assert.equal(attempts.length, 901);
  const [oldest, newest] = [attempts[0], attempts.at(-1)];
  assert.deepEqual([oldest.response, oldest.response_omitted], [null, true]);
  assert.deepEqual([newest.response.body.length, newest.response_omitted], [16_000, false]);
});
