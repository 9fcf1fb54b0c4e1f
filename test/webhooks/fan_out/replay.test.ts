/** Recoveries that reach back to before the subscription existed. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { createSealer } from '../../../src/crypto/sealing.ts';
import { makeSecret } from '../../../src/webhooks/subscriptions/signature.ts';
import { createSubscription } from '../../../src/webhooks/subscriptions/subscription.ts';
import { SubscriptionQuotas } from '../../../src/webhooks/subscriptions/subscription_quotas.ts';
import { disableByWorker } from '../../../src/webhooks/subscriptions/subscription_state.ts';
import { requester } from '../../support/clients/api_client.ts';
import { createTestAccount, mintAccessToken } from '../../support/clients/oauth.ts';
import { startTestServer, testSecret } from '../../support/servers/server.ts';
import {
  createApp,
  createPublisher,
  createSubscribingClient,
  publish,
  type Request,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const publisher = await createPublisher(server);
const marksOf = (received: { body: string }[]) =>
  received.map(({ body }) => JSON.parse(body).ref?.slice('refs/heads/'.length));
const daysAgo = (days: number) => new Date(Date.now() - days * 86_400_000).toISOString();

/** Moves the events and grants of an account into the past. */
async function age(account: { id: string }, interval: string): Promise<void> {
  // Shortly after midnight, they are events of the day before.
  await sql`
    update events set created_at = created_at - ${interval}::interval,
      day = ((created_at - ${interval}::interval) at time zone 'utc')::date
    where account_id = ${account.id}`.execute(server.db);
  await sql`
    update grants set created_at = created_at - ${interval}::interval where account_id = ${account.id}`.execute(
    server.db,
  );
}

/** Waits until fan-out has emptied the outbox. */
async function fannedOut(): Promise<void> {
  const left = async () => (await sql`select id from outbox`.execute(server.db)).rows.length;
  await until(left, (count) => count === 0);
}

async function recover(request: Request, id: string, json: Record<string, unknown>) {
  const started = await request('POST', `/subscriptions/${id}/recover`, { json });
  assert.equal(started.status, 202, started.text);
  const path = started.headers.get('location') as string;
  const { body } = await until(
    () => request('GET', path),
    (job) => job.body.state === 'done',
  );
  return body as { added: number; resent: number; status: string[] };
}

test('webhooks 73: a recovery delivers events from before the subscription once and in order', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const other = await createApp(server);
  const invoice = { invoice: { id: 'inv', amount: 1, currency: 'EUR' } };
  await publish(publisher, app.account, ['one', 'two']);
  const erased = await publish(publisher, app.account, ['erased']);
  await publisher('DELETE', `/events/${erased.body.ids[0]}/body`);
  await publish(publisher, other.account, ['somebody else’s']);
  await publisher('POST', '/events', {
    json: { kind: 'invoice.paid', account: app.account.id, body: invoice },
  });
  await fannedOut();
  await age(app.account, '2 hours');
  await age(other.account, '2 hours');
  const { id } = await subscribe(app, { url: subscriber.url, kinds: ['push'], ordered: true });
  await publish(publisher, app.account, ['three']);
  await subscriber.waitFor(1);

  const job = await recover(app.request, id, { since: daysAgo(3) });
  assert.deepEqual([job.added, job.resent, job.status], [2, 0, ['failed', 'held', 'missing']]);
  const received = await subscriber.waitFor(3);
  assert.deepEqual(marksOf(received), ['three', 'one', 'two']);
  assert.deepEqual(
    received.map(({ headers }) => headers['nuncio-sequence']),
    ['1', '2', '3'],
  );
  const { body } = await until(
    () => app.request('GET', `/subscriptions/${id}/deliveries?status=succeeded`),
    (page) => page.body.items.length === 3,
  );
  assert.equal(body.items[0].sequence, 3);
  // They are ordinary deliveries now, so a recovery no longer adds them.
  assert.equal((await recover(app.request, id, { since: daysAgo(3) })).added, 0);
  const again = await recover(app.request, id, { since: daysAgo(3), status: ['succeeded'] });
  assert.deepEqual([again.added, again.resent], [0, 3]);
  await subscriber.waitFor(6);
});

test('webhooks 73: two concurrent recoveries deliver each event once, and respect their range', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  await publish(publisher, app.account, ['first']);
  await fannedOut();
  await age(app.account, '10 minutes');
  await publish(publisher, app.account, ['second']);
  await fannedOut();
  await age(app.account, '10 minutes');
  const { id } = await subscribe(app, { url: subscriber.url, kinds: ['push'] });
  const minutesAgo = (minutes: number) => new Date(Date.now() - minutes * 60_000).toISOString();
  const early = await recover(app.request, id, { since: minutesAgo(60), until: minutesAgo(15) });
  assert.equal(early.added, 1);
  assert.deepEqual(marksOf(await subscriber.waitFor(1)), ['first']);
  const jobs = await Promise.all([1, 2, 3].map(() => recover(app.request, id, { since: daysAgo(1) })));
  assert.equal(
    jobs.reduce((sum, { added }) => sum + added, 0),
    1,
  );
  assert.deepEqual(marksOf(await subscriber.waitFor(2)), ['first', 'second']);
  const late = await recover(app.request, id, { since: new Date().toISOString() });
  assert.equal(late.added, 0);
});

test('webhooks 73: a recovery delivers nothing that the owner could not read then or may not read now', async (t) => {
  const subscriber = await startSubscriber(t);
  const account = await createTestAccount(server);
  await publish(publisher, account, ['before the grant']);
  await fannedOut();
  await age(account, '1 hour');
  const app = await createApp(server, { account });
  await publish(publisher, account, ['after the grant']);
  await fannedOut();
  await age(account, '1 hour');
  // The account's other app gets an event that is not meant for this app.
  const neighbour = await createApp(server, { account });
  const gone = await subscribe(neighbour, { url: 'https://example.com/' });
  await subscribe(neighbour, { url: 'https://example.com/' });
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${gone.id}`.execute(
    server.db,
  );
  await disableByWorker(server.db, [Number(rows[0]?.lane)], 'gone');
  await sql`update events set created_at = created_at - interval '1 minute' where kind = 'subscription.disabled'`.execute(
    server.db,
  );
  const { id } = await subscribe(app, { url: subscriber.url, kinds: ['*'] });
  const job = await recover(app.request, id, { since: daysAgo(1) });
  assert.equal(job.added, 1);
  assert.deepEqual(marksOf(await subscriber.waitFor(1)), ['after the grant']);

  await sql`update grants set scopes = array['read:profile', 'read:webhooks', 'write:webhooks'] where id = ${app.grantId}`.execute(
    server.db,
  );
  // Narrowing the grant ended the earlier token.
  const { accessToken } = await mintAccessToken(server, {
    account,
    client: { id: app.clientId },
    scopes: ['read:webhooks', 'write:webhooks'],
    grantId: app.grantId,
    claims: { grant_revision: 1 },
  });
  const request = requester(server, accessToken);
  const narrowed = await subscribe({ request }, { url: subscriber.url, kinds: ['*'] });
  assert.equal((await recover(request, narrowed.id, { since: daysAgo(1) })).added, 0);
});

test('webhooks 73: a client’s recovery follows the grants of that time, and a user’s covers their own events', async (t) => {
  const subscriber = await startSubscriber(t);
  const { client, request } = await createSubscribingClient(server);
  const granted = await createTestAccount(server);
  const later = await createTestAccount(server);
  const withdrawn = await createTestAccount(server);
  const scopes = ['read:posts'];
  await mintAccessToken(server, { account: granted, client, scopes });
  const { grantId } = await mintAccessToken(server, { account: withdrawn, client, scopes });
  for (const account of [granted, later, withdrawn]) await publish(publisher, account, [account.id]);
  await fannedOut();
  for (const account of [granted, later, withdrawn]) await age(account, '1 hour');
  await mintAccessToken(server, { account: later, client, scopes });
  await sql`update grants set withdrawn_at = now() where id = ${grantId}`.execute(server.db);
  const { id } = await subscribe({ request }, { url: subscriber.url });
  assert.equal((await recover(request, id, { since: daysAgo(1) })).added, 1);
  assert.deepEqual(marksOf(await subscriber.waitFor(1)), [granted.id]);

  const own = await startSubscriber(t);
  const owner = { kind: 'user' as const, accountId: later.id };
  const fields = {
    url: own.url,
    kinds: ['push'],
    signature: 'timestamp' as const,
    format: 'json' as const,
    version: null,
    ordered: false,
    handshake: false,
    rateLimit: null,
    description: '',
    retrySchedule: null,
    filter: null,
  };
  const sealer = createSealer(testSecret, 'subscription-secret');
  const made = await createSubscription(
    server.db,
    owner,
    fields,
    makeSecret(),
    sealer,
    new SubscriptionQuotas(server.db),
  );
  await sql`
    insert into recoveries (id, lane, since, until, states, missing_day)
    values (gen_random_uuid(), ${made?.lane}, now() - interval '1 day', now(), '{missing}', (now() - interval '1 day')::date)`.execute(
    server.db,
  );
  assert.deepEqual(marksOf(await own.waitFor(1)), [later.id]);
});

test('webhooks 73: a recovery covers days and thousands of events, each once and without a gap', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const count = 2_300;
  for (const day of [1, 0]) {
    await sql`
      insert into events (day, id, account_id, kind, body, created_at)
      select (now() at time zone 'utc')::date - ${day}::int, gen_random_uuid()::text, ${app.account.id}, 'push',
        json_build_object('ref', 'refs/heads/' || ${1 - day}::int || '-' || n)::text,
        now() - ${day}::int * interval '1 day' - interval '1 minute'
      from generate_series(1, ${count}::int) as n`.execute(server.db);
  }
  await age(app.account, '0 s');
  await sql`update grants set created_at = now() - interval '9 days' where id = ${app.grantId}`.execute(
    server.db,
  );
  const { id } = await subscribe(app, { url: subscriber.url, kinds: ['push'] });
  const job = await recover(app.request, id, { since: daysAgo(40) });
  assert.equal(job.added, 2 * count);
  const received = await subscriber.waitFor(2 * count);
  const bySequence = received
    .map(({ headers, body }) => ({
      sequence: Number(headers['nuncio-sequence']),
      mark: JSON.parse(body).ref,
    }))
    .sort((a, b) => a.sequence - b.sequence);
  assert.deepEqual(
    bySequence.map(({ sequence }) => sequence),
    Array.from({ length: 2 * count }, (_, index) => index + 1),
  );
  assert.deepEqual(
    bySequence.map(({ mark }) => mark),
    [0, 1].flatMap((day) => Array.from({ length: count }, (_, index) => `refs/heads/${day}-${index + 1}`)),
  );
});

test('webhooks 73: a failing recovery does not block another', async (t) => {
  const subscriber = await startSubscriber(t);
  const [stuck, app] = [await createApp(server), await createApp(server)];
  for (const { account } of [stuck, app]) await publish(publisher, account, ['early']);
  await fannedOut();
  for (const { account } of [stuck, app]) await age(account, '2 hours');
  const { id: stuckId } = await subscribe(stuck, { url: subscriber.url, kinds: ['push'] });
  const { id } = await subscribe(app, { url: subscriber.url, kinds: ['push'] });
  await sql`
    create function refuse() returns trigger language plpgsql as $$ begin raise 'not today'; end $$`.execute(
    server.db,
  );
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${stuckId}`.execute(
    server.db,
  );
  await sql`
    create trigger refused before update on lanes for each row when (old.id = ${sql.raw(String(rows[0]?.lane))})
    execute function refuse()`.execute(server.db);
  const path = `/subscriptions/${stuckId}/recover`;
  const failing = await stuck.request('POST', path, { json: { since: daysAgo(1) } });
  assert.equal(failing.status, 202);
  assert.equal((await recover(app.request, id, { since: daysAgo(1) })).added, 1);
  const job = failing.headers.get('location') as string;
  assert.equal((await stuck.request('GET', job)).body.state, 'running');
  await sql`drop trigger refused on lanes`.execute(server.db);
  const done = await until(
    () => stuck.request('GET', job),
    ({ body }) => body.state === 'done',
  );
  assert.equal(done.body.added, 1);
});

test('webhooks 73: a range from midnight includes an event begun before it', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const midnight = `${daysAgo(0).slice(0, 10)}T00:00:00.000Z`;
  await sql`
    insert into events (day, id, account_id, kind, body, created_at)
    select (${midnight}::timestamptz at time zone 'utc')::date - 1, gen_random_uuid()::text, ${app.account.id}, 'push',
      json_build_object('ref', 'refs/heads/' || ms)::text, ${midnight}::timestamptz + ms * interval '1 millisecond'
    from unnest(array[-1, 5]) as ms`.execute(server.db);
  await sql`update grants set created_at = now() - interval '9 days' where id = ${app.grantId}`.execute(
    server.db,
  );
  const { id } = await subscribe(app, { url: subscriber.url, kinds: ['push'] });
  assert.equal((await recover(app.request, id, { since: midnight })).added, 1);
  assert.deepEqual(marksOf(await subscriber.waitFor(1)), ['5']);
});
