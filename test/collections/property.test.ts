/**
 * Random operations of two users, compared with a small model of who may see and do what. Every response, the
 * final lists and the published events must agree.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import fc from 'fast-check';
import { sql } from 'kysely';
import { type ApiUser, createApiUser } from '../support/clients/api_client.ts';
import { runs } from '../support/runner/tier.ts';
import { startTestServer } from '../support/servers/server.ts';

const sequences = runs(200, 1_000);

const server = await startTestServer({ after });
const users = [await createApiUser(server), await createApiUser(server)] as const;

interface Article {
  id: string;
  owner: number;
  title: string;
  body: string;
  isPublished: boolean;
  isGone: boolean;
  comments: { body: string; author: number }[];
  /** The current tag, and an outdated one. */
  etag: string;
  staleEtag: string;
  events: string[];
}

const user = fc.nat({ max: 1 });
const which = fc.nat({ max: 3 });
const title = fc.constantFrom('', 'a', 'b', 'Ä'.repeat(200), 'x'.repeat(201));
const text = fc.constantFrom('', 'text', '😀');
const condition = fc.constantFrom('none', 'none', 'fresh', 'stale', 'any');

const operation = fc.oneof(
  { weight: 4, arbitrary: fc.record({ do: fc.constant('create' as const), user, title }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('read' as const), user, which }) },
  {
    weight: 3,
    arbitrary: fc.record({ do: fc.constant('replace' as const), user, which, title, text, condition }),
  },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('merge' as const), user, which, title, condition }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('patch' as const), user, which, text, condition }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('publish' as const), user, which, condition }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('delete' as const), user, which, condition }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('comment' as const), user, which, text }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('comments' as const), user, which }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('list' as const), user }) },
);
type Operation = typeof operation extends fc.Arbitrary<infer O> ? O : never;
type Changing = Extract<Operation, { condition: string }>;

const nowhere = '01981f6e-7c5a-7d3e-9f21-3b8a5d0c6e11';
const isTitle = (value: string) => value.length >= 1 && [...value].length <= 200;

test(`users and the model agree in ${sequences} sequences`, async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(operation, { minLength: 1, maxLength: 14 }), async (operations) => {
      await sql`delete from articles`.execute(server.db);
      const articles: Article[] = [];
      for (const each of operations) await step(articles, each);
      await compareAtTheEnd(articles);
    }),
    { numRuns: sequences },
  );
});

async function step(articles: Article[], operation: Operation): Promise<void> {
  const caller = users[operation.user] as ApiUser;
  if (operation.do === 'create') return create(articles, caller, operation.user, operation.title);
  if (operation.do === 'list') return compareList(articles, operation.user);
  const article = articles[operation.which];
  const path = `/articles/${article?.id ?? nowhere}`;
  const isSeen =
    article !== undefined && !article.isGone && (article.owner === operation.user || article.isPublished);
  switch (operation.do) {
    case 'read': {
      const answer = await caller.request('GET', path);
      assert.equal(answer.status, isSeen ? 200 : 404);
      if (isSeen) compare(answer.body, article, operation.user);
      return;
    }
    case 'comments': {
      const answer = await caller.request('GET', `${path}/comments`);
      assert.equal(answer.status, isSeen ? 200 : 404);
      if (!isSeen) return;
      assert.deepEqual(
        answer.body.items.map((item: { body: string; author: string }) => [item.body, item.author]).reverse(),
        article.comments.map(({ body, author }) => [body, users[author]?.account.id]),
      );
      return;
    }
    case 'comment': {
      const answer = await caller.request('POST', `${path}/comments`, { json: { body: operation.text } });
      if (operation.text === '') assert.equal(answer.status, 422);
      else assert.equal(answer.status, isSeen ? 201 : 404);
      if (answer.status !== 201) return;
      article?.comments.push({ body: operation.text, author: operation.user });
      article?.events.push('comment.created');
      return;
    }
    default:
      return change(article, isSeen, path, caller, operation);
  }
}

async function create(articles: Article[], caller: ApiUser, owner: number, title: string): Promise<void> {
  const answer = await caller.request('POST', '/articles', { json: { title } });
  assert.equal(answer.status, isTitle(title) ? 201 : 422);
  if (answer.status !== 201) return;
  const etag = answer.headers.get('etag') as string;
  const article: Article = {
    id: answer.body.id,
    owner,
    title,
    body: '',
    isPublished: false,
    isGone: false,
    comments: [],
    etag,
    staleEtag: '"0.none.0"',
    events: ['article.created'],
  };
  compare(answer.body, article, owner);
  articles.push(article);
}

async function change(
  article: Article | undefined,
  isSeen: boolean,
  path: string,
  caller: ApiUser,
  operation: Changing,
): Promise<void> {
  const tags = {
    none: undefined,
    any: '*',
    fresh: article?.etag ?? '"x"',
    stale: article?.staleEtag ?? '"x"',
  };
  const tag = tags[operation.condition as keyof typeof tags];
  const headers: Record<string, string> = tag === undefined ? {} : { 'if-match': tag };
  const answer = await send(caller, path, operation, headers);
  if (!isSeen || article === undefined) return assert.equal(answer.status, 404);
  if (article.owner !== operation.user) return assert.equal(answer.status, 403);
  if (operation.condition === 'stale') return assert.equal(answer.status, 412);
  const before = { ...article };
  switch (operation.do) {
    case 'replace':
    case 'merge':
      if (!isTitle(operation.title)) return assert.equal(answer.status, 422);
      article.title = operation.title;
      if (operation.do === 'replace') article.body = operation.text;
      break;
    case 'patch':
      article.body = operation.text;
      break;
    case 'publish':
      if (article.isPublished) return assert.equal(answer.status, 409);
      article.isPublished = true;
      break;
    case 'delete':
      article.isGone = true;
      article.events.push('article.deleted');
      return assert.equal(answer.status, 204);
  }
  assert.equal(answer.status, 200);
  compare(answer.body, article, operation.user);
  const isChanged =
    before.title !== article.title ||
    before.body !== article.body ||
    before.isPublished !== article.isPublished;
  const etag = answer.headers.get('etag') as string;
  assert.equal(etag === article.etag, !isChanged, 'a tag changes only with the resource');
  if (!isChanged) return;
  article.staleEtag = article.etag;
  article.etag = etag;
  article.events.push(operation.do === 'publish' ? 'article.published' : 'article.updated');
}

function send(caller: ApiUser, path: string, operation: Changing, headers: Record<string, string>) {
  switch (operation.do) {
    case 'replace':
      return caller.request('PUT', path, { json: { title: operation.title, body: operation.text }, headers });
    case 'merge':
      return caller.request('PATCH', path, { json: { title: operation.title }, headers });
    case 'patch':
      return caller.request('PATCH', path, {
        raw: JSON.stringify([{ op: 'replace', path: '/body', value: operation.text }]),
        headers: { ...headers, 'content-type': 'application/json-patch+json' },
      });
    case 'publish':
      return caller.request('POST', `${path}/publish`, { headers });
    case 'delete':
      return caller.request('DELETE', path, { headers });
  }
}

function compare(body: Record<string, unknown>, article: Article, viewer: number): void {
  const { title, body: text, state, author, _links } = body;
  assert.deepEqual(
    [title, text, state, author],
    [
      article.title,
      article.body,
      article.isPublished ? 'published' : 'draft',
      users[article.owner as 0 | 1].account.id,
    ],
  );
  const mayPublish = !article.isPublished && article.owner === viewer;
  assert.equal(Object.hasOwn(_links as object, 'publish'), mayPublish);
}

async function compareList(articles: readonly Article[], viewer: number): Promise<void> {
  const { body } = await (users[viewer] as ApiUser).request('GET', '/articles?limit=200');
  const seen = articles.filter(
    (article) => !article.isGone && (article.owner === viewer || article.isPublished),
  );
  assert.deepEqual(
    body.items.map((item: { id: string }) => item.id),
    seen.map((article) => article.id).reverse(),
  );
  for (const [index, article] of seen.toReversed().entries()) compare(body.items[index], article, viewer);
}

async function compareAtTheEnd(articles: readonly Article[]): Promise<void> {
  await compareList(articles, 0);
  await compareList(articles, 1);
  const { rows } = await sql<{ article: string; kind: string; account_id: string }>`
    select body::jsonb->'article'->>'id' as article, kind, account_id from events
    where body::jsonb->'article'->>'id' = any(${articles.map((article) => article.id)}) order by position`.execute(
    server.db,
  );
  for (const article of articles) {
    const told = rows.filter((row) => row.article === article.id);
    assert.deepEqual(
      told.map((row) => row.kind),
      article.events,
    );
    assert.ok(told.every((row) => row.account_id === users[article.owner as 0 | 1].account.id));
  }
}
