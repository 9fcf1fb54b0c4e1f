/** Enabling a subscription with very many retries: it holds them in small transactions, one at a time on a node. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { startTestServer } from '../support/servers/server.ts';
import { type App, createApp, subscribe } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;
const retries = 2_500;

/** A disabled subscription with retries that are due. */
async function disabled(app: App): Promise<string> {
  const { id } = await subscribe(app, { url: 'http://127.0.0.1:9999/' });
  const { status } = await app.request('PATCH', `/subscriptions/${id}`, { json: { state: 'disabled' } });
  assert.equal(status, 200);
  await sql`
    insert into retries (lane, sequence, day, state, attempts, due_at)
    select lane, number, now()::date, 'pending', 1, now()
    from subscriptions, generate_series(1, ${retries}::int) as number where id = ${id}`.execute(db);
  await sql`
    update lanes set next_sequence = ${retries + 1} from subscriptions s where s.id = ${id} and lanes.id = s.lane`.execute(
    db,
  );
  await sql`
    update lane_progress p set cursor = ${retries} from subscriptions s where s.id = ${id} and p.lane = s.lane`.execute(
    db,
  );
  return id;
}

async function countOf(id: string, state: string): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from retries r join subscriptions s on s.lane = r.lane
    where s.id = ${id} and r.state = ${state}`.execute(db);
  return rows[0]?.count ?? 0;
}

test('attack: subscriptions with very many retries are enabled', async () => {
  await sql
    .raw(`
    create table held (count integer);
    create function note_held() returns trigger language plpgsql as $$
      begin insert into held select count(*) from changed where state = 'held'; return null; end $$;
    create trigger note_held after update on retries referencing new table as changed
      for each statement execute function note_held()`)
    .execute(db);
  const app = await createApp(server);
  const ids = [await disabled(app), await disabled(app), await disabled(app)];
  const enabled = await Promise.all(
    ids.map((id) => app.request('PATCH', `/subscriptions/${id}`, { json: { state: 'active' } })),
  );
  assert.deepEqual(
    enabled.map(({ status, body }) => [status, body.state]),
    ids.map(() => [200, 'active']),
  );
  for (const id of ids)
    assert.deepEqual([await countOf(id, 'held'), await countOf(id, 'pending')], [retries, 0]);
  const { rows } = await sql<{ most: number; all: number }>`
    select max(count)::int as most, sum(count)::int as all from held`.execute(db);
  assert.equal(rows[0]?.all, ids.length * retries);
  assert.ok((rows[0]?.most ?? 0) <= 1_000, `${rows[0]?.most} in one transaction`);
});
