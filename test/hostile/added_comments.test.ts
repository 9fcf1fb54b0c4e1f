/**
 * Comments on articles of others: their events use the queues of the article's owner, whose own deliveries would wait. So an account
 * adds a limited number per minute to resources of others.
 */

import assert from 'node:assert/strict';
import { after, mock, test } from 'node:test';
import { sql } from 'kysely';
import { defineChild, defineCollection, Type } from '../../src/index.ts';
import { createPlatform } from '../../src/platform.ts';
import { type ApiUser, createApiUser } from '../support/clients/api_client.ts';
import { callTool, mcpToken } from '../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { startTestServer, type TestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const body = Type.String({ minLength: 1, maxLength: 100 });
const limit = 3;
const platform = createPlatform({
  collections: [
    defineCollection({
      name: 'posts',
      item: 'post',
      scope: 'posts',
      fields: { body },
      readable: { body: 'open' },
      children: [
        defineChild({
          name: 'replies',
          item: 'reply',
          fields: { body },
          events: ['created'],
          addedPerMinute: limit,
          example: { body: 'x' },
        }),
      ],
      example: { body: 'x' },
    }),
  ],
  mcp: { enabled: true },
});
// Above what the tests send.
const requestLimit = { NUNCIO_RATE_LIMIT: '1000' };
const shipped = await startTestServer({ after }, requestLimit);
const server = await startTestServer({ after }, requestLimit, 'dev', platform);

// Limits end with the minute.
mock.timers.enable({ apis: ['Date'], now: Date.now() });
after(() => mock.timers.reset());

async function createArticle({ request }: ApiUser): Promise<string> {
  const { body: article } = await request('POST', '/articles', { json: { title: 'a' } });
  assert.equal((await request('POST', `/articles/${article.id}/publish`)).status, 200);
  return `/articles/${article.id}/comments`;
}

async function createPost({ request }: ApiUser, text = 'open'): Promise<string> {
  const { status, body: post } = await request('POST', '/posts', { json: { body: text } });
  assert.equal(status, 201);
  return `/posts/${post.id}/replies`;
}

async function add({ request }: ApiUser, path: string, key?: string): Promise<number> {
  const headers: Record<string, string> = key === undefined ? {} : { 'idempotency-key': key };
  return (await request('POST', path, { json: { body: 'x' }, headers })).status;
}

async function addMany(user: ApiUser, path: string, count: number): Promise<number[]> {
  return (await Promise.all(Array.from({ length: count }, () => add(user, path)))).toSorted();
}

/** The comments or replies of a user, and the events of all. */
async function stored({ db }: TestServer, table: string, kind: string, { account }: ApiUser) {
  const { rows } = await sql<{ resources: number; events: number }>`
    select (select count(*)::int from ${sql.table(table)} where author = ${account.id}) as resources,
      (select count(*)::int from events where kind = ${kind} and body like ${`%${account.id}%`}) as events`.execute(
    db,
  );
  return rows[0];
}

test('attack: of comments of several apps on articles of others, an account stores 60 per minute', async () => {
  const account = await createTestAccount(shipped);
  const apps = await Promise.all(
    [1, 2, 3].map(() => createApiUser(shipped, ['read:posts', 'write:posts'], account)),
  );
  const [attacker] = apps as [ApiUser, ...ApiUser[]];
  const [one, other] = [await createApiUser(shipped), await createApiUser(shipped)];
  const articles = [await createArticle(one), await createArticle(other)];
  const own = await createArticle(attacker);
  const statuses = await Promise.all(
    apps.flatMap((app) => articles.flatMap((path) => Array.from({ length: 20 }, async () => add(app, path)))),
  );
  assert.deepEqual(statuses.toSorted(), [...Array(60).fill(201), ...Array(60).fill(429)]);
  assert.deepEqual(await stored(shipped, 'article_comments', 'comment.created', attacker), {
    resources: 60,
    events: 60,
  });
  const [path = ''] = articles;
  const refused = await attacker.request('POST', path, { json: { body: 'x' } });
  assert.equal(refused.body.code, 'rate-limited');
  assert.equal(refused.body.detail, 'The limit is 60 comments on articles of others per minute.');
  assert.ok(Number(refused.headers.get('retry-after')) > 0);
  assert.deepEqual(
    ['ratelimit-limit', 'ratelimit-remaining'].map((name) => refused.headers.get(name)),
    ['60', '0'],
  );
  // Others, and what belongs to the account itself, are not limited.
  assert.deepEqual(await addMany(other, path, 5), Array(5).fill(201));
  assert.deepEqual(await addMany(attacker, own, 5), Array(5).fill(201));
  const { headers } = await attacker.request('POST', own, { json: { body: 'x' } });
  assert.equal(headers.get('ratelimit-limit'), '1000');
});

test('comments on own resources do not count, and the next minute begins again', async () => {
  const [user, owner] = [await createApiUser(server), await createApiUser(server)];
  const [own, path] = [await createPost(user), await createPost(owner)];
  assert.deepEqual(await addMany(user, own, 2 * limit), Array(2 * limit).fill(201));
  assert.deepEqual(await addMany(user, path, limit + 1), [...Array(limit).fill(201), 429]);
  mock.timers.tick(60_000);
  assert.deepEqual(await addMany(user, path, limit + 1), [...Array(limit).fill(201), 429]);
});

test('a resource that others cannot read stays hidden above the limit, and counts nothing', async () => {
  const [user, owner] = [await createApiUser(server), await createApiUser(server)];
  const [open, hidden] = [await createPost(owner), await createPost(owner, 'draft')];
  assert.deepEqual(await addMany(user, hidden, limit + 1), Array(limit + 1).fill(404));
  assert.deepEqual(await addMany(user, open, limit + 1), [...Array(limit).fill(201), 429]);
  assert.equal(await add(user, hidden), 404);
});

test('repeats with an idempotency key count once, and a refused request does not use up its key', async () => {
  const [user, owner] = [await createApiUser(server), await createApiUser(server)];
  const path = await createPost(owner);
  for (let count = 0; count < 2 * limit; count += 1) assert.equal(await add(user, path, 'first'), 201);
  assert.deepEqual(await addMany(user, path, limit), [...Array(limit - 1).fill(201), 429]);
  assert.equal(await add(user, path, 'second'), 429);
  assert.equal(await add(user, path, 'first'), 201);
  mock.timers.tick(60_000);
  assert.equal(await add(user, path, 'second'), 201);
  assert.deepEqual(await stored(server, 'post_replies', 'reply.created', user), {
    resources: limit + 1,
    events: limit + 1,
  });
});

test('attack: tools of agents add no more than the API', async () => {
  const account = await createTestAccount(server);
  const [user, owner] = [await createApiUser(server, undefined, account), await createApiUser(server)];
  const path = await createPost(owner);
  const scopes = ['read:posts', 'write:posts'];
  const { accessToken } = await mcpToken(server, {
    account,
    client: await createTestClient(server, { scopes }),
    scopes,
  });
  const call = () =>
    callTool(server, accessToken, 'post_replies_create', { id: path.split('/')[2], body: 'x' });
  assert.deepEqual(await addMany(user, path, limit - 1), Array(limit - 1).fill(201));
  assert.equal((await call()).isError, undefined);
  const { isError, content } = await call();
  assert.equal(isError, true);
  assert.match(
    content[0].text,
    /^The limit is 3 replies on posts of others per minute\. Try again in \d+ seconds\.$/,
  );
  assert.equal(await add(user, path), 429);
});

test('attack: creations that the database refuses do not count those that share their batch again', async () => {
  const [attacker, user, owner] = await Promise.all([1, 2, 3].map(() => createApiUser(server)));
  assert.ok(attacker && user && owner);
  const [own, path] = [await createPost(attacker), await createPost(owner)];
  await sql`alter table post_replies add constraint refused check (body <> 'refused')`.execute(server.db);
  const refused = Array.from({ length: 20 }, () =>
    attacker.request('POST', own, { json: { body: 'refused' } }),
  );
  assert.deepEqual(await addMany(user, path, limit), Array(limit).fill(201));
  for (const each of refused) assert.ok((await each).status >= 400);
  await sql`alter table post_replies drop constraint refused`.execute(server.db);
});

test('what an account adds at another node counts', async () => {
  const [user, owner] = [await createApiUser(server), await createApiUser(server)];
  const path = await createPost(owner);
  const key = `added post_replies ${user.account.id}`;
  await sql`insert into rate_windows (key, minute, used) values (${key}, ${Math.floor(Date.now() / 60_000)}, ${limit})`.execute(
    server.db,
  );
  assert.equal(await add(user, path), 201);
  await until(
    async () =>
      (await sql<{ used: string }>`select used from rate_windows where key = ${key}`.execute(server.db)).rows,
    ([row]) => Number(row?.used) === limit + 1,
  );
  // The node may not have read the row yet.
  await until(
    () => add(user, path),
    (status) => status === 429,
  );
  const { resources = 0 } = (await stored(server, 'post_replies', 'reply.created', user)) ?? {};
  assert.ok(resources < limit, `${resources} replies`);
});

test('without limits of requests there is none of comments', async (t) => {
  const unlimited = await startTestServer(t, {}, 'dev', platform);
  const [user, owner] = [await createApiUser(unlimited), await createApiUser(unlimited)];
  assert.deepEqual(await addMany(user, await createPost(owner), 3 * limit), Array(3 * limit).fill(201));
});
