/** Expansions: what is embedded, for whom, how much, and how responses are cached. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import fc from 'fast-check';
import { sql } from 'kysely';
import { embed } from '../../src/collections/expansions.ts';
import { listResources } from '../../src/collections/list.ts';
import { readListQuery } from '../../src/collections/query.ts';
import type { ResourceType } from '../../src/collections/resource_type.ts';
import { newId } from '../../src/crypto/ids.ts';
import type { Database } from '../../src/database/database.ts';
import type { Principal } from '../../src/grants/principal.ts';
import { type ApiUser, createApiUser } from '../support/clients/api_client.ts';
import { testPlatform, testScopes } from '../support/servers/platform.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after }, {}, 'dev', testPlatform);
const ada = await createApiUser(server, testScopes);
const bob = await createApiUser(server, testScopes);
const articles = testPlatform.collections.find(({ name }) => name === 'articles') as ResourceType;

interface Item {
  id: string;
  title: string;
  body: string;
  [member: string]: unknown;
}

async function newArticle(user: ApiUser, title: string, comments = 0): Promise<Item> {
  const { body } = await user.request('POST', '/articles', { json: { title } });
  for (let index = 0; index < comments; index++) {
    const path = `/articles/${body.id}/comments`;
    await user.request('POST', path, { json: { body: `${title}, comment ${index}` } });
  }
  return body;
}

test('an article expands its comments: the first page, newest first, with a link to the rest', async () => {
  const { id } = await newArticle(ada, 'Busy', 23);
  const plain = await ada.request('GET', `/articles/${id}`);
  const { status, body, text } = await ada.request('GET', `/articles/${id}?expand=comments`);
  assert.equal(status, 200, text);
  const { _embedded, ...rest } = body;
  assert.deepEqual(rest, plain.body);
  assert.equal(text, JSON.stringify(body));
  const { items, _links } = _embedded.comments;
  assert.deepEqual(
    items.map((item: Item) => item.body),
    Array.from({ length: 20 }, (_, index) => `Busy, comment ${22 - index}`),
  );
  assert.deepEqual((await ada.request('GET', _links.self.href)).body.items, items);
  const rest3 = await ada.request('GET', _links.next.href);
  assert.equal(rest3.body.items.length, 3);
  assert.equal(rest3.body._links.next, undefined);
  assert.deepEqual(items[0], (await ada.request('GET', items[0]._links.self.href)).body);
});

test('an expansion is an empty page without comments, and has no next link with 20', async () => {
  const none = await newArticle(ada, 'Quiet');
  const { body } = await ada.request('GET', `/articles/${none.id}?expand=comments`);
  assert.deepEqual(body._embedded, {
    comments: { items: [], _links: { self: { href: `/articles/${none.id}/comments?limit=20` } } },
  });
  const full = await newArticle(ada, 'Full', 20);
  const { comments } = (await ada.request('GET', `/articles/${full.id}?expand=comments`)).body._embedded;
  assert.equal(comments.items.length, 20);
  assert.equal(comments._links.next, undefined);
});

test('a comment expands its article, alone and in a list, without further expansion', async () => {
  const article = await newArticle(ada, 'Above', 2);
  const shown = (await ada.request('GET', `/articles/${article.id}`)).body;
  const list = await ada.request('GET', `/articles/${article.id}/comments?expand=article`);
  assert.equal(list.text, JSON.stringify(list.body));
  assert.equal(list.body.items.length, 2);
  for (const item of list.body.items) {
    assert.deepEqual(item._embedded, { article: shown });
    const one = await ada.request('GET', `${item._links.self.href}?expand=article`);
    assert.deepEqual(one.body, item);
  }
  // Links to actions are shown to the same users as without expansion.
  assert.ok(shown._links.publish);
  await ada.request('POST', `/articles/${article.id}/publish`);
  const seen = await bob.request('GET', `/articles/${article.id}/comments?expand=article&limit=1`);
  assert.equal(seen.body.items[0]._embedded.article._links.publish, undefined);
  assert.match(seen.body._links.next.href, /expand=article/);
});

test('each resource of a list gets its own expansion, and fields do not apply to it', async () => {
  const user = await createApiUser(server);
  for (const count of [0, 2, 1]) await newArticle(user, `Has ${count}`, count);
  const { body, text } = await user.request(
    'GET',
    `/articles?author=${user.account.id}&expand=comments&fields=title`,
  );
  assert.equal(text, JSON.stringify(body));
  for (const item of body.items) {
    assert.deepEqual(Object.keys(item), ['id', 'title', '_links', '_embedded']);
    const bodies = item._embedded.comments.items.map((comment: Item) => comment.body);
    const count = Number(item.title.slice(4));
    assert.deepEqual(
      bodies,
      Array.from({ length: count }, (_, index) => `${item.title}, comment ${count - 1 - index}`),
    );
    for (const comment of item._embedded.comments.items)
      assert.ok(!Object.hasOwn(comment, '_embedded') && comment.author === user.account.id);
  }
});

test('an unknown expansion is 400 like an unknown field', async () => {
  const { id } = await newArticle(ada, 'x');
  for (const path of ['/articles', `/articles/${id}`]) {
    for (const value of [
      '',
      'author',
      'comments,secret',
      'Comments',
      'self',
      'publish',
      '__proto__',
      'comments;',
    ]) {
      const { status, body } = await ada.request('GET', `${path}?expand=${value}`);
      assert.equal(status, 400, value);
      const [fault] = body.errors;
      assert.deepEqual(fault, { pointer: '/expand', message: 'must be a comma-separated list of comments' });
    }
    const twice = await ada.request('GET', `${path}?expand=comments&expand=comments`);
    assert.equal(twice.status, 400);
    assert.equal((await ada.request('GET', `${path}?expand=comments, comments`)).status, 200);
  }
  const none = await ada.request('GET', '/bookmarks?expand=author');
  assert.equal(none.body.errors[0].pointer, '/expand');
  assert.match(none.body.errors[0].message, /^is not one of/);
});

test('the ETag covers what is expanded, and If-Modified-Since is ignored', async () => {
  const { id } = await newArticle(ada, 'Tagged', 1);
  const [plainPath, path] = [`/articles/${id}`, `/articles/${id}?expand=comments`];
  const get = async (url: string, headers: Record<string, string> = {}) => {
    const answer = await ada.request('GET', url, { headers });
    return { status: answer.status, etag: answer.headers.get('etag') as string, headers: answer.headers };
  };
  const [plain, expanded] = [await get(plainPath), await get(path)];
  assert.notEqual(expanded.etag, plain.etag);
  assert.equal(expanded.headers.get('last-modified'), null);
  assert.equal(expanded.headers.get('vary'), plain.headers.get('vary'));
  assert.equal(expanded.headers.get('cache-control'), 'private, no-cache');
  assert.equal((await get(path, { 'if-none-match': expanded.etag })).status, 304);
  assert.equal((await get(path, { 'if-none-match': plain.etag })).status, 200);
  assert.equal((await get(plainPath, { 'if-none-match': expanded.etag })).status, 200);
  const later = new Date(Date.now() + 3_600_000).toUTCString();
  assert.equal((await get(path, { 'if-modified-since': later })).status, 200);
  assert.equal((await get(`${path}&fields=title`)).etag === expanded.etag, false);

  await bob.request('GET', plainPath);
  await ada.request('POST', `/articles/${id}/comments`, { json: { body: 'One more' } });
  const after = await get(path, { 'if-none-match': expanded.etag });
  assert.equal(after.status, 200);
  assert.notEqual(after.etag, expanded.etag);
  assert.equal((await get(plainPath, { 'if-none-match': plain.etag })).status, 304);

  // A write compares only the tag of the resource itself, so new comments do not matter.
  const json = { title: 'Tagged, and changed' };
  const changed = await ada.request('PATCH', plainPath, { json, headers: { 'if-match': plain.etag } });
  assert.equal(changed.status, 200);
  assert.equal((await get(path, { 'if-none-match': after.etag })).status, 200);
  assert.equal(
    (await ada.request('PATCH', plainPath, { json, headers: { 'if-match': after.etag } })).status,
    412,
  );
});

test('the ETag of a comment with its article changes with the article', async () => {
  const { id } = await newArticle(ada, 'Changing', 1);
  const [comment] = (await ada.request('GET', `/articles/${id}/comments`)).body.items;
  const path = `${comment._links.self.href}?expand=article`;
  const tag = (await ada.request('GET', path)).headers.get('etag') as string;
  const again = () => ada.request('GET', path, { headers: { 'if-none-match': tag } });
  assert.equal((await again()).status, 304);
  await ada.request('PATCH', `/articles/${id}`, { json: { title: 'Changed' } });
  const { status, body } = await again();
  assert.equal(status, 200);
  assert.equal(body._embedded.article.title, 'Changed');
});

test('PUT accepts an expanded representation that GET returned', async () => {
  const { id } = await newArticle(ada, 'Back', 1);
  const { body } = await ada.request('GET', `/articles/${id}?expand=comments`);
  const json = { ...body, title: 'Back again' };
  const { status, body: put, text } = await ada.request('PUT', `/articles/${id}`, { json });
  assert.equal(status, 200, text);
  assert.equal(put.title, 'Back again');
  assert.equal(put._embedded, undefined);
});

test('a page of 200 costs one more statement and expands 1,000 resources at most', async () => {
  const user = await createApiUser(server);
  await sql`
    with made as (
      insert into articles (id, author, title)
      select gen_random_uuid(), ${user.account.id}, 'bulk' from generate_series(1, 200) returning id
    )
    insert into article_comments (id, parent_id, author, body)
    select gen_random_uuid(), made.id, ${user.account.id}, 'c' from made, generate_series(1, 22)`.execute(
    server.db,
  );
  const { counted, count } = countStatements(server.db);
  const principal = principalOf(user);
  for (const [limit, size] of [
    [200, 5],
    [100, 10],
    [50, 20],
    [1, 20],
  ] as const) {
    const parameters = { limit: String(limit), author: user.account.id, expand: 'comments' };
    const query = readListQuery(articles, parameters);
    const { cells, count: shown } = await listResources(counted, articles, principal, query);
    const before = count();
    const embedded = await embed(counted, principal, cells, query.expand, shown, limit);
    assert.equal(count() - before, 1);
    // The additional row that shows whether there is a next page is not expanded.
    assert.equal(embedded.write(limit), ',"_embedded":{}');
    for (let index = 0; index < limit; index++) {
      const { comments } = JSON.parse(embedded.write(index).slice(',"_embedded":'.length));
      assert.equal(comments.items.length, size);
      assert.equal(comments._links.self.href, `/articles/${cells.ids[index]}/comments?limit=${size}`);
      assert.ok(comments._links.next);
    }
  }
  // Two expansions share the limit of embedded resources per response.
  const { cells } = await listResources(
    server.db,
    articles,
    principal,
    readListQuery(articles, { limit: '50', author: user.account.id }),
  );
  const [link] = articles.expansions;
  assert.ok(link);
  const two = await embed(server.db, principal, cells, [link, { ...link, name: 'again' }], 1, 50);
  const { comments, again } = JSON.parse(two.write(0).slice(',"_embedded":'.length));
  assert.equal(comments.items.length, 10);
  assert.deepEqual(again, comments);
  const { body } = await user.request('GET', `/articles?author=${user.account.id}&limit=200&expand=comments`);
  const [{ _embedded: first }] = body.items;
  const more = await user.request('GET', first.comments._links.next.href);
  const seen = [...first.comments.items, ...more.body.items].map((item: Item) => item.id);
  assert.equal(new Set(seen).size, 10);
});

test('expanded pages are read by an index, however many comments exist', async () => {
  await sql`analyze article_comments`.execute(server.db);
  const { rows } = await sql<{ 'QUERY PLAN': string }>`
    explain select p.id, page.* from unnest(array[gen_random_uuid()]) as wanted (id)
      join articles p on p.id = wanted.id
     cross join lateral (
       select json_agg(v.body) from (
         select * from article_comments where parent_id = p.id order by id desc limit 21
       ) as v
     ) as page`.execute(server.db);
  const plan = rows.map((row) => row['QUERY PLAN']).join('\n');
  assert.doesNotMatch(plan, /Seq Scan/, plan);
});

test('a resource hidden after its page was read is not expanded', async () => {
  const draft = await newArticle(ada, 'A secret', 1);
  const [comment] = (await ada.request('GET', `/articles/${draft.id}/comments`)).body.items;
  const comments = articles.children.find(({ name }) => name === 'comments') as ResourceType;
  const none = new Map<string, readonly string[]>();
  for (const [type, cells] of [
    [articles, { ids: [draft.id], parentIds: [], columns: none }],
    [comments, { ids: [comment.id], parentIds: [draft.id], columns: none }],
  ] as const) {
    const read = async (user: ApiUser) =>
      (await embed(server.db, principalOf(user), cells, type.expansions, 1, 1)).write(0);
    assert.equal(await read(bob), ',"_embedded":{}');
    assert.match(await read(ada), /A secret/);
  }
});

/** The author, one of two users, and whether everyone can read it. */
interface Made {
  id: string;
  owner: number;
  isPublished: boolean;
}

const step = fc.oneof(
  fc.record({ do: fc.constant('create' as const), user: fc.nat({ max: 1 }) }),
  fc.record({ do: fc.constant('publish' as const), user: fc.nat({ max: 1 }), which: fc.nat({ max: 4 }) }),
  fc.record({ do: fc.constant('comment' as const), user: fc.nat({ max: 1 }), which: fc.nat({ max: 4 }) }),
);

test('no expansion returns another user’s draft or its comments', async () => {
  const users = [await createApiUser(server), await createApiUser(server)] as const;
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 12 }), async (steps) => {
      await sql`delete from articles`.execute(server.db);
      const made: Made[] = [];
      for (const each of steps) {
        const user = users[each.user] as ApiUser;
        if (each.do === 'create') {
          const { id } = await newArticle(user, `of ${each.user}`);
          made.push({ id, owner: each.user, isPublished: false });
          continue;
        }
        const article = made[each.which];
        if (article === undefined) continue;
        const path = `/articles/${article.id}`;
        if (each.do === 'comment') await user.request('POST', `${path}/comments`, { json: { body: 'c' } });
        else {
          const { status } = await user.request('POST', `${path}/publish`);
          if (status === 200) article.isPublished = true;
        }
      }
      for (const [index, user] of users.entries()) await compare(user, index, made);
    }),
    { numRuns: 60 },
  );
});

async function compare(user: ApiUser, index: number, made: readonly Made[]): Promise<void> {
  const mayRead = ({ owner, isPublished }: Made) => owner === index || isPublished;
  const list = await user.request('GET', '/articles?expand=comments');
  const seen = list.body.items.map((item: Item) => item.id);
  assert.deepEqual(
    seen.toSorted(),
    made
      .filter(mayRead)
      .map(({ id }) => id)
      .toSorted(),
  );
  for (const { id } of made.filter((article) => !mayRead(article))) assert.ok(!list.text.includes(id));
  for (const article of made) {
    const path = `/articles/${article.id}`;
    const expected = mayRead(article) ? 200 : 404;
    assert.equal((await user.request('GET', `${path}?expand=comments`)).status, expected);
    assert.equal((await user.request('GET', `${path}/comments?expand=article`)).status, expected);
  }
}

function principalOf(user: ApiUser): Principal {
  const scopes = new Set(['read:posts']);
  const made = { accountId: user.account.id, clientId: 'x', grantId: newId(), tokenId: 'x', scopes };
  // Only the guard creates principals, and this test has no request for it.
  return made as unknown as Principal;
}

/** A database handle that counts statements. */
function countStatements(db: Database): { counted: Database; count: () => number } {
  let statements = 0;
  const counted = db.withPlugin({
    transformQuery: ({ node }) => {
      statements += 1;
      return node;
    },
    transformResult: async ({ result }) => result,
  });
  return { counted, count: () => statements };
}
