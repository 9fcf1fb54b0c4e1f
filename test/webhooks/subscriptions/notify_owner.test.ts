/** Which subscriptions of an owner are told about another one of it, and what finding them reads. No server runs. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import type { Database } from '../../../src/database/database.ts';
import { failingName } from '../../../src/events/built_in_names.ts';
import { notifyOwner } from '../../../src/webhooks/subscriptions/subscription_state.ts';
import { openTestDatabase } from '../../support/database/open_database.ts';
import { captureStatements, planModes, rowsOf } from '../../support/database/plans.ts';

interface Place {
  owner: 'grant' | 'user' | 'client';
  grant?: string;
  account?: string;
  client?: string;
}

async function add(
  db: Database,
  lane: number,
  { owner, grant, account, client }: Place,
  kinds = [failingName],
) {
  await sql`
    insert into subscriptions (id, lane, owner, grant_id, account_id, client_id, url, kinds, signature, secret)
    values (${newId()}, ${lane}, ${owner}, ${grant ?? null}, ${account ?? null}, ${client ?? null}, 'https://a.example/',
      ${kinds}, 'standard', '')`.execute(db);
}

async function told(db: Database, lane: number): Promise<number[]> {
  await sql`delete from outbox`.execute(db);
  await db.transaction().execute((tx) => notifyOwner(tx, lane, failingName, {}));
  const { rows } = await sql<{ lane: string }>`select unnest(lanes) as lane from outbox order by 1`.execute(
    db,
  );
  return rows.map((row) => Number(row.lane));
}

test('subscriptions of the same grant, user or app are told, and no others', async (t) => {
  const { db } = await openTestDatabase(t, 2);
  const [account, client] = [newId(), 'app'];
  const [grant, otherGrant] = [newId(), newId()];
  for (const [first, place] of [
    [1, { owner: 'grant', grant, account, client }],
    [11, { owner: 'grant', grant: otherGrant, account, client }],
    [21, { owner: 'user', account }],
    [31, { owner: 'client', client }],
    [41, { owner: 'user', account: newId() }],
    [51, { owner: 'client', client: 'another' }],
  ] as [number, Place][]) {
    await add(db, first, place);
    await add(db, first + 1, place, ['subscription.*']);
    await add(db, first + 2, place, ['push']);
    await add(db, first + 3, place);
    await sql`update subscriptions set state = 'disabled' where lane = ${first + 3}`.execute(db);
  }
  for (const first of [1, 11, 21, 31, 41, 51]) {
    assert.deepEqual(await told(db, first), [first + 1]);
    assert.deepEqual(await told(db, first + 2), [first, first + 1]);
  }
});

test('attack: warning one owner does not read the subscriptions of others', async (t) => {
  const { db } = await openTestDatabase(t, 2);
  const [account, grant] = [newId(), newId()];
  const places: Place[] = [
    { owner: 'grant', grant, account, client: 'app' },
    { owner: 'user', account },
    { owner: 'client', client: 'app' },
  ];
  for (const [index, place] of places.entries()) {
    await add(db, index * 10 + 1, place);
    await add(db, index * 10 + 2, place);
  }
  const others = 5_000;
  await sql`
    insert into subscriptions (id, lane, owner, grant_id, account_id, client_id, url, kinds, signature, secret)
    select gen_random_uuid(), 1000 + i, 'grant', gen_random_uuid(), gen_random_uuid(), 'other', 'https://b.example/',
      array[${failingName}], 'standard', ''
    from generate_series(1, ${others}::int) i`.execute(db);
  await sql`analyze subscriptions`.execute(db);
  for (const mode of planModes) {
    for (const [index] of places.entries()) {
      const lane = index * 10 + 1;
      const statements = await captureStatements(mode, () => told(db, lane));
      const finding = statements.filter(({ text }) => text.includes('from subscriptions s where lane ='));
      assert.equal(finding.length, 1);
      assert.ok(rowsOf(finding) < 100, `${mode}, ${places[index]?.owner}: ${rowsOf(finding)} rows`);
    }
  }
});
