/** The notifications of changed subscriptions: few for any number of them, and each makes nodes read the lanes that it names. */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import pg from 'pg';
import { createAccount } from '../../../src/accounts/account.ts';
import { newId } from '../../../src/crypto/ids.ts';
import { createGrant, endClient, withdrawGrant } from '../../../src/grants/grant.ts';
import { createTestClient } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);

/** Runs the work. @returns the payloads of the notifications that it sent about lanes */
async function payloadsOf(t: TestContext, work: () => Promise<unknown>): Promise<string[]> {
  const client = new pg.Client({ connectionString: server.databaseUrl });
  await client.connect();
  t.after(() => client.end());
  const payloads: string[] = [];
  const { promise, resolve } = Promise.withResolvers<void>();
  client.on('notification', ({ payload = '' }) =>
    payload === 'the end' ? resolve() : payloads.push(payload),
  );
  await client.query('listen "nuncio.lane_changed"');
  await work();
  await sql`select announce('lane_changed', 'the end')`.execute(db);
  await promise;
  return payloads.sort();
}

/** Adds subscriptions of a grant of a new account. @returns the grant and the lanes */
async function addGrant(clientId: string, count: number): Promise<{ grant: string; lanes: string[] }> {
  const { id: account } = await createAccount(db, { email: `${newId()}@example.com`, password: null });
  const grant = await createGrant(db, { accountId: account, clientId, scopes: ['read:posts'] });
  const { rows } = await sql<{ lane: string }>`
    with made as (
      insert into subscriptions (id, lane, owner, grant_id, account_id, client_id, url, kinds, signature, secret)
      select gen_random_uuid(), (random() * 1e15)::bigint, 'grant', ${grant}, ${account}, ${clientId}, 'http://127.0.0.1/',
        '{push}', 'timestamp', ''
      from generate_series(1, ${count}::int)
      returning lane
    ),
    tail as (insert into lanes (id) select lane from made),
    head as (insert into lane_progress (lane) select lane from made)
    select lane from made`.execute(db);
  return { grant, lanes: rows.map(({ lane }) => lane) };
}

test('the end of a grant is announced lane by lane, or once if it has many subscriptions', async (t) => {
  const { id } = await createTestClient(server);
  const few = await addGrant(id, 3);
  const many = await addGrant(id, 300);
  assert.deepEqual(await payloadsOf(t, () => withdrawGrant(db, few.grant, 'user')), few.lanes.sort());
  assert.deepEqual(await payloadsOf(t, () => withdrawGrant(db, many.grant, 'user')), [`grant:${many.grant}`]);
});

for (const how of ['deleted', 'disabled']) {
  test(`the end of an app is announced once when it is ${how}, however many grants it has`, async (t) => {
    const { id } = await createTestClient(server);
    for (let count = 0; count < 110; count += 1) await addGrant(id, 2);
    const end = () =>
      how === 'deleted'
        ? endClient(db, id)
        : sql`update clients set disabled_at = now() where id = ${id}`.execute(db);
    const payloads = await payloadsOf(t, end);
    assert.deepEqual(payloads, how === 'deleted' ? [`app:${id}`] : [`app:${id}`, `client:${id}`]);
    const { rows } = await sql`
      select from subscriptions where client_id = ${id} and state <> 'ended'`.execute(db);
    assert.equal(rows.length, 0);
  });
}

test('changed rights of a grant or an account are announced once', async (t) => {
  const { id } = await createTestClient(server);
  const { grant } = await addGrant(id, 3);
  const narrow = () => sql`update grants set scopes = '{}' where id = ${grant}`.execute(db);
  assert.deepEqual(await payloadsOf(t, narrow), [`grant:${grant}`]);
  const account = sql<{ id: string }>`select account_id as id from grants where id = ${grant}`;
  const accountId = (await account.execute(db)).rows[0]?.id as string;
  // Disabling an account ends the subscriptions of its grants, and stops its own.
  await sql`
    insert into subscriptions (id, lane, owner, account_id, url, kinds, signature, secret)
    values (${newId()}, 4711, 'user', ${accountId}, 'http://127.0.0.1/', '{push}', 'timestamp', '')`.execute(
    db,
  );
  const disable = () => sql`update accounts set disabled_at = now() where id = ${accountId}`.execute(db);
  assert.ok((await payloadsOf(t, disable)).includes(`account:${accountId}`));
});

test('a node reads the lanes again of each group that a notification names', async (t) => {
  const subscriber = await startSubscriber(t, (_received, response) => response.writeHead(503).end());
  const app = await createApp(server);
  const { id } = await subscribe(app, {
    url: subscriber.url,
    retry_schedule: [86_400, 86_400, 86_400, 86_400],
  });
  const lane = sql`(select lane from subscriptions where id = ${id})`;
  await publish(publisher, app.account, ['failing']);
  await subscriber.waitFor(1);
  const payloads = [`grant:${app.grantId}`, `account:${app.account.id}`, `app:${app.clientId}`];
  for (const [index, payload] of payloads.entries()) {
    // Only a hint makes the node read the lane, and find that the retry is due.
    const retries = () =>
      sql`select from retries where lane = ${lane} and due_at > now() + interval '1 hour'`.execute(db);
    await until(retries, ({ rows }) => rows.length === 1);
    await sql`update retries set due_at = now() where lane = ${lane}`.execute(db);
    await sql`select announce('lane_changed', ${payload})`.execute(db);
    await subscriber.waitFor(index + 2);
  }
});
