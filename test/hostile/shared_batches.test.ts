/**
 * Creations of all accounts share statements. A resource whose parent, or whose author, is being deleted must not hold them up: the
 * deletion of an article with very many comments, or of an account with very many articles, takes long.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { ClientCache } from '../../src/clients/client_cache.ts';
import { openDatabase, poolStatus, type Transaction } from '../../src/database/database.ts';
import { Notifications } from '../../src/database/notifications.ts';
import { createApiUser } from '../support/clients/api_client.ts';
import { createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

// The limits of a server that is installed.
const limits = { NUNCIO_CONCURRENT_REQUESTS: '64', NUNCIO_RATE_LIMIT: '600' };
const server = await startTestServer({ after }, limits);
const attacker = await createApiUser(server);
const victim = await createApiUser(server);

async function createArticle(user: typeof attacker): Promise<string> {
  const { body } = await user.request('POST', '/articles', { json: { title: 'a', body: 'b' } });
  await user.request('POST', `/articles/${body.id}/publish`);
  return body.id;
}

/** Runs the work while a transaction, which stands for a long deletion, has executed the statement. */
async function during<T>(
  deletion: (tx: Transaction) => Promise<unknown>,
  work: () => Promise<T>,
): Promise<T> {
  const begun = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const deleting = server.db
    .transaction()
    .execute(async (tx) => {
      await deletion(tx);
      begun.resolve();
      await ended.promise;
      throw new Error('rolled back');
    })
    .catch((error: Error) => begun.reject(error));
  await begun.promise;
  try {
    return await work();
  } finally {
    ended.resolve();
    await deleting;
  }
}

/** Sends requests one by one, without waiting, so that they come into different batches. */
async function sendApart(send: () => Promise<unknown>, count: number): Promise<Promise<unknown>[]> {
  const sent: Promise<unknown>[] = [];
  for (let index = 0; index < count; index += 1) {
    sent.push(send());
    await sleep(150);
  }
  return sent;
}

test('comments on an article that is being deleted do not stop the comments of others', async () => {
  const doomed = await createArticle(attacker);
  const other = await createArticle(victim);
  const comment = { json: { body: 'c' } };
  let sent: Promise<unknown>[] = [];
  const { status } = await during(
    (tx) => sql`delete from articles where id = ${doomed}`.execute(tx),
    async () => {
      sent = await sendApart(() => attacker.request('POST', `/articles/${doomed}/comments`, comment), 6);
      return victim.request('POST', `/articles/${other}/comments`, comment);
    },
  );
  assert.equal(status, 201);
  await Promise.all(sent);
});

test('articles of an account that is being deleted do not stop the articles of others', async () => {
  const article = { json: { title: 'a', body: 'b' } };
  let sent: Promise<unknown>[] = [];
  const { status } = await during(
    (tx) => sql`select from accounts where id = ${attacker.account.id} for update`.execute(tx),
    async () => {
      sent = await sendApart(() => attacker.request('POST', '/articles', article), 6);
      return victim.request('POST', '/articles', article);
    },
  );
  assert.equal(status, 201);
  await Promise.all(sent);
});

test('lookups of very many unknown apps take few connections, and find an app among them', async (t) => {
  const db = openDatabase({ connectionString: server.databaseUrl, connectionsMax: 3 });
  t.after(() => db.destroy());
  const clients = new ClientCache(db, new Notifications(server.databaseUrl, () => {}));
  const known = await createTestClient(server);
  const before = poolStatus(db).acquired;
  const ids = Array.from({ length: 500 }, (_, index) => `unknown-${index}`);
  const found = await Promise.all([...ids, known.id].map((id) => clients.find(id)));
  assert.deepEqual(
    found.flatMap((each) => (each === undefined ? [] : [each.client.id, each.secrets.length])),
    [known.id, 1],
  );
  assert.ok(poolStatus(db).acquired - before < 20, String(poolStatus(db).acquired - before));
});
