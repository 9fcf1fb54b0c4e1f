/** Pages of large resources: how much is on one, and who waits for whom. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { type ApiUser, createApiUser } from '../support/clients/api_client.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after }, { NUNCIO_RATE_LIMIT: '0' });

/** Adds articles as they are stored. */
async function addArticles(user: ApiUser, count: number, body: string): Promise<void> {
  await sql`
    insert into articles (id, author, title, body)
    select gen_random_uuid(), ${user.account.id}, 'x', ${body} from generate_series(1, ${count}::int)`.execute(
    server.db,
  );
}

async function countOfPage(user: ApiUser): Promise<number> {
  const { status, body } = await user.request('GET', '/articles?limit=50');
  assert.equal(status, 200);
  return body.items.length;
}

test('a page has half a mebibyte of texts as JSON, or one resource', async () => {
  const [user, other] = [await createApiUser(server), await createApiUser(server)];
  await addArticles(user, 20, 'a'.repeat(65_000));
  assert.equal(await countOfPage(user), 8);
  await addArticles(other, 2, 'a'.repeat(600_000));
  assert.equal(await countOfPage(other), 1);
});

test('attack: lists of a caller that has read much wait only for each other', async () => {
  const [large, other] = [await createApiUser(server), await createApiUser(server)];
  await addArticles(large, 20, '\u0001'.repeat(65_536));
  // Two mebibytes, with one article each.
  for (let count = 0; count < 6; count += 1) assert.equal(await countOfPage(large), 1);
  const flood = Array.from({ length: 30 }, () => large.request('GET', '/articles?limit=50'));
  const others = Array.from({ length: 12 }, () => other.request('GET', '/articles?limit=50'));
  for (const { status } of await Promise.all(others)) assert.equal(status, 200);
  const statuses = (await Promise.all(flood)).map(({ status }) => status);
  assert.ok(statuses.includes(200));
  // Ten may wait.
  assert.ok(statuses.includes(503), statuses.join());
});

test('attack: large embedded lists count also when the client has them, and take the same turns', async () => {
  const [large, other] = [await createApiUser(server), await createApiUser(server)];
  const article = (await large.request('POST', '/articles', { json: { title: 'x', body: 'x' } })).body.id;
  await sql`
    insert into article_comments (id, parent_id, author, body)
    select gen_random_uuid(), ${article}, ${large.account.id}, ${'\u0001'.repeat(10_000)} from generate_series(1, 20)`.execute(
    server.db,
  );
  const url = `/articles/${article}?expand=comments`;
  const tag = (await large.request('GET', url)).headers.get('etag') ?? '';
  const again = () => large.request('GET', url, { headers: { 'if-none-match': tag } });
  for (let count = 0; count < 3; count += 1) assert.equal((await again()).status, 304);
  const flood = Array.from({ length: 30 }, again);
  const plain = large.request('GET', `/articles/${article}`);
  const others = Array.from({ length: 12 }, () => other.request('GET', '/articles?limit=50'));
  for (const { status } of await Promise.all([...others, plain])) assert.equal(status, 200);
  const statuses = new Set((await Promise.all(flood)).map(({ status }) => status));
  assert.deepEqual(statuses, new Set([304, 503]));
});
