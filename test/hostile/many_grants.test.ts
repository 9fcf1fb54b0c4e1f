/**
 * Each authorization writes a grant, and nothing bounds the grants of a user and an app. A consent changes all of them in one
 * transaction, which must not keep the node's connections from others.
 */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { createApiUser } from '../support/clients/api_client.ts';
import { authorize, createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const victim = await createApiUser(server);

test('consents of a user with thousands of grants of one app leave the others connections', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  await authorize(server, { account, client, scopes: ['read:posts'] });
  // As many as a browser gets in a quarter of an hour, at 600 authorizations a minute.
  await sql`
    insert into grants (id, account_id, client_id, scopes, details)
    select gen_random_uuid(), account_id, client_id, scopes, details
    from grants, generate_series(1, 10000) where account_id = ${account.id}`.execute(server.db);
  const consents = Array.from({ length: 16 }, () =>
    authorize(server, { account, client, scopes: ['read:posts', 'write:posts'] }).catch(() => {}),
  );
  const all = Promise.allSettled(consents);
  let isOver = false;
  void all.then(() => {
    isOver = true;
  });
  const statuses = new Set<number>();
  while (!isOver) statuses.add((await victim.request('GET', '/articles?limit=1')).status);
  assert.deepEqual([...statuses], [200]);
});
