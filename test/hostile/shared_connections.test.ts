/**
 * Requests share the node's database connections. Requests of some accounts that wait for locked rows must leave the others some: the
 * deletion of an article with very many comments holds such a lock for long, and its author can send any number of changes meanwhile.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { type ApiUser, createApiUser } from '../support/clients/api_client.ts';
import { clientToken, createTestClient, postForm } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { type App, createApp, subscribe, until } from '../support/webhooks/apps.ts';

// The limits of a server that is installed.
const limits = { NUNCIO_CONCURRENT_REQUESTS: '64', NUNCIO_RATE_LIMIT: '600' };
const server = await startTestServer({ after }, limits);
const victim = await createApiUser(server);

const patch = (user: ApiUser, path: string, title: string, headers: Record<string, string> = {}) =>
  user.request('PATCH', path, {
    raw: JSON.stringify({ title }),
    headers: { 'content-type': 'application/merge-patch+json', ...headers },
  });

async function createArticle(user: ApiUser): Promise<string> {
  const { body } = await user.request('POST', '/articles', { json: { title: 'a', body: 'b' } });
  return `/articles/${body.id}`;
}

/** Deletes articles without end. @returns ends it, so that the articles remain */
async function holdDeletions(paths: readonly string[]): Promise<() => Promise<void>> {
  const begun = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const ids = paths.map((path) => path.slice('/articles/'.length));
  const deleting = server.db
    .transaction()
    .execute(async (tx) => {
      await sql`delete from articles where id = any(${ids}::uuid[])`.execute(tx);
      begun.resolve();
      await ended.promise;
      throw new Error('rolled back');
    })
    .catch((error: Error) => begun.reject(error));
  await begun.promise;
  return () => {
    ended.resolve();
    return deleting;
  };
}

/** Resolves when so many changes wait for locks, and so many looks later still as many do. */
async function untilLocksAreAwaited(atLeast: number, looks: number): Promise<void> {
  let last = -1;
  let same = 0;
  await until(
    async () => {
      const { rows } = await sql<{ count: number }>`
        select count(*)::int from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'`.execute(server.db);
      const count = rows[0]?.count ?? 0;
      same = count === last ? same + 1 : 0;
      last = count;
      return count;
    },
    (count) => count >= atLeast && same >= looks,
  );
}

for (const accounts of [1, 4]) {
  test(`changes of ${accounts} accounts' articles that are being deleted leave the others connections`, async () => {
    const attackers: { user: ApiUser; path: string }[] = [];
    for (let count = 0; count < accounts; count += 1) {
      const user = await createApiUser(server);
      attackers.push({ user, path: await createArticle(user) });
    }
    const own = await createArticle(victim);
    const end = await holdDeletions(attackers.map(({ path }) => path));
    const changes = attackers.flatMap(({ user, path }) =>
      Array.from({ length: 100 }, () => patch(user, path, 'c')),
    );
    try {
      await untilLocksAreAwaited(3, 3);
      const { status } = await victim.request('GET', '/articles');
      assert.equal(status, 200);
      assert.equal((await patch(victim, own, 'c')).status, 200);
      assert.equal(
        (await victim.request('POST', '/articles', { json: { title: 'a', body: 'b' } })).status,
        201,
      );
    } finally {
      await end();
      await Promise.allSettled(changes);
    }
  });
}

test('changes and ends of thirty users’ locked subscriptions leave connections to reads and tokens', async () => {
  const client = await createTestClient(server);
  const attackers: App[] = [];
  for (let count = 0; count < 30; count += 1) attackers.push(await createApp(server));
  const paths = await Promise.all(
    attackers.map(async (app) => {
      const { id } = await subscribe(app, { url: 'http://127.0.0.1:9999/', signature: 'timestamp' });
      return `/subscriptions/${id}`;
    }),
  );
  const locked = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const holding = server.db.transaction().execute(async (tx) => {
    const accounts = attackers.map(({ account }) => account.id);
    await sql`select from subscriptions where account_id = any(${accounts}::uuid[]) for update`.execute(tx);
    locked.resolve();
    await ended.promise;
  });
  await locked.promise;
  const headers = { 'content-type': 'application/merge-patch+json' };
  const changes = attackers.map(({ request }, index) =>
    index % 2 === 0
      ? request('PATCH', paths[index] as string, { raw: '{"description":"x"}', headers })
      : request('DELETE', paths[index] as string),
  );
  try {
    await untilLocksAreAwaited(6, 3);
    assert.equal((await victim.request('GET', '/articles')).status, 200);
    await clientToken(server, client, ['read:posts']);
  } finally {
    ended.resolve();
    await holding;
    await Promise.allSettled(changes);
  }
});

test('a change that waits too long for a row is refused, and a short wait is not', async () => {
  const author = await createApiUser(server);
  const path = await createArticle(author);
  const end = await holdDeletions([path]);
  const { status, headers, body } = await patch(author, path, 'c');
  assert.deepEqual([status, body.code, headers.get('retry-after')], [503, 'busy', '1']);
  const patient = patch(author, path, 'd');
  await untilLocksAreAwaited(1, 0);
  await end();
  assert.deepEqual([(await patient).status, (await patient).body.title], [200, 'd']);
});

test('concurrent changes of one article take turns, and one of those with the same If-Match is made', async () => {
  const author = await createApiUser(server);
  const path = await createArticle(author);
  const all = await Promise.all(
    Array.from({ length: 20 }, (_none, index) => patch(author, path, `${index}`)),
  );
  assert.deepEqual(new Set(all.map(({ status }) => status)), new Set([200]));
  const { headers } = await author.request('GET', path);
  const both = await Promise.all(
    ['x', 'y'].map((title) => patch(author, path, title, { 'if-match': headers.get('etag') as string })),
  );
  assert.deepEqual(both.map(({ status }) => status).sort(), [200, 412]);
});

test('ends and changes of thirty users together leave connections to reads, introspections and tokens', async () => {
  const client = await createTestClient(server);
  const api = await createTestClient(server, { scopes: ['read:tokens'] });
  const ends: [App, string][] = [];
  const changes: [ApiUser, string][] = [];
  for (let count = 0; count < 15; count += 1) {
    const app = await createApp(server);
    const { id } = await subscribe(app, { url: 'http://127.0.0.1:9999/', signature: 'timestamp' });
    ends.push([app, `/subscriptions/${id}`]);
    const user = await createApiUser(server);
    changes.push([user, await createArticle(user)]);
  }
  const token = await clientToken(server, client, ['read:posts']);
  const locked = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const holding = server.db.transaction().execute(async (tx) => {
    await sql`select from subscriptions for update`.execute(tx);
    await sql`select from articles for update`.execute(tx);
    locked.resolve();
    await ended.promise;
  });
  await locked.promise;
  const sent = [
    ...changes.map(([user, path]) => patch(user, path, 'b')),
    ...ends.map(([{ request }, path]) => request('DELETE', path)),
  ];
  try {
    await untilLocksAreAwaited(9, 3);
    assert.equal((await victim.request('GET', '/articles')).status, 200);
    await clientToken(server, client, ['read:posts']);
    const { body } = await postForm(server, '/oauth/introspect', api, { token });
    assert.equal(body.active, true);
  } finally {
    ended.resolve();
    await holding;
    await Promise.allSettled(sent);
  }
});
