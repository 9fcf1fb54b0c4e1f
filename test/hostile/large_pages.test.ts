/**
 * Lists of the largest resources: all clients of a node share its memory and its server thread, so a page is short when its resources
 * are large. Control characters make six bytes of JSON each.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { type KyselyPlugin, sql } from 'kysely';
import { ClientCache } from '../../src/clients/client_cache.ts';
import { listResources } from '../../src/collections/list.ts';
import { readListQuery } from '../../src/collections/query.ts';
import { newId } from '../../src/crypto/ids.ts';
import { createSealer } from '../../src/crypto/sealing.ts';
import type { Database } from '../../src/database/database.ts';
import { Notifications } from '../../src/database/notifications.ts';
import type { Principal } from '../../src/grants/principal.ts';
import { loadPlatform } from '../../src/platform.ts';
import { loadLanes } from '../../src/webhooks/lanes/lane_store.ts';
import { AgentCursors } from '../../src/webhooks/subscriptions/agent_cursor.ts';
import { findSubscription } from '../../src/webhooks/subscriptions/subscription.ts';
import { type ApiUser, createApiUser } from '../support/clients/api_client.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { addNode } from '../support/database/other_node.ts';
import { startTestServer, testSecret } from '../support/servers/server.ts';
import { createApp, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const pageBytesMax = 4_200_000;
/** Of a list of resources: half a mebibyte, and links. */
const listBytesMax = 600_000;
const loadRules = {
  ...{ sealer: createSealer(testSecret, 'subscription-secret'), cursors: new AgentCursors(testSecret) },
  ...{ webhookId: 'event' as const, appSubscriptions: 'all' as const },
};
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

/** @returns the columns with values that the statements of the work return */
async function columnsRead(
  db: Database,
  work: (db: Database) => Promise<unknown>,
): Promise<ReadonlySet<string>> {
  const read = new Set<string>();
  const plugin: KyselyPlugin = {
    transformQuery: ({ node }) => node,
    async transformResult({ result }) {
      for (const row of result.rows) for (const name in row) if (row[name] !== null) read.add(name);
      return result;
    },
  };
  await work(db.withPlugin(plugin));
  return read;
}

/** As large as the API accepts. */
function withLargestFilter() {
  const texts = Array.from({ length: 100 }, (_none, index) => `${index}`.padEnd(62, 'x'));
  const filter = { all: Array.from({ length: 10 }, () => ({ path: '/ref', in: texts })) };
  return { url: 'http://127.0.0.1:9009/hooks', kinds: ['push'], filter };
}

/** Follows the links. @returns the ids of all resources, after it has checked each page */
async function readPages(
  user: Pick<ApiUser, 'request'>,
  first: string,
  charactersMax = pageBytesMax,
): Promise<string[]> {
  const ids: string[] = [];
  for (let path: string | undefined = first; path !== undefined; ) {
    const { status, body, text } = await user.request('GET', path);
    assert.equal(status, 200);
    assert.ok(text.length <= charactersMax, `a page has ${text.length} characters`);
    ids.push(...body.items.map((item: { id?: string; client_id?: string }) => item.id ?? item.client_id));
    path = body._links.next?.href;
  }
  return ids;
}

test('a page of the largest resources is short, and its links lead to all of them', async () => {
  const user = await createApiUser(server);
  const articles = await addArticles(user, 60);
  const byId = await readPages(user, `/articles?author=${user.account.id}&limit=200`, listBytesMax);
  assert.deepEqual(byId, articles.toSorted().reverse());
  const byTime = await readPages(
    user,
    `/articles?author=${user.account.id}&limit=200&sort=published_at`,
    listBytesMax,
  );
  assert.deepEqual(byTime, articles.toSorted());
});

test('texts count as JSON only as far as their characters need more there', async () => {
  const user = await createApiUser(server);
  await sql`
    insert into articles (id, author, title, body, state)
    select gen_random_uuid(), ${user.account.id}, 'a', repeat('\u00e9 "b" c\n', 5000), 'published' from generate_series(1, 8)`.execute(
    server.db,
  );
  const { body } = await user.request('GET', `/articles?author=${user.account.id}&limit=8`);
  assert.equal(body.items.length, 8);
  // Below the length from which on it matters.
  const other = await createApiUser(server);
  await sql`
    insert into articles (id, author, title, body, state)
    select gen_random_uuid(), ${other.account.id}, 'a', repeat(chr(1), 2048), 'published' from generate_series(1, 50)`.execute(
    server.db,
  );
  const short = await other.request('GET', `/articles?author=${other.account.id}&limit=50`);
  assert.equal(short.body.items.length, 50);
});

test('a page of short resources has as many as asked for', async () => {
  const user = await createApiUser(server);
  await sql`
    insert into articles (id, author, title, body, state)
    select gen_random_uuid(), ${user.account.id}, 'a', repeat('b', 2500), 'published' from generate_series(1, 201)`.execute(
    server.db,
  );
  const { body } = await user.request('GET', `/articles?author=${user.account.id}&limit=200`);
  assert.equal(body.items.length, 200);
  assert.ok(body._links.next);
});

test('attack: the largest articles of another account do not shorten lists without their texts', async () => {
  const [hostile, user] = [await createApiUser(server), await createApiUser(server)];
  const articles = await addArticles(hostile, 60);
  const path = `/articles?author=${hostile.account.id}&limit=60`;
  for (const [query, members] of [
    ['fields=title', ['_links', 'id', 'title']],
    ['fields=title&sort=published_at', ['_links', 'id', 'title']],
    ['fields=author,state&state=published', ['_links', 'author', 'id', 'state']],
  ] as const) {
    const { status, body } = await user.request('GET', `${path}&${query}`);
    assert.equal(status, 200, query);
    assert.deepEqual(body.items.map(({ id }: { id: string }) => id).toSorted(), articles.toSorted());
    assert.deepEqual(Object.keys(body.items[0]).toSorted(), members);
  }
  const whole = await user.request('GET', `${path}&fields=title,body`);
  assert.ok(whole.body.items.length < 40, `${whole.body.items.length} items`);
  assert.ok(whole.body._links.next);
});

test('a list reads only the columns that it shows and that its links need', async () => {
  const user = await createApiUser(server);
  await addArticles(user, 3);
  const [articles] = (await loadPlatform(null)).collections;
  assert.ok(articles);
  // Only a guard makes a whole principal, from a token. Lists read these two members.
  const principal = { accountId: user.account.id, scopes: new Set(['write:posts']) } as unknown as Principal;
  const columnsFor = async (query: Record<string, string>) =>
    (
      await columnsRead(server.db, (db) =>
        listResources(db, articles, principal, readListQuery(articles, query)),
      )
    )
      .difference(new Set(['_fitting', '_sort_keys']))
      .values()
      .toArray()
      .toSorted();
  assert.ok((await columnsFor({})).includes('body'));
  // `state` decides whether a resource has a link to publish it.
  assert.deepEqual(await columnsFor({ fields: 'title' }), ['author', 'id', 'state', 'title']);
  assert.deepEqual(await columnsFor({ fields: 'title', sort: 'published_at' }), [
    'author',
    'id',
    'state',
    'title',
  ]);
  assert.deepEqual(await columnsFor({ fields: 'id' }), ['author', 'id', 'state']);
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

test('attack: a page embeds as many of very many long comments as have half a mebibyte', async () => {
  const user = await createApiUser(server);
  const articles = await addArticles(user, 50);
  await sql`update articles set body = '' where author = ${user.account.id}`.execute(server.db);
  await addComments(user, articles, 21);
  await sql`update article_comments set body = repeat('c', ${largest.comment}::int) where author = ${user.account.id}`.execute(
    server.db,
  );
  const path = `/articles?author=${user.account.id}&limit=50&expand=comments&fields=title`;
  const { body } = await user.request('GET', path);
  const embedded = body.items.map(
    (item: { _embedded: { comments: { items: unknown[] } } }) => item._embedded.comments,
  );
  assert.deepEqual(
    embedded.map(({ items }: { items: unknown[] }) => items.length),
    Array(Math.ceil(524_288 / (21 * largest.comment))).fill(20),
  );
  assert.equal((await readPages(user, path)).length, 50);
});

test('a page of subscriptions with the largest filters is short, and its links lead to all', async () => {
  const app = await createApp(server);
  const made: string[] = [];
  for (let count = 0; count < 70; count += 1) made.push((await subscribe(app, withLargestFilter())).id);
  assert.deepEqual(await readPages(app, '/subscriptions?limit=200'), made);
  const { body } = await app.request('GET', '/subscriptions?limit=2');
  assert.equal(body.items.length, 2);
});

/** Adds apps as large as registrations may be, or nearly. @returns their ids, the newest first */
async function addApps(accountId: string, name: string, count: number): Promise<string[]> {
  const uris = Array.from({ length: 20 }, (_none, index) =>
    `https://app.example/${index}`.padEnd(2_048, 'x'),
  );
  const keys = Array.from({ length: 20 }, (_none, index) => ({
    kty: 'any',
    kid: `${index}`.padEnd(3_200, 'x'),
  }));
  const metadata = { post_logout_redirect_uris: uris, jwks: { keys } };
  const { rows } = await sql<{ id: string }>`
    with made as (
      insert into clients (id, origin, name, redirect_uris, grant_types, scopes, auth_method, require_pkce, may_subscribe,
        metadata, created_at)
      select gen_random_uuid(), 'account', ${name}, ${uris}, '{}', '{}', 'none', true, false, ${JSON.stringify(metadata)},
        now() - number * interval '1 minute'
      from generate_series(1, ${count}::int) as number returning id, created_at
    ), members as (
      insert into app_members (client_id, account_id, role) select id, ${accountId}, 'developer' from made
    )
    select id from made order by created_at desc`.execute(server.db);
  return rows.map(({ id }) => id);
}

test('a page of the largest apps is short, and its links lead to all', async () => {
  const user = await createConsoleUser(server);
  const admin = await createConsoleUser(server, { isAdmin: true });
  const name = newId();
  const apps = await addApps(user.account.id, name, 60);
  assert.deepEqual(await readPages(user, '/apps?limit=200'), apps.toSorted());
  assert.deepEqual(await readPages(user, '/apps?limit=7'), apps.toSorted());
  assert.deepEqual(await readPages(admin, `/admin/apps?limit=200&name=${name}`), apps.toSorted());
  const newest = await readPages(admin, '/admin/apps?limit=200&state=unverified&origin=account');
  assert.deepEqual(newest.slice(-apps.length), apps);
});

test('a page of the longest traces is short, and its links lead to all', async () => {
  const user = await createConsoleUser(server);
  const admin = await createConsoleUser(server, { isAdmin: true });
  const app = (await addApps(user.account.id, newId(), 1))[0] ?? '';
  const { rows } = await sql<{ id: string }>`
    with made as (
      insert into connections (id, started_at, updated_at, client_id, is_known, outcome, keys, request_ids, source, steps)
      -- Two of each time, so that pages also end between these.
      select gen_random_uuid(), date_trunc('milliseconds', now()) - number / 2 * interval '1 minute', now(), ${app}, true, 'refused', '{}', '{}', 'a', (
        select jsonb_agg(jsonb_build_object('name', 'token', 'at', now(), 'outcome', 'refused', 'error', null,
          'explanation', repeat('x', 600), 'request', null)) from generate_series(1, 40))
      from generate_series(1, 150) as number
      returning id, started_at)
    select id from made order by started_at desc, id desc`.execute(server.db);
  const all = rows.map(({ id }) => id);
  for (const [reader, path] of [
    [user, `/apps/${app}/connections?limit=200`],
    [user, `/apps/${app}/connections?limit=7`],
    [admin, `/admin/connections?client=${app}&limit=200`],
  ] as const) {
    assert.deepEqual(await readPages(reader, path, 1_200_000), all);
  }
});

test('the cache of apps holds as many as have 64 MiB', async () => {
  const user = await createConsoleUser(server);
  const apps = await addApps(user.account.id, newId(), 600);
  const cache = new ClientCache(server.db, new Notifications(server.databaseUrl, () => {}));
  for (const id of apps) assert.equal((await cache.find(id))?.client.id, id);
  const kept = apps.filter((id) => cache.isCached(id));
  assert.ok(kept.length > 300 && kept.length < 500, `${kept.length} are kept`);
  assert.deepEqual(kept, apps.slice(-kept.length));
});

test('requests and lanes do not read what only fan-out evaluates, and lanes read no filter', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, withLargestFilter());
  const owner = { kind: 'grant', ...app } as const;
  const found = await columnsRead(server.db, (db) =>
    findSubscription(db, { ...owner, accountId: app.account.id }, id),
  );
  assert.deepEqual([found.has('filter'), found.has('filter_path')], [true, false]);
  const node = '7';
  await addNode(server.db, node);
  const { rows } = await sql<{ lane: string }>`
    update lane_progress set owner = ${node}::bigint, due_at = null where lane = (select lane from subscriptions where id = ${id})
    returning lane`.execute(server.db);
  const loaded = await columnsRead(server.db, (db) =>
    loadLanes(db, node, [Number(rows[0]?.lane)], loadRules, (error) => assert.fail(error)),
  );
  assert.deepEqual(
    ['url', 'secret', 'filter', 'filter_path'].map((name) => loaded.has(name)),
    [true, true, false, false],
  );
});

test('a delivery with very many large responses shows the newest, and its body as it was published', async (t) => {
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
  const published = '{ "a": 1.0, "a": [1e2,  "\\u0041"] }';
  await sql`update events set body = ${published} where id = ${body.items[0].event}`.execute(server.db);
  const details = await app.request('GET', `/deliveries/${body.items[0].id}`);
  // 256 KiB of responses, and less than 1,000 characters of each attempt besides.
  assert.ok(details.text.length < 262_144 + 100_000, `the delivery has ${details.text.length} characters`);
  const { attempts } = details.body;
  assert.deepEqual([details.body.attempt_count, attempts.length], [901, 100]);
  const omitted = attempts.map((each: { response_omitted: boolean }) => each.response_omitted);
  // JSON makes 96,000 of each.
  assert.deepEqual(omitted, [...Array(98).fill(true), false, false]);
  assert.equal(attempts[97].response, null);
  assert.equal(attempts[99].response.body.length, 16_000);
  assert.equal(details.headers.get('content-type'), 'application/json; charset=utf-8');
  assert.ok(details.text.includes(`"body":${published},`), 'not parsed');
});
