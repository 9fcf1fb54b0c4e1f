/** How PostgreSQL executes a pass with a plan that it made when the tables were empty. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { textArray } from '../../../src/database/arrays.ts';
import { openDatabase } from '../../../src/database/database.ts';
import { sessionSettings } from '../../../src/webhooks/engine/session_settings.ts';
import { fanOut } from '../../../src/webhooks/fan_out/fan_out.ts';
import { passLimits } from '../../../src/webhooks/fan_out/outbox_selection.ts';
import { Turns } from '../../../src/webhooks/fan_out/turns.ts';
import { createDatabase } from '../../support/database/database.ts';
// Before any connection.
import { captureStatements, nodesOf } from '../../support/database/plans.ts';

const database = await createDatabase();
const db = openDatabase({ connectionString: database.url, connectionsMax: 1, settings: sessionSettings });
after(async () => {
  await db.destroy();
  await database.drop();
});

test('a pass looks each event up by its whole key', async () => {
  const account = '10000000-0000-4000-8000-000000000000';
  const { rows } = await sql<{ day: string }>`
    with added as (
      insert into events (id, account_id, kind, body)
      select number::text, ${account}::uuid, 'push', '{}' from generate_series(1, 20) as number returning day, position
    )
    insert into outbox (turn, day, positions) select ${account}::uuid, day, array_agg(position) from added group by day
    returning day::text`.execute(db);
  const day = rows[0]?.day as string;
  const turns = new Turns(day);
  await turns.update(db);
  const [names, objects, patterns] = ['push', 'posts', '*'].map((each) => textArray([each])) as [
    Buffer,
    Buffer,
    Buffer,
  ];
  const kinds = { names, objects, patterns, appSubscriptions: 'all' as const };
  const range = {
    ...{ day, visits: turns.first(1), snapshot: turns.snapshot, resting: [], entitled: [] },
    ...{ heavyShare: passLimits.deliveries, skipsFrom: passLimits.deliveries, limits: passLimits },
  };
  const statements = await captureStatements('force_generic_plan', async () => {
    const { events } = await fanOut(db, kinds, range);
    assert.equal(events.length, 20);
  });
  const reads = nodesOf(statements).filter(({ 'Index Name': index = '', 'Actual Loops': loops }) => {
    return loops > 0 && index === `events_${day.replaceAll('-', '')}_pkey`;
  });
  assert.deepEqual(
    reads.map(({ 'Actual Loops': loops, 'Actual Rows': found }) => [loops, found]),
    [[20, 1]],
  );
});
