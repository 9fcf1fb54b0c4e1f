/** `nuncio epoch begin` after a restore of an external database: what was not sent at that time is sent, or held on request. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { prepareProcess, runCommandProcess, startProcess } from '../support/servers/process.ts';
import { createApp, createPublisher, publish, pushBody, subscribe, until } from '../support/webhooks/apps.ts';
import { answer, type Received, startSubscriber } from '../support/webhooks/subscriber.ts';

const refOf = ({ body }: Received) => String(JSON.parse(body).ref).slice('refs/heads/'.length);
const idOf = ({ headers }: Received) => String(headers['nuncio-delivery']);

/** A database as a restore leaves it: no server runs, a retry is due, and an event published by SQL waits. */
async function restoredDatabase(t: TestContext) {
  const host = await prepareProcess(t, { NUNCIO_RETRY_SCHEDULE: '1h,1h' });
  const first = startProcess(t, ['start'], host.settings);
  await first.ready();
  const app = await createApp(host);
  const subscriber = await startSubscriber(t, answer(500));
  await subscribe(app, { url: subscriber.url });
  await publish(await createPublisher(host), app.account, ['old']);
  await until(
    async () => (await sql`select from retries where due_at is not null`.execute(host.db)).rows.length,
    (count) => count === 1,
  );
  assert.equal(await first.end('SIGTERM'), 0);
  await sql`update retries set due_at = now()`.execute(host.db);
  const body = JSON.stringify(pushBody('by-sql'));
  await sql`select publish('push', ${app.account.id}, ${body}::jsonb)`.execute(host.db);
  const [old] = (await subscriber.waitFor(1)) as [Received];
  subscriber.behave(answer(204));
  return { ...host, app, subscriber, old };
}

test('with --hold-unsent, the servers send nothing old after a restore, and everything new', async (t) => {
  const { settings, db, app, subscriber, ...host } = await restoredDatabase(t);
  const { code, stdout, stderr } = await runCommandProcess(['epoch', 'begin', '--hold-unsent'], settings);
  assert.deepEqual([code, stderr], [0, '']);
  assert.match(
    stdout,
    /^epoch 1 begins\n1 deliveries are held: .+\n1 events published by SQL are rejected: .+\n$/,
  );
  await startProcess(t, ['start'], settings).ready();
  await publish(await createPublisher({ ...host, db }), app.account, ['new']);
  await subscriber.waitFor(2);
  assert.deepEqual(subscriber.received.map(refOf), ['old', 'new']);
  const { rows } = await sql`select state, due_at from retries`.execute(db);
  assert.deepEqual(rows, [{ state: 'held', due_at: null }]);
  // What was set aside is sent when the operator asks for it.
  assert.match((await runCommandProcess(['rejected', 'retry'], settings)).stdout, /^1 event/);
  await until(
    async () => subscriber.received.map(refOf),
    (refs) => refs.includes('by-sql'),
  );
});

test('without the option, they send it with the ids that it had', async (t) => {
  const { settings, subscriber, old } = await restoredDatabase(t);
  const { stdout } = await runCommandProcess(['epoch', 'begin'], settings);
  assert.equal(stdout, 'epoch 1 begins\n');
  await startProcess(t, ['start'], settings).ready();
  const received = await until(
    async () => subscriber.received.slice(1),
    (all) => ['old', 'by-sql'].every((ref) => all.some((each) => refOf(each) === ref)),
  );
  assert.deepEqual(
    received.filter((each) => refOf(each) === 'old').map(idOf),
    [idOf(old)],
    'subscribers that handle each id once ignore it',
  );
});
