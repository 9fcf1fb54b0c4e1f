/** Retention works around rows that others lock, reports what it is about to delete, and never prevents a start. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { applyRetention } from '../../../src/webhooks/log/retention.ts';
import { execute } from '../../support/database/database.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;

async function addParked(position: number, daysAgo: number): Promise<void> {
  await sql`
    insert into parked_events (position, day, turn, reason)
    values (${position}, (now() at time zone 'utc')::date - ${daysAgo}::int, gen_random_uuid(), 'a reason')`.execute(
    db,
  );
}

test('retention deletes any number of rows and passes over those that another session has locked', async () => {
  const count = 2_500;
  await sql`
    insert into retries (lane, sequence, day, state, attempts)
    select 1, number, (now() at time zone 'utc')::date - 40, 'failed', 1 from generate_series(1, ${count}::int) as number`.execute(
    db,
  );
  await sql`
    insert into event_ids (id, content, created_at)
    select 'old-' || number, '', now() - interval '40 days' from generate_series(1, ${count}::int) as number`.execute(
    db,
  );
  const left = async () => {
    const { rows } = await sql<{ name: string }>`
      select sequence::text as name from retries where lane = 1
      union all select id from event_ids where id like 'old-%' order by 1`.execute(db);
    return rows.map(({ name }) => name);
  };
  await db.transaction().execute(async (tx) => {
    await sql`select from retries where lane = 1 and sequence = 7 for update`.execute(tx);
    await sql`select from event_ids where id = 'old-7' for update`.execute(tx);
    const beat = setInterval(() => void sql`select 1`.execute(tx).catch(() => {}), 1_000);
    try {
      await applyRetention(db);
      assert.deepEqual(await left(), ['7', 'old-7']);
    } finally {
      clearInterval(beat);
    }
  });
  await applyRetention(db);
  assert.deepEqual(await left(), []);
});

test('a metric counts the parked events that retention will delete within three days', async () => {
  await addParked(1, 27);
  await addParked(2, 28);
  await addParked(3, 30);
  const metrics = await (await fetch(`${server.baseUrl}/metrics`)).text();
  assert.match(metrics, /^nuncio_events_parked_expiring 2$/m);
  assert.match(metrics, /^nuncio_events_parked 3$/m);
});

test('a server starts and delivers although the database cannot create partitions', async (t) => {
  const subscriber = await startSubscriber(t);
  const slow = await startTestServer(t, {}, 'dev', undefined, undefined, 'here', (url) =>
    execute(
      url,
      `create or replace function nuncio.ensure_day_partitions(days_ahead integer) returns void language plpgsql as
      $$ begin raise 'canceling statement due to statement timeout' using errcode = 'query_canceled'; end $$`,
    ),
  );
  const app = await createApp(slow);
  await subscribe(app, { url: subscriber.url });
  await publish(await createPublisher(slow), app.account, ['delivered']);
  await subscriber.waitFor(1);
});
