/** Deletion of an account of another application: what ends with it, and which apps it suspends. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../src/crypto/ids.ts';
import { createAccountsClient, externalPath } from '../support/clients/accounts_client.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { createConsoleUser } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';
import {
  createApp,
  createPublisher,
  fannedOut,
  pushBody,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, { NUNCIO_INSECURE_SUBSCRIBERS: '1' });
const { db } = server;
const { client, request, find } = await createAccountsClient(server);
const path = externalPath;

test('deleting an account ends everything it opened in one commit and erases its identity', async (t) => {
  const subscriber = await startSubscriber(t);
  const externalId = newId();
  const { body: account } = await request('PUT', path(externalId), {
    json: { email: `${externalId}@example.com`, name: 'Ann' },
  });
  const app = await createApp(server, { account });
  const subscription = await subscribe(app, { url: subscriber.url });
  const article = await app.request('POST', '/articles', { json: { title: 'Mine' } });
  assert.equal(article.status, 201);
  const event = { kind: 'push', account: { external_id: externalId }, body: pushBody() };
  const publisher = await createPublisher(server);
  await publisher('POST', '/events', { json: event });
  await subscriber.waitFor(2);
  const deleted = await Promise.all([
    request('DELETE', `/accounts/${account.id}`),
    request('DELETE', `/accounts/${account.id}`),
  ]);
  assert.deepEqual(deleted.map(({ status }) => status).sort(), [204, 404]);
  await until(
    async () => (await app.request('GET', '/subscriptions')).status,
    (status) => status === 401,
  );
  assert.equal((await request('GET', `/accounts/${account.id}`)).status, 404);
  assert.deepEqual(await find(externalId), []);
  for (const table of ['grants', 'login_sessions', 'account_links']) {
    const { rows } = await sql`select from ${sql.table(table)} where account_id = ${account.id}`.execute(db);
    assert.equal(rows.length, 0, table);
  }
  const { rows: articles } = await sql`select from articles where author = ${account.id}`.execute(db);
  assert.equal(articles.length, 0);
  const { rows: ended } = await sql<{ state: string }>`
    select state from subscriptions where id = ${subscription.id}`.execute(db);
  assert.deepEqual(ended, [{ state: 'ended' }]);
  const { rows: audit } = await sql<{ kind: string; actor: string; details: object }>`
    select kind, actor, details from audit_entries
    where account_id = ${account.id} and kind in ('account.deleted', 'grant.withdrawn') order by kind`.execute(
    db,
  );
  assert.deepEqual(
    audit.map(({ kind, actor }) => [kind, actor]),
    [
      ['account.deleted', `client:${client.id}`],
      ['grant.withdrawn', `client:${client.id}`],
    ],
  );
  // An event for the user creates a new account, which has no data of the earlier one.
  assert.equal((await publisher('POST', '/events', { json: event })).status, 202);
  const [anew] = await find(externalId);
  assert.notEqual(anew.id, account.id);
  assert.deepEqual([anew.email, anew.name], [null, null]);
  await fannedOut(server);
  assert.equal(subscriber.received.length, 2);
  assert.equal((await publisher('POST', '/events', { json: { ...event, account: account.id } })).status, 422);
});

test('deleting an account suspends the apps it leaves without an owner, and no others', async () => {
  const { body: account } = await request('PUT', path(newId()), { json: {} });
  const { body: disabled } = await request('PUT', path(newId()), { json: {} });
  const other = await createTestAccount(server);
  const owner = await createConsoleUser(server, { account: { ...other, id: account.id } });
  const createOwned = async (members: Record<string, string> = {}) => {
    const { body } = await owner.request('POST', '/apps', {
      json: { client_name: 'Theirs', redirect_uris: ['https://reader.example/'] },
    });
    for (const [id, role] of Object.entries(members)) {
      await sql`
        insert into app_members (client_id, account_id, role)
        values (${body.client_id}, ${id}, ${role})`.execute(db);
    }
    return body.client_id as string;
  };
  const alone = await createOwned();
  const withDeveloper = await createOwned({ [other.id]: 'developer' });
  const withDisabledOwner = await createOwned({ [disabled.id]: 'owner' });
  const withOwner = await createOwned({ [other.id]: 'owner' });
  const before = await createOwned();
  const long = new Date('2020-01-01T00:00:00Z');
  await sql`update clients set suspended_at = ${long} where id = ${before}`.execute(db);
  await request('PATCH', `/accounts/${disabled.id}`, { json: { disabled: true } });
  assert.equal((await request('DELETE', `/accounts/${account.id}`)).status, 204);
  const apps = [alone, withDeveloper, withDisabledOwner, withOwner, before];
  const { rows } = await sql<{ id: string; suspended_at: Date | null }>`
    select id, suspended_at from clients where id = any(${apps}::text[])`.execute(db);
  const suspended = new Map(rows.map((row) => [row.id, row.suspended_at]));
  for (const app of [alone, withDeveloper, withDisabledOwner]) assert.ok(suspended.get(app));
  assert.equal(suspended.get(withOwner), null);
  assert.deepEqual(suspended.get(before), long);
  const { rows: entries } = await sql<{ client_id: string; actor: string; details: object }>`
    select client_id, actor, details from audit_entries
    where kind = 'app.suspended' and client_id = any(${apps}::text[])`.execute(db);
  assert.deepEqual(
    entries.map((entry) => entry.client_id).sort(),
    [alone, withDeveloper, withDisabledOwner].sort(),
  );
  for (const { actor, details } of entries) {
    assert.deepEqual([actor, details], [`client:${client.id}`, { reason: 'its only owner was deleted' }]);
  }
});

test('an app is suspended when its co-owners are deleted concurrently', async () => {
  const [first, second] = await Promise.all(
    [0, 1].map(async () => (await request('PUT', path(newId()), { json: {} })).body.id as string),
  );
  const app = await createTestClient(server, { origin: 'account' });
  for (const id of [first, second]) {
    await sql`insert into app_members (client_id, account_id, role) values (${app.id}, ${id}, 'owner')`.execute(
      db,
    );
  }
  const deleted = await Promise.all([first, second].map((id) => request('DELETE', `/accounts/${id}`)));
  assert.deepEqual(
    deleted.map(({ status }) => status),
    [204, 204],
  );
  const { rows } = await sql`select from clients where id = ${app.id} and suspended_at is not null`.execute(
    db,
  );
  assert.equal(rows.length, 1);
});
