/** Names of prepared statements, of which a process has few. Requests with ever new texts must not use them up. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { varied } from '../../src/database/database.ts';
import { requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { openTestDatabase } from '../support/database/open_database.ts';
import { startTestServer } from '../support/servers/server.ts';

test('attack: lists and changes with ever new texts leave names to all other statements', async (t) => {
  const server = await startTestServer(t);
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const { accessToken: token } = await mintAccessToken(server, {
    account,
    client,
    scopes: ['read:posts', 'write:posts'],
  });
  const request = requester(server, token);
  const created = await request('POST', '/articles', { json: { title: 'First' } });
  assert.equal(created.status, 201);
  const { id } = created.body;
  assert.equal((await request('GET', '/articles?sort=-published_at')).status, 200);
  assert.equal((await request('PATCH', `/articles/${id}`, { json: { title: 'Second' } })).status, 200);
  const { db } = await openTestDatabase(t, 1);
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
});
