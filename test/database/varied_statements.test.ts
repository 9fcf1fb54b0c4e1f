/** Names of prepared statements, of which a process has few. Requests with ever new texts must not use them up. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import {
  isDatabaseUnavailable,
  openDatabase,
  varied,
  withResultsWithin,
} from '../../src/database/database.ts';
import { createApiUser } from '../support/clients/api_client.ts';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';
import { openTestDatabase } from '../support/database/open_database.ts';
import { startTestServer } from '../support/servers/server.ts';

test('attack: lists and changes with ever new texts leave names to all other statements', async (t) => {
  const server = await startTestServer(t);
  const { request } = await createApiUser(server);
  const created = await request('POST', '/articles', { json: { title: 'First' } });
  assert.equal(created.status, 201);
  const { id } = created.body;
  assert.equal((await request('GET', '/articles?sort=-published_at')).status, 200);
  assert.equal((await request('PATCH', `/articles/${id}`, { json: { title: 'Second' } })).status, 200);
  const { db, url } = await openTestDatabase(t, 1);
  for (let count = 0; count < 500; count += 1)
    await sql`${varied} select ${1}::int as ${sql.ref(`c${count}`)}`.execute(db);
  await sql`select ${1}::int as other`.execute(db);
  const { rows } = await sql<{ statement: string }>`
    select statement from pg_prepared_statements`.execute(db);
  const texts = rows.map(({ statement }) => statement);
  assert.ok(texts.some((text) => text.endsWith('as other')));
  // Those of the server's lists and changes are among the 200.
  const ofTest = texts.filter((text) => text.startsWith('/* varied */')).length;
  assert.ok(ofTest > 0 && ofTest <= 198, String(ofTest));
  // What has no name any more leaves a silent connection as soon as what has one.
  const proxy = await startDatabaseProxy(url);
  const proxied = openDatabase({ connectionString: proxy.url, connectionsMax: 2 });
  t.after(async () => {
    await proxy.close();
    await proxied.destroy();
  });
  const ask = (on: typeof db) => sql`${varied} select ${1}::int as unnamed, pg_sleep(0.1)`.execute(on);
  await Promise.all([ask(proxied), ask(proxied)]);
  proxy.freeze();
  let isLeft = false;
  const silent = ask(proxied).catch(() => {
    isLeft = true;
  });
  const error: unknown = await ask(withResultsWithin(1_000, proxied)).catch((reason: unknown) => reason);
  assert.ok(isDatabaseUnavailable(error), String(error));
  assert.equal(isLeft, false);
  proxy.mend();
  await silent;
});
