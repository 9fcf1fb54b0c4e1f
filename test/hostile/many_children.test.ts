/** Deletions of resources with very many in their sub-collections run one after the other on a node. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { createApiUser } from '../support/clients/api_client.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;

/** @returns a user's article with comments */
async function articleWith(comments: number) {
  const user = await createApiUser(server);
  const { body, status } = await user.request('POST', '/articles', { json: { title: 'a', body: 'b' } });
  assert.equal(status, 201);
  await sql`
    insert into article_comments (id, parent_id, author, body)
    select gen_random_uuid(), ${body.id}, ${user.account.id}, 'a' from generate_series(1, ${comments}::int)`.execute(
    db,
  );
  return { ...user, path: `/articles/${body.id}` };
}

test('attack: users delete articles with thousands of comments at the same time', async () => {
  const many = await Promise.all(Array.from({ length: 4 }, () => articleWith(1_200)));
  const few = await articleWith(3);
  let deleted: Promise<{ status: number }[]> = Promise.resolve([]);
  await db.transaction().execute(async (tx) => {
    await sql`lock table article_comments in share mode`.execute(tx);
    deleted = Promise.all(many.map(({ request, path }) => request('DELETE', path)));
    const waiting = async () => {
      const { rows } = await sql<{ count: number }>`
        select count(*)::int from pg_locks where relation = 'article_comments'::regclass and not granted`.execute(
        db,
      );
      return rows[0]?.count;
    };
    await until(waiting, (count) => count === 1);
    assert.equal(
      (
        await few.request('PATCH', few.path, {
          json: { title: 'c' },
          headers: { 'content-type': 'application/merge-patch+json' },
        })
      ).status,
      200,
    );
    assert.equal(await waiting(), 1);
  });
  const statuses = (await deleted).map(({ status }) => status);
  // One may have waited for the lock for too long.
  assert.ok(
    statuses.every((status) => status === 204 || status === 503) && statuses.includes(204),
    `${statuses}`,
  );
});
