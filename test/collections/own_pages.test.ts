/** What a page costs a user with very many resources that everybody may read. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { readListQuery } from '../../src/collections/query.ts';
import type { ResourceType } from '../../src/collections/resource_type.ts';
import { isIndexed } from '../../src/collections/table.ts';
import { loadPlatform } from '../../src/platform.ts';
import { createApiUser } from '../support/clients/api_client.ts';
// First, so that it sees the server's connections.
import { captureStatements, planModes, rowsOf } from '../support/database/plans.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });

test('the user’s own resources are not read in search of those of others', async () => {
  const [user, other] = [await createApiUser(server), await createApiUser(server)];
  const publish = (author: string, count: number, days: number) =>
    sql`
    insert into articles (id, author, created_at, updated_at, title, state, published_at)
    select gen_random_uuid(), ${author}, now(), now(), 'article ' || n, 'published', now() - ${days}::int * interval '1 day' - n * interval '1 s'
      from generate_series(1, ${count}::int) n`.execute(server.db);
  await publish(other.account.id, 5, 2);
  await publish(user.account.id, 5_000, 1);
  await sql`analyze articles`.execute(server.db);
  for (const query of ['limit=10', 'limit=10&sort=-published_at', `limit=10&author=${user.account.id}`]) {
    for (const mode of planModes) {
      const statements = await captureStatements(mode, async () => {
        const { status, body } = await user.request('GET', `/articles?${query}`);
        assert.equal(status, 200);
        assert.equal(body.items.length, 10);
      });
      const rows = rowsOf(statements);
      assert.ok(rows > 0 && rows < 200, `${query} ${mode}: ${rows} rows`);
    }
  }
  // Of the user and of others, each once.
  const seen = new Set<string>();
  for (let path = '/articles?limit=200&sort=-published_at'; path !== undefined; ) {
    const { body } = await user.request('GET', path);
    for (const { id } of body.items) seen.add(id);
    path = body._links.next?.href;
  }
  assert.equal(seen.size, 5_005);
});

test('a list that takes no turns reads few rows, whatever its owner has', async () => {
  const { collections } = await loadPlatform(null);
  const articles = collections[0] as ResourceType;
  const [user, other] = [await createApiUser(server), await createApiUser(server)];
  // The drafts come first in one order and last in the other.
  for (const { account } of [user, other]) {
    await sql`
      insert into articles (id, author, created_at, updated_at, title, state, published_at)
      select gen_random_uuid(), ${account.id}, now(), now(), 'article ' || n, state,
        case when state = 'published' then now() - n * interval '1 s' end
      from generate_series(1, 3000) n, unnest(array['draft', 'published']) as state`.execute(server.db);
  }
  await sql`analyze articles`.execute(server.db);
  const slow: string[] = [];
  for (const sort of ['created_at', '-created_at', 'published_at', '-published_at']) {
    for (const state of ['', '&state=draft', '&state=published']) {
      for (const author of ['', user.account.id, other.account.id]) {
        const text = `limit=10&sort=${sort}${state}${author === '' ? '' : `&author=${author}`}`;
        const query = readListQuery(articles, Object.fromEntries(new URLSearchParams(text)));
        const statements = await captureStatements('force_custom_plan', async () => {
          assert.equal((await user.request('GET', `/articles?${text}`)).status, 200);
        });
        const rows = rowsOf(statements);
        if (!isIndexed(articles, query, user.account.id)) slow.push(`${text}: ${rows}`);
        else assert.ok(rows < 200, `${text}: ${rows} rows`);
      }
    }
  }
  assert.ok(
    slow.some((each) => Number(each.split(': ')[1]) >= 3_000),
    slow.join('; '),
  );
});

test('the comments of one article are not read in search of those of others', async () => {
  const [user, other] = [await createApiUser(server), await createApiUser(server)];
  const create = async ({ request }: typeof user) =>
    (await request('POST', '/articles', { json: { title: 'a' } })).body.id as string;
  const [own, popular] = [await create(user), await create(other)];
  await sql`
    insert into article_comments (id, parent_id, author, created_at, body)
    select gen_random_uuid(), ${popular}, ${other.account.id}, now(), 'b' from generate_series(1, 20000)`.execute(
    server.db,
  );
  await sql`analyze article_comments`.execute(server.db);
  // The statistics know of one article with comments.
  await user.request('POST', `/articles/${own}/comments`, { json: { body: 'first' } });
  for (const mode of planModes) {
    const statements = await captureStatements(mode, async () => {
      const { body } = await user.request('GET', `/articles/${own}?expand=comments`);
      assert.equal(body._embedded.comments.items.length, 1);
    });
    const rows = rowsOf(statements);
    assert.ok(rows > 0 && rows < 200, `${mode}: ${rows} rows`);
  }
});
