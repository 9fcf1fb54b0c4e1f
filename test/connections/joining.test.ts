/** Which connection a step joins, among many. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { readConnections, writeSteps } from '../../src/connections/connection_store.ts';
import { joinSteps } from '../../src/connections/joining.ts';
import { type PendingStep, stepKey } from '../../src/connections/step.ts';
import { newId } from '../../src/crypto/ids.ts';
import { openDatabase } from '../../src/database/database.ts';
import { openTestDatabase } from '../support/database/open_database.ts';
import { timesAsMuch } from '../support/processor_time.ts';

function step(clientId: string, name: PendingStep['name'], keys: string[]): PendingStep {
  return {
    ...{
      name,
      outcome: 'ok',
      clientId,
      isKnown: true,
      isAuthenticated: true,
      address: '192.0.2.1',
      source: 'a source',
    },
    ...{ requestId: newId(), keys, at: Date.now() },
  };
}

test('connections of a busy app do not displace the older attempt of another app', async (t) => {
  const { db } = await openTestDatabase(t, 1);
  const busy = stepKey('registered', 'busy');
  const code = stepKey('code', newId());
  await writeSteps(db, [step('quiet', 'code', [code])]);
  await sql`
    insert into connections (id, started_at, updated_at, client_id, is_known, outcome, keys, request_ids, source, steps)
    select gen_random_uuid(), now(), now() + interval '1 second', 'busy', true, 'open', array[${busy}::text], '{}', 'another source',
      '[{"name": "authorize", "outcome": "ok"}]'
    from generate_series(1, 2100)`.execute(db);
  await writeSteps(db, [step('busy', 'registration', [busy]), step('quiet', 'token', [code])]);
  const found = await readConnections(db, { clientId: 'quiet' }, 10);
  assert.deepEqual(
    found.map(({ steps }) => steps.map(({ name }) => name).toSorted()),
    [['code', 'token']],
  );
});

/** Each app opens one more connection, beside ten stored ones. */
function joinOf(apps: number): () => void {
  const ids = Array.from({ length: apps }, (_none, index) => `app-${index}`);
  const keysOf = (id: string) => [stepKey('registered', id), stepKey('request', newId())];
  const stored = ids.flatMap((id) =>
    Array.from({ length: 10 }, () => ({ id: newId(), clientId: id, keys: keysOf(id) })),
  );
  const pending = ids.map(
    (id): PendingStep => ({ ...step(id, 'authorize', keysOf(id)), belongsTo: 'before-authorize' }),
  );
  return () => {
    const known = stored.map((each) => ({ ...each, outcome: 'open' as const, stepsTaken: ['authorize ok'] }));
    assert.equal(joinSteps(known, pending, newId).length, apps);
  };
}

test('attack: connections of very many apps at once', async () => {
  const ratio = await timesAsMuch(joinOf(400), joinOf(50));
  assert.ok(ratio < 24, `eight times the apps take ${ratio} times as long`);
});

test('an account that is being deleted does not hold up the steps of others', async (t) => {
  const { db, url } = await openTestDatabase(t, 1, { lock_timeout: '2s' });
  const deleting = openDatabase({ connectionString: url, connectionsMax: 1 });
  t.after(() => deleting.destroy());
  const accountId = newId();
  await sql`insert into accounts (id, email, name) values (${accountId}, 'ann@example.com', 'Ann')`.execute(
    db,
  );
  await deleting.transaction().execute(async (tx) => {
    await sql`select from accounts where id = ${accountId} for update`.execute(tx);
    await writeSteps(db, [
      { ...step('app', 'authorize', [stepKey('registered', 'app')]), accountId },
      step('other', 'authorize', [stepKey('registered', 'other')]),
    ]);
  });
  const found = await readConnections(db, {}, 10);
  assert.deepEqual(found.map((each) => [each.clientId, each.accountId]).toSorted(), [
    ['app', null],
    ['other', null],
  ]);
});
