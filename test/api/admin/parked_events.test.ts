/** `/admin/parked-events`: who has access, what they see, and retrying. */

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { appendEvent } from '../../../src/events/event.ts';
import { requester } from '../../support/clients/api_client.ts';
import { createTestAccount } from '../../support/clients/oauth.ts';
import { consoleScopes, createConsoleUser } from '../../support/console/console_user.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createApp, createPublisher, pushBody, subscribe } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const admin = await createConsoleUser(server, { isAdmin: true });

/** Creates an event that was parked instead of fanned out. @returns its position */
async function park(accountId: string, mark: string, reason: string): Promise<string> {
  const { rows } = await db.transaction().execute(async (tx) => {
    await appendEvent(tx, { accountId, kind: 'push', body: pushBody(mark) });
    // Fan-out cannot see the row before the commit.
    return sql<{ position: string }>`
      with taken as (delete from outbox where turn = ${accountId}::uuid returning day, turn, positions)
      insert into parked_events (position, day, turn, reason)
      select positions[1], day, turn, ${reason} from taken returning position`.execute(tx);
  });
  return rows[0]?.position as string;
}

test('parked events are listed with their reasons in pages, oldest first, and one is retried', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  const positions = [
    await park(app.account.id, 'one', 'canceling statement due to statement timeout'),
    await park(app.account.id, 'two', 'other'),
    await park(app.account.id, 'three', 'other'),
  ];
  // The partition of its event was dropped.
  await sql`
    insert into parked_events (position, day, turn, reason)
    values (999999999999, '2020-01-01', ${randomUUID()}, 'old')`.execute(db);
  const first = (await admin.request('GET', '/admin/parked-events?limit=2')).body;
  const second = (await admin.request('GET', first._links.next.href)).body;
  const items = [...first.items, ...second.items];
  assert.deepEqual(
    items.map(({ position }) => position),
    [...positions, '999999999999'],
  );
  assert.equal(second._links.next, undefined);
  const [one] = items;
  assert.deepEqual(
    [one.account, one.kind, one.reason],
    [app.account.id, 'push', 'canceling statement due to statement timeout'],
  );
  assert.equal(typeof one.event, 'string');
  assert.deepEqual([items[3].event, items[3].kind, items[3].account], [null, null, null]);

  // Of concurrent retries, one succeeds.
  const { href } = one._links.retry;
  const answers = await Promise.all(Array.from({ length: 5 }, () => admin.request('POST', href)));
  assert.deepEqual(answers.map(({ status }) => status).sort(), [202, 404, 404, 404, 404]);
  assert.deepEqual(answers.find(({ status }) => status === 202)?.body, { position: positions[0] });
  const received = await subscriber.waitFor(1);
  assert.deepEqual(
    received.map(({ body }) => JSON.parse(body).ref),
    ['refs/heads/one'],
  );
  const left = (await admin.request('GET', '/admin/parked-events')).body.items;
  assert.deepEqual(
    left.map(({ position }: { position: string }) => position),
    [...positions.slice(1), '999999999999'],
  );
  const audit = (await admin.request('GET', '/admin/audit?kind=parked_event.')).body.items;
  assert.equal(audit.length, 1);
  assert.deepEqual([audit[0].actor, audit[0].details], [admin.account.id, { position: positions[0] }]);
});

test('only administrators see or retry parked events', async () => {
  const { id } = await createTestAccount(server);
  const position = await park(id, 'secret', 'the reason');
  const path = `/admin/parked-events/${position}/retry`;
  const developer = await createConsoleUser(server);
  const liar = await createConsoleUser(server, { scopes: [...consoleScopes, 'admin'] });
  const app = await createApp(server);
  // Neither the account of the event nor a client that publishes has access.
  const owner = await createApp(server, { account: { id } });
  const others = [developer.request, liar.request, app.request, owner.request];
  for (const request of [...others, await createPublisher(server), requester(server)]) {
    for (const [method, target] of [
      ['GET', '/admin/parked-events'],
      ['POST', path],
    ] as const) {
      const { status, text } = await request(method, target);
      assert.ok(status === 403 || status === 401, `${method} ${target} gave ${status}`);
      assert.doesNotMatch(text, /the reason/);
    }
  }
  const { rows } = await sql`select from parked_events where position = ${position}`.execute(db);
  assert.equal(rows.length, 1);
});

test('positions and cursors that cannot exist are refused', async () => {
  for (const position of ['0', '-1', '1e3', 'x', '%00', '9'.repeat(19), '12345', '1%20or%201']) {
    const { status } = await admin.request('POST', `/admin/parked-events/${position}/retry`);
    assert.equal(status, 404, position);
  }
  for (const cursor of ['x', '0', '9'.repeat(19)]) {
    const after = Buffer.from(cursor).toString('base64url');
    const { status, body } = await admin.request('GET', `/admin/parked-events?after=${after}`);
    assert.deepEqual([status, body.code], [400, 'invalid-cursor'], cursor);
  }
});
