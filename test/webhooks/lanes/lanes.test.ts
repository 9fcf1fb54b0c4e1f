/** Lanes under failures: database results that never arrive, rows that no node can use, rights that end midway. */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { createTestAccount, mintAccessToken } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  createSubscribingClient,
  publish,
  pushBody,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { answer, type Subscriber, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, { NUNCIO_RETRY_SCHEDULE: '1s,1s,1s' });
const { db } = server;
const publisher = await createPublisher(server);

const marksOf = (received: { body: string }[]) =>
  received.map(({ body }) => JSON.parse(body).ref.slice('refs/heads/'.length));

async function deliveries(app: App, id: string, query = '') {
  return (await app.request('GET', `/subscriptions/${id}/deliveries?limit=200${query}`)).body.items;
}

const invoice = { invoice: { id: 'inv_1', amount: 1, currency: 'EUR' } };
const publishInvoice = (account: { id: string }) =>
  publisher('POST', '/events', { json: { kind: 'invoice.paid', account: account.id, body: invoice } });

/**
 * A subscriber that responds to the first requests and delays the others until `goOn`, so that most of a backlog waits
 * at any speed of the machine.
 */
async function startHolding(t: TestContext): Promise<{ subscriber: Subscriber; goOn: () => void }> {
  const { promise, resolve: goOn } = Promise.withResolvers<void>();
  let responsesLeft = 20;
  const subscriber = await startSubscriber(t, async (_received, response) => {
    responsesLeft -= 1;
    if (responsesLeft < 0) await promise;
    response.writeHead(204).end();
  });
  t.after(() => goOn());
  return { subscriber, goOn };
}

test('webhooks 62: a lane leased to a missing node is taken by another', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await sql`
    update lane_progress set owner = 12345, due_at = null
    where lane = (select lane from subscriptions where id = ${id})`.execute(db);
  await publish(publisher, app.account, ['orphan']);
  assert.deepEqual(marksOf(await subscriber.waitFor(1)), ['orphan']);
});

test('webhooks 62: deliveries that waited for days are sent before new ones, whatever their day', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  // One transaction: retention, which runs at start-up, drops an old day without pending deliveries.
  await db.transaction().execute(async (tx) => {
    for (const table of ['events', 'deliveries', 'attempts']) {
      await sql`
        create table ${sql.id(`${table}_20200202`)} partition of ${sql.id(table)}
        for values from ('2020-02-02') to ('2020-02-03')`.execute(tx);
    }
    await sql`
      with lane as (
        update lanes set next_sequence = 3 where id = (select lane from subscriptions where id = ${id}) returning id
      ),
      event as (
        insert into events (day, id, account_id, kind, body)
        select '2020-02-02', 'old-' || number, ${app.account.id}, 'push',
          replace(${JSON.stringify(pushBody('old'))}, 'heads/old', 'heads/old-' || number)
        from generate_series(1, 2) as number returning day, position, id
      )
      insert into deliveries (day, lane, sequence, event)
      select event.day, lane.id, right(event.id, 1)::int, event.position from event, lane`.execute(tx);
  });
  await publish(publisher, app.account, ['new']);
  assert.deepEqual(marksOf(await subscriber.waitFor(3)), ['old-1', 'old-2', 'new']);
});

test('webhooks 45: a delivery read between the disabling and its notice is held, not cancelled', async (t) => {
  let count = 0;
  const subscriber = await startSubscriber(t, (_received, response) => {
    count += 1;
    response.writeHead(count === 50 ? 410 : 204).end();
  });
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await sql`alter table subscriptions disable trigger subscriptions_changed`.execute(db);
  try {
    for (let batch = 0; batch < 4; batch += 1) {
      await publish(
        publisher,
        app.account,
        Array.from({ length: 1_000 }, (_, index) => `${batch}-${index}`),
      );
    }
    await until(
      () => app.request('GET', `/subscriptions/${id}`),
      (one) => one.body.state === 'disabled',
    );
    await sleep(3_000);
  } finally {
    await sql`alter table subscriptions enable trigger subscriptions_changed`.execute(db);
  }
  assert.deepEqual(await deliveries(app, id, '&status=cancelled'), []);
  assert.ok((await deliveries(app, id, '&status=held')).length > 0);
});

test('webhooks 66: an ordered lane continues when a delivery is cancelled between its attempts', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, ordered: true, retry_schedule: [2, 2, 2, 2] });
  await publish(publisher, app.account, ['no more']);
  await subscriber.waitFor(1);
  // Leaves time to write the outcome.
  await sleep(500);
  subscriber.behave(answer(204));
  await sql`update grants set scopes = '{read:profile,read:webhooks}' where id = ${app.grantId}`.execute(db);
  assert.equal((await publishInvoice(app.account)).status, 202);
  const received = await subscriber.waitFor(2);
  assert.equal(received[1]?.headers['nuncio-event'], 'invoice.paid');
});

test('webhooks 66: an ordered app lane continues when one of its users withdraws', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createSubscribingClient(server);
  const { createGrant, withdrawGrant } = await import('../../../src/grants/grant.ts');
  const { createTestAccount } = await import('../../support/clients/oauth.ts');
  const [one, other] = [await createTestAccount(server), await createTestAccount(server)];
  const scopes = ['read:posts'];
  const grantId = await createGrant(db, { accountId: one.id, clientId: app.client.id, scopes });
  await createGrant(db, { accountId: other.id, clientId: app.client.id, scopes });
  await subscribe(app, { url: subscriber.url, ordered: true, retry_schedule: [2, 2, 2, 2] });
  await publish(publisher, one, ['withdrawn']);
  await subscriber.waitFor(1);
  await sleep(500);
  subscriber.behave(answer(204));
  await withdrawGrant(db, grantId, 'user');
  await publish(publisher, other, ['goes on']);
  assert.deepEqual(marksOf(await subscriber.waitFor(2)), ['withdrawn', 'goes on']);
});

test('webhooks 66: an ordered lane stays ordered after a resend', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, ordered: true, retry_schedule: [1] });
  await publish(publisher, app.account, ['gives up']);
  const [failed] = await until(
    () => deliveries(app, id),
    ([first]) => first?.state === 'failed',
  );
  subscriber.behave(answer(204));
  await app.request('POST', `/deliveries/${failed.id}/resend`);
  await subscriber.waitFor(3);
  let failures = 1;
  subscriber.behave((_received, response) => {
    failures -= 1;
    response.writeHead(failures >= 0 ? 500 : 204).end();
  });
  await publish(publisher, app.account, ['first', 'second']);
  const received = await subscriber.waitFor(6);
  assert.deepEqual(marksOf(received).slice(3), ['first', 'first', 'second']);
});

test('webhooks 71: a delivery with more attempts than the counter holds blocks nobody', async (t) => {
  const [subscriber, other] = [await startSubscriber(t), await startSubscriber(t)];
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, kinds: ['push'] });
  await publish(publisher, app.account, ['often']);
  const [one] = await until(
    () => deliveries(app, id),
    ([first]) => first?.state === 'succeeded',
  );
  await sql`
    insert into retries (lane, sequence, day, state, attempts)
    select lane, sequence, day, 'failed', 32767 from deliveries
    where lane = (select lane from subscriptions where id = ${id})`.execute(db);
  assert.equal((await app.request('POST', `/deliveries/${one.id}/resend`)).status, 202);
  await subscriber.waitFor(2);
  const { id: otherId } = await subscribe(app, { url: other.url, kinds: ['push'] });
  await publish(publisher, app.account, ['after']);
  await other.waitFor(1);
  await until(
    () => deliveries(app, otherId),
    ([first]) => first?.state === 'succeeded',
  );
});

test('webhooks 78: a secret that cannot be opened stops only its own subscription', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const broken = await subscribe(app, { url: subscriber.url, kinds: ['push'] });
  await sql`update subscriptions set secret = '\\x00' where id = ${broken.id}`.execute(db);
  await subscribe(app, { url: `${subscriber.url}/good`, kinds: ['push'] });
  await publish(publisher, app.account, ['good']);
  try {
    assert.deepEqual(marksOf(await subscriber.waitFor(1)), ['good']);
  } finally {
    await sql`update subscriptions set state = 'ended' where id = ${broken.id}`.execute(db);
  }
});

test('webhooks 60: a disabled client gets nothing more by its users’ grants', async (t) => {
  const { subscriber, goOn } = await startHolding(t);
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  await publish(
    publisher,
    app.account,
    Array.from({ length: 1_000 }, (_, index) => index),
  );
  await subscriber.waitFor(10);
  await sql`update clients set disabled_at = now() where id = ${app.clientId}`.execute(db);
  await sleep(1_000);
  const count = subscriber.received.length;
  assert.ok(count < 900);
  goOn();
  await sleep(1_000);
  assert.equal(subscriber.received.length, count);
});

test('webhooks 13: deliveries in memory stop for a user who withdraws, and continue for the client’s other users', async (t) => {
  const { subscriber, goOn } = await startHolding(t);
  const { client, request } = await createSubscribingClient(server);
  await subscribe({ request }, { url: subscriber.url });
  const [leaving, staying] = [await createTestAccount(server), await createTestAccount(server)];
  const { grantId } = await mintAccessToken(server, { account: leaving, client, scopes: ['read:posts'] });
  await mintAccessToken(server, { account: staying, client, scopes: ['read:posts'] });
  for (let count = 0; count < 300; count += 1) {
    if (count % 100 > 0) continue;
    const marks = (name: string) => Array.from({ length: 300 }, (_, index) => `${name} ${count + index}`);
    await publish(publisher, leaving, marks('leaving'));
    await publish(publisher, staying, marks('staying'));
  }
  const of = (name: string) =>
    subscriber.received.filter(({ body }) => body.includes(`heads/${name} `)).length;
  await subscriber.waitFor(20);
  await sql`update grants set withdrawn_at = now() where id = ${grantId}`.execute(db);
  await sleep(1_500);
  const [left, stayed] = [of('leaving'), of('staying')];
  assert.ok(left < 900, 'everything was sent before');
  goOn();
  await until(
    async () => of('staying'),
    (count) => count === 900,
  );
  assert.ok(stayed < 900, 'nothing was left to be sent');
  assert.equal(of('leaving'), left);
});

test('webhooks 60: a disabled client gets nothing more by its own subscription', async (t) => {
  const { subscriber, goOn } = await startHolding(t);
  const { client, request } = await createSubscribingClient(server);
  await subscribe({ request }, { url: subscriber.url });
  const account = await createTestAccount(server);
  await mintAccessToken(server, { account, client, scopes: ['read:posts'] });
  await publish(
    publisher,
    account,
    Array.from({ length: 1_000 }, (_, index) => index),
  );
  await subscriber.waitFor(10);
  await sql`update clients set disabled_at = now() where id = ${client.id}`.execute(db);
  await sleep(1_500);
  const count = subscriber.received.length;
  assert.ok(count < 900);
  goOn();
  await sleep(1_000);
  assert.equal(subscriber.received.length, count);
});

test('an accepted retry is not sent again', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url, retry_schedule: [1, 600] });
  const seen = new Set<unknown>();
  let accepted = 0;
  subscriber.behave(({ headers }, response) => {
    const id = headers['nuncio-delivery'];
    if (seen.has(id)) {
      accepted += 1;
      setTimeout(() => response.writeHead(204).end(), 100 + Math.random() * 300);
      return;
    }
    seen.add(id);
    // Never ten failures in a row, so that the circuit stays closed.
    response.writeHead(seen.size % 8 === 0 ? 204 : 500).end();
  });
  await publish(
    publisher,
    app.account,
    Array.from({ length: 800 }, (_, index) => index),
  );
  await until(
    async () => accepted,
    (value) => value >= 700,
  );
  await sleep(2_000);
  assert.equal(accepted, 700);
});

test('webhooks 46: a success in flight does not undo Retry-After', async (t) => {
  let count = 0;
  const subscriber = await startSubscriber(t, (_received, response) => {
    count += 1;
    if (count === 1) response.writeHead(429, { 'retry-after': '3' }).end();
    else if (count <= 4) setTimeout(() => response.writeHead(204).end(), 300);
    else response.writeHead(204).end();
  });
  const app = await createApp(server);
  await subscribe(app, { url: subscriber.url });
  await publish(
    publisher,
    app.account,
    Array.from({ length: 8 }, (_, index) => index),
  );
  const received = await subscriber.waitFor(9);
  const first = received[0]?.at ?? 0;
  const early = received.slice(1).filter(({ at }) => at - first > 250 && at - first < 2_900);
  assert.equal(early.length, 0);
});

test('webhooks 46: what is added while a lane pauses is sent after the pause, without another event', async (t) => {
  const subscriber = await startSubscriber(t, answer(503, { 'retry-after': '4' }));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, retry_schedule: [3_600] });
  await publish(publisher, app.account, ['refused']);
  await until(
    () => deliveries(app, id, '&status=failing'),
    ({ length }) => length === 1,
  );
  assert.equal((await app.request('POST', `/subscriptions/${id}/test`, { json: {} })).status, 202);
  await subscriber.waitFor(2);
});

test('concurrent changes of a subscription are all applied', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://example.com/' });
  for (let round = 0; round < 10; round += 1) {
    const rate = round + 1;
    const answers = await Promise.all([
      app.request('PATCH', `/subscriptions/${id}`, { json: { description: `round ${round}` } }),
      app.request('PATCH', `/subscriptions/${id}`, { json: { rate_limit: rate } }),
      app.request('PATCH', `/subscriptions/${id}`, { json: { retry_schedule: [rate] } }),
    ]);
    assert.deepEqual(
      answers.map(({ status }) => status),
      [200, 200, 200],
    );
    const { body } = await app.request('GET', `/subscriptions/${id}`);
    assert.deepEqual(
      [body.description, body.rate_limit, body.retry_schedule],
      [`round ${round}`, rate, [rate]],
    );
  }
});

test('an owner cannot exceed the subscription limit with thirty concurrent requests', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://example.com/' });
  await sql`
    insert into subscriptions (id, lane, owner, grant_id, account_id, client_id, url, kinds, signature, secret)
    select gen_random_uuid(), (random() * 4503599627370495)::bigint, owner, grant_id, account_id, client_id, url, kinds,
      signature, secret
    from subscriptions, generate_series(1, 994) where id = ${id}`.execute(db);
  const json = { url: 'https://example.com/', kinds: ['push'] };
  const answers = await Promise.all(
    Array.from({ length: 30 }, () => app.request('POST', '/subscriptions', { json })),
  );
  assert.equal(answers.filter(({ status }) => status === 201).length, 5);
});

test('odd parameters of the log are refused or match nothing, without a server error', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://example.com/' });
  const paths = [
    `/subscriptions/${id}/deliveries?kind=%00`,
    `/subscriptions/${id}/deliveries?kind=a&kind=b`,
    `/subscriptions/${id}/deliveries?status=%00`,
    `/subscriptions/${id}/deliveries?after=AA`,
    `/subscriptions/${id}/deliveries?after=${Buffer.from('1.5').toString('base64url')}`,
    `/subscriptions/${id}/deliveries?after=${Buffer.from('-1').toString('base64url')}`,
    `/subscriptions/${id}/deliveries?after=${Buffer.from('9007199254740991').toString('base64url')}`,
    `/subscriptions/${id}/deliveries?limit=1e2`,
    `/subscriptions/%00`,
    `/subscriptions?after=%00`,
    `/deliveries/%00`,
    '/deliveries/ffffffff-ffff-8fff-8fff-ffffffffffff',
  ];
  for (const path of paths) {
    const { status } = await app.request('GET', path);
    assert.ok(status < 500, `${path} gave ${status}`);
  }
});

test('a retried CloudEvent has the time of the first attempt', async (t) => {
  const subscriber = await startSubscriber(t, answer(500));
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url, format: 'cloudevents', retry_schedule: [2] });
  await publish(publisher, app.account, ['time']);
  const [first] = await subscriber.waitFor(1);
  const { rows } = await sql<{ created_at: Date }>`
    select e.created_at from events e join deliveries d on d.event = e.position and d.day = e.day
    where d.lane = (select lane from subscriptions where id = ${id})`.execute(db);
  assert.equal(JSON.parse(first?.body as string).time, rows[0]?.created_at.toISOString());
  assert.deepEqual(JSON.parse(first?.body as string).data, pushBody('time'));
});

test('a long lane’s log is searched in parts: a short page links to the next', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: 'https://example.com/' });
  // 25,000 accepted deliveries. Only the first one failed and has another kind.
  await sql`
    with lane as (select lane from subscriptions where id = ${id}),
    event as (
      insert into events (id, account_id, kind, body) values ('log', ${app.account.id}, 'push', '{}')
      returning day, position
    ),
    rare as (
      insert into events (id, account_id, kind, body) values ('rare', ${app.account.id}, 'invoice.paid', '{}')
      returning position
    ),
    head as (update lanes set next_sequence = 25001 from lane where id = lane.lane),
    progress as (update lane_progress p set cursor = 25000 from lane where p.lane = lane.lane),
    failed as (insert into retries (lane, sequence, day, state, attempts) select lane, 1, day, 'failed', 1 from lane, event)
    insert into deliveries (day, lane, sequence, event)
    select day, lane, sequence, case when sequence = 1 then rare.position else event.position end
    from event, rare, lane, generate_series(1, 25000) as sequence`.execute(db);
  const sizesOf = async (query: string) => {
    let path: string | undefined = `/subscriptions/${id}/deliveries?${query}`;
    const sizes: number[] = [];
    while (path !== undefined) {
      const { body } = await app.request('GET', path);
      sizes.push(body.items.length);
      path = body._links.next?.href;
    }
    return sizes;
  };
  assert.deepEqual(await sizesOf('kind=invoice.paid'), [0, 0, 1]);
  // An index finds the failed delivery.
  assert.deepEqual(await sizesOf('status=failed'), [1]);
});

test('a column added by a migration does not stop a node with the old code', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['before']);
  await subscriber.waitFor(1);
  for (let round = 0; round < 5; round += 1) await app.request('GET', `/subscriptions/${id}`);
  await sql`alter table subscriptions add column later integer`.execute(db);
  await app.request('POST', `/subscriptions/${id}/test`);
  await publish(publisher, app.account, ['after']);
  await subscriber.waitFor(3);
  for (let round = 0; round < 5; round += 1) {
    assert.equal((await app.request('GET', `/subscriptions/${id}`)).status, 200);
  }
});

test('webhooks 62: a retry’s outcome is written before its lane is released', async (t) => {
  const asked = Promise.withResolvers<void>();
  const goOn = Promise.withResolvers<void>();
  const subscriber = await startSubscriber(t, async (_received, response) => {
    if (subscriber.received.length > 1) {
      asked.resolve();
      await goOn.promise;
    }
    response.writeHead(subscriber.received.length > 1 ? 204 : 500).end();
  });
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['repeated']);
  await asked.promise;
  // The subscription is disabled while nothing can be written, so the node must release its lane as soon as possible.
  await db.transaction().execute(async (tx) => {
    await sql`select from nodes for update`.execute(tx);
    await app.request('PATCH', `/subscriptions/${id}`, { json: { state: 'disabled' } });
    goOn.resolve();
    await sleep(2_000);
  });
  await until(
    async () => (await deliveries(app, id))[0],
    ({ state }) => state === 'succeeded',
  );
});

test('webhooks 76: deliveries dropped with their day do not block later ones', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const ofLane = sql`(select lane from subscriptions where id = ${id})`;
  await sql`update lanes set next_sequence = 6001 where id = ${ofLane}`.execute(db);
  await publish(publisher, app.account, ['kept', 'too']);
  assert.deepEqual(marksOf(await subscriber.waitFor(2)).toSorted(), ['kept', 'too']);
  // The lane can be released like any other.
  for (const state of ['disabled', 'active'])
    assert.equal((await app.request('PATCH', `/subscriptions/${id}`, { json: { state } })).status, 200);
  await publish(publisher, app.account, ['after']);
  assert.equal(marksOf(await subscriber.waitFor(3))[2], 'after');
});
