/** Withdrawn grants are kept for 90 days. However many there are, what does not concern them does not read them. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { removeUnusedClients } from '../../src/clients/self_registered.ts';
import { newId } from '../../src/crypto/ids.ts';
import type { Transaction } from '../../src/database/database.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const { db } = server;
const clientIds = Array.from({ length: 10 }, newId);

await sql`
  insert into clients (id, origin, name, redirect_uris, grant_types, scopes, auth_method, updated_at)
  select id, 'registration', 'unused', '{}', '{authorization_code}', '{}', 'none', now() - interval '100 days'
  from unnest(${clientIds}::text[]) id`.execute(db);
// Of 2,000 accounts with ten grants each, which were withdrawn a week ago, and those of one client long ago.
await sql`
  insert into accounts (id, name, external_id)
  select gen_random_uuid(), '', 'holder' || i from generate_series(1, 2000) i`.execute(db);
await sql`
  insert into grants (id, account_id, client_id, withdrawn_at)
  select gen_random_uuid(), a.id, (${clientIds}::text[])[i], now() - interval '1 day' * case i when 1 then 80 else 7 end
  from accounts a, generate_series(1, 10) i where a.external_id like 'holder%'`.execute(db);
await sql`analyze grants, clients, accounts`.execute(db);

/** Grants that the work reads without an index. It is undone. */
async function grantsRead(work: (tx: Transaction) => Promise<unknown>): Promise<number> {
  let read = 0;
  const undone = new Error('undone');
  const transaction = db.transaction().execute(async (tx) => {
    await work(tx);
    const { rows } = await sql<{ read: string }>`
      select seq_tup_read as read from pg_stat_xact_user_tables where relid = 'grants'::regclass`.execute(tx);
    read = Number(rows[0]?.read);
    throw undone;
  });
  await assert.rejects(transaction, undone);
  return read;
}

test('deleting an account does not read the withdrawn grants of others', async () => {
  const account = await createTestAccount(server);
  const read = await grantsRead((tx) => sql`delete from accounts where id = ${account.id}`.execute(tx));
  assert.equal(read, 0);
});

test('removing unused clients reads no withdrawn grants without an index', async () => {
  let removed = 0;
  const read = await grantsRead(async (tx) => {
    removed = await removeUnusedClients(tx, 1_000);
  });
  assert.deepEqual([removed, read], [1, 0]);
});
