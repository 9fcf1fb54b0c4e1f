/**
 * Requests share the node's database connections. Requests of one account that wait for one locked row must leave the others some: the
 * deletion of an article with very many comments holds such a lock for long, and its author can send any number of changes meanwhile.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { createApiUser } from '../support/clients/api_client.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

// The limits of a server that is installed.
const limits = { NUNCIO_CONCURRENT_REQUESTS: '128', NUNCIO_RATE_LIMIT: '600' };
const server = await startTestServer({ after }, limits);
const attacker = await createApiUser(server);
const victim = await createApiUser(server);

test('changes of an article that is being deleted leave the others connections', async () => {
  const { body: article } = await attacker.request('POST', '/articles', { json: { title: 'a', body: 'b' } });
  const begun = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const deleting = server.db
    .transaction()
    .execute(async (tx) => {
      await sql`delete from articles where id = ${article.id}`.execute(tx);
      begun.resolve();
      await ended.promise;
      throw new Error('rolled back');
    })
    .catch((error: Error) => begun.reject(error));
  await begun.promise;
  const changes = Array.from({ length: 100 }, () =>
    attacker.request('PATCH', `/articles/${article.id}`, {
      raw: '{"title":"c"}',
      headers: { 'content-type': 'application/merge-patch+json' },
    }),
  );
  try {
    await until(
      async () => {
        const { rows } = await sql<{ count: number }>`
          select count(*)::int from pg_locks where not granted and locktype in ('transactionid', 'tuple')`.execute(
          server.db,
        );
        return rows[0]?.count ?? 0;
      },
      (waiting) => waiting >= 8,
    );
    const { status } = await victim.request('GET', '/articles');
    assert.equal(status, 200);
  } finally {
    ended.resolve();
    await deleting;
    await Promise.allSettled(changes);
  }
});
