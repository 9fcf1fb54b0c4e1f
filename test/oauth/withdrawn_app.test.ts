/** The app that a user has just disconnected, and what finding it reads. No server runs. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../src/crypto/ids.ts';
import { createGrant, withdrawGrantsOfClient } from '../../src/grants/grant.ts';
import { findWithdrawnApp } from '../../src/oauth/connected_apps.ts';
import { openTestDatabase } from '../support/database/open_database.ts';
import { captureStatements, planModes, rowsOf } from '../support/database/plans.ts';

test('attack: finding a disconnected app does not read the grants of other users', async (t) => {
  const { db } = await openTestDatabase(t, 2);
  const [account, other] = [newId(), newId()];
  await sql`
    insert into accounts (id, email, name) values (${account}, 'ann@example.com', ''), (${other}, 'bob@example.com', '')`.execute(
    db,
  );
  await sql`insert into clients (id, name) values ('app', 'Some App'), ('kept', 'Kept App')`.execute(db);
  const ask = (id: string) => findWithdrawnApp(db, account, id);
  for (const clientId of ['app', 'app', 'kept', 'kept', 'gone'])
    await createGrant(db, { accountId: account, clientId, scopes: [] });
  assert.equal(await ask('app'), undefined);
  for (const clientId of ['app', 'gone']) await withdrawGrantsOfClient(db, account, clientId);
  await sql`
    update grants set withdrawn_at = now() where id = (select id from grants where client_id = 'kept' limit 1)`.execute(
    db,
  );
  await sql`
    insert into grants (id, account_id, client_id, withdrawn_at)
    select gen_random_uuid(), ${other}::uuid, 'app', now() from generate_series(1, 5000)`.execute(db);
  await sql`analyze`.execute(db);
  for (const mode of planModes) {
    const found: (string | undefined)[] = [];
    const statements = await captureStatements(mode, async () => {
      for (const id of ['app', 'kept', 'gone', 'another']) found.push(await ask(id));
    });
    assert.deepEqual(found, ['Some App', undefined, 'gone', undefined]);
    assert.ok(rowsOf(statements) < 200, `${mode}: ${rowsOf(statements)} rows`);
  }
});
