/**
 * After the response to a withdrawal, or to the end of a subscription, no node starts another request to the
 * subscriber. These databases send no notification when a lane changes: a node that learned of the end only by polling
 * would continue for a second.
 */

import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { after, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { newId } from '../../../src/crypto/ids.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import {
  maxStalenessMs,
  silentNodeAfterMs,
  withAccountHold,
  withDeliveryHold,
} from '../../../src/grants/delivery_hold.ts';
import { createGrant, endClient, withdrawGrant, withdrawGrantsOfClient } from '../../../src/grants/grant.ts';
import { TestBrowser } from '../../support/browser/browser.ts';
import { requester } from '../../support/clients/api_client.ts';
import {
  authorize,
  createTestAccount,
  createTestClient,
  mintAccessToken,
  postForm,
} from '../../support/clients/oauth.ts';
import { createDatabase } from '../../support/database/database.ts';
import { startDatabaseProxy } from '../../support/database/database_proxy.ts';
import { openTestDatabase } from '../../support/database/open_database.ts';
import { runCommand } from '../../support/servers/process.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { startTwoNodes } from '../../support/servers/two_nodes.ts';
import {
  type App,
  appScopes,
  createApp,
  createPublisher,
  createSubscribingClient,
  fannedOut,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { publishOnAndOn } from '../../support/webhooks/load.ts';
import { accept, countNow, type Subscriber, startSubscriber } from '../../support/webhooks/subscriber.ts';

async function silence(db: Database): Promise<void> {
  await sql`
    create or replace function notify_lane_changed(lane bigint) returns void language sql as 'select'`.execute(
    db,
  );
}

/** @param end ends the subscriber's right to its deliveries, while more events are published */
async function endsAtOnce(subscriber: Subscriber, end: () => Promise<unknown>): Promise<void> {
  await subscriber.waitFor(subscriber.received.length + 200);
  await end();
  const count = await countNow(subscriber);
  await sleep(1_500);
  assert.equal(subscriber.received.length, count);
}

const server = await startTestServer({ after });
await silence(server.db);
const publisher = await createPublisher(server);

const machineClient = await createTestClient(server, {
  scopes: ['admin', 'read:accounts', 'write:accounts'],
});
const machineToken = await mintAccessToken(server, {
  client: machineClient,
  scopes: ['admin', 'read:accounts', 'write:accounts'],
});
const machine = requester(server, machineToken.accessToken);

const ends: Record<string, (app: App, subscription: { id: string }) => Promise<unknown>> = {
  'the withdrawal of a grant': (app) => withdrawGrant(server.db, app.grantId, 'user'),
  'the withdrawal of all that a user let an app do': (app) =>
    withdrawGrantsOfClient(server.db, app.account.id, app.clientId),
  'the end of the app': (app) => endClient(server.db, app.clientId),
  'two withdrawals at once': (app) =>
    Promise.all([
      withdrawGrant(server.db, app.grantId, 'user'),
      withdrawGrantsOfClient(server.db, app.account.id, app.clientId),
    ]),
  'the administrator disables the account': async (app) => {
    const { status } = await machine('POST', `/admin/accounts/${app.account.id}/disable`);
    assert.equal(status, 200);
  },
  'the application disables the account': async (app) => {
    const { id } = app.account;
    const externalId = `user ${id}`;
    await sql`update accounts set external_id = ${externalId} where id = ${id}`.execute(server.db);
    const path = `/accounts/external/${encodeURIComponent(externalId)}`;
    const { status, text } = await machine('PUT', path, { json: { disabled: true } });
    assert.equal(status, 200, text);
  },
  'the application changes the account to disabled': async (app) => {
    const { id } = app.account;
    await sql`update accounts set external_id = ${id} where id = ${id}`.execute(server.db);
    const { status, text } = await machine('PATCH', `/accounts/${id}`, { json: { disabled: true } });
    assert.equal(status, 200, text);
  },
  'the operator disables the account by a command': async (app) => {
    const { code } = await runCommand(['user', 'disable', app.account.id], {
      DATABASE_URL: server.databaseUrl,
    });
    assert.equal(code, 0);
  },
  'DELETE of the subscription': async (app, { id }) => {
    assert.equal((await app.request('DELETE', `/subscriptions/${id}`)).status, 204);
  },
  'PATCH of the state': async (app, { id }) => {
    const { status, body } = await app.request('PATCH', `/subscriptions/${id}`, {
      json: { state: 'disabled' },
    });
    assert.deepEqual([status, body.state], [200, 'disabled']);
  },
  'PATCH of the URL': async (app, { id }) => {
    const url = 'https://elsewhere.example/';
    assert.equal((await app.request('PATCH', `/subscriptions/${id}`, { json: { url } })).status, 200);
  },
};

for (const [what, end] of Object.entries(ends)) {
  test(`nothing starts after ${what}`, async (t) => {
    const subscriber = await startSubscriber(t);
    const app = await createApp(server);
    const subscription = await subscribe(app, { url: subscriber.url });
    const load = publishOnAndOn(t, publisher, app.account);
    await endsAtOnce(subscriber, () => end(app, subscription));
    await load.stop();
  });
}

test('nothing starts after a refresh token is revoked or its user withdraws', async (t) => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  for (const how of ['revoked', 'withdrawn by its user'] as const) {
    const subscriber = await startSubscriber(t);
    const tokens = await authorize(server, { account, client, scopes: ['read:posts', 'write:webhooks'] });
    const request = requester(server, tokens.accessToken);
    await subscribe({ request }, { url: subscriber.url });
    const load = publishOnAndOn(t, publisher, account);
    await endsAtOnce(subscriber, async () => {
      if (how === 'revoked') {
        const { status } = await postForm(server, '/oauth/revoke', client, {
          token: tokens.refreshToken as string,
        });
        assert.equal(status, 200);
      } else {
        const browser = new TestBrowser(server.baseUrl);
        const form = await browser.open(`${server.baseUrl}/account`);
        const page = await browser.submit(form, { email: account.email, password: account.password });
        assert.match((await browser.submit(page, {})).text, /No apps are connected to your account/);
      }
    });
    await load.stop();
  }
});

for (const ordered of [false, true])
  test(`a client’s own ${ordered ? 'ordered ' : ''}subscription stops the withdrawn account’s deliveries and continues the others`, async (t) => {
    const subscriber = await startSubscriber(t);
    const app = await createSubscribingClient(server);
    const stays = await createTestAccount(server);
    await createGrant(server.db, { accountId: stays.id, clientId: app.client.id, scopes: ['read:posts'] });
    const { id } = await subscribe(app, { url: subscriber.url, ordered });
    const lasting = publishOnAndOn(t, publisher, stays, ordered ? subscriber : undefined);
    for (let count = 0; count < 6; count += 1) {
      const leaves = await createTestAccount(server);
      const grantId = await createGrant(server.db, {
        accountId: leaves.id,
        clientId: app.client.id,
        scopes: ['read:posts'],
      });
      const load = publishOnAndOn(t, publisher, leaves, ordered ? subscriber : undefined);
      const ofLeaver = () => subscriber.received.filter(({ body }) => body.includes(leaves.id)).length;
      await until(
        async () => ofLeaver(),
        (value) => value > (ordered ? 20 : 100),
      );
      assert.equal(await withdrawGrant(server.db, grantId, 'user'), true);
      await countNow(subscriber);
      const received = ofLeaver();
      await sleep(300);
      await load.stop();
      assert.equal(ofLeaver(), received);
    }
    await lasting.stop();
    const expected = lasting.count();
    await until(
      async () =>
        new Set(subscriber.received.flatMap(({ body }) => (body.includes(stays.id) ? [body] : []))).size,
      (value) => value === expected,
    );
    // Outcomes are written a moment after their responses.
    const pending = async () =>
      (
        await sql`
        select from retries r join subscriptions s on s.lane = r.lane
        where s.id = ${id} and r.state = 'pending'`.execute(server.db)
      ).rows.length;
    await until(pending, (count) => count === 0);
    if (!ordered) return;
    const sequences = subscriber.received.map(({ headers }) => Number(headers['nuncio-sequence']));
    assert.deepEqual(
      sequences,
      sequences.toSorted((a, b) => a - b),
    );
  });

test('deliveries continue when what was to end did not', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const load = publishOnAndOn(t, publisher, app.account);
  await subscriber.waitFor(100);
  const lane = await laneOf(server.db, id);
  for (let count = 0; count < 5; count += 1) {
    const refused = withDeliveryHold(server.db, lane, async () => {
      const before = await countNow(subscriber);
      await sleep(200);
      assert.equal(subscriber.received.length, before);
      throw new Error('it does not end');
    });
    await assert.rejects(refused, /it does not end/);
    await subscriber.waitFor(subscriber.received.length + 100);
  }
  await load.stop();
  await until(
    async () => new Set(subscriber.received.map(({ headers }) => headers['nuncio-sequence'])).size,
    (value) => value === load.count(),
  );
  assert.equal(subscriber.received.length, load.count());
});

test('an app’s own subscription continues for other accounts while one account’s deliveries are held', async (t) => {
  for (const ordered of [false, true]) {
    const subscriber = await startSubscriber(t);
    const app = await createSubscribingClient(server);
    const [held, other] = [await createTestAccount(server), await createTestAccount(server)];
    const grant = { clientId: app.client.id, scopes: ['read:posts'] };
    for (const { id } of [held, other]) await createGrant(server.db, { ...grant, accountId: id });
    const { id } = await subscribe(app, { url: subscriber.url, ordered });
    const countOf = (account: { id: string }) =>
      subscriber.received.filter(({ body }) => body.includes(account.id)).length;
    await publish(publisher, held, [`${held.id} first`]);
    await subscriber.waitFor(1);
    const load = publishOnAndOn(t, publisher, held, ordered ? subscriber : undefined);
    // In an ordered lane, deliveries of the other account must not overtake held ones.
    const others = ordered ? publishOnAndOn(t, publisher, other, subscriber) : undefined;
    const subject = { clientId: app.client.id, accountId: held.id, lane: null };
    for (let round = 0; round < 3; round += 1) {
      await until(
        async () => countOf(held),
        (count) => count > 1,
      );
      const refused = withDeliveryHold(server.db, subject, async () => {
        await countNow(subscriber);
        const [before, otherBefore] = [countOf(held), countOf(other)];
        // In an ordered lane the first delivery waits, and all behind it.
        if (ordered) await sleep(300);
        else {
          await publish(
            publisher,
            other,
            Array.from({ length: 20 }, (_, index) => `${other.id} ${round} ${index}`),
          );
          await until(
            async () => countOf(other),
            (count) => count === otherBefore + 20,
          );
        }
        assert.equal(countOf(held), before);
        throw new Error('it does not end');
      });
      await assert.rejects(refused, /it does not end/);
    }
    await load.stop();
    await others?.stop();
    const expected = 1 + load.count() + (others?.count() ?? 60);
    await until(
      async () => new Set(subscriber.received.map(({ headers }) => headers['nuncio-delivery'])).size,
      (count) => count === expected,
    );
    assert.equal(subscriber.received.length, expected);
    const sequences = subscriber.received.map(({ headers }) => Number(headers['nuncio-sequence']));
    if (ordered)
      assert.deepEqual(
        sequences,
        sequences.toSorted((a, b) => a - b),
      );
    const { body } = await app.request('GET', `/subscriptions/${id}/deliveries?status=failed`);
    assert.deepEqual(body.items, []);
  }
});

test('an app’s ordered subscription continues while accounts of which it has no event are held', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createSubscribingClient(server);
  const [held, other] = [await createTestAccount(server), await createTestAccount(server)];
  const grant = { clientId: app.client.id, scopes: ['read:posts'] };
  for (const { id } of [held, other]) await createGrant(server.db, { ...grant, accountId: id });
  await subscribe(app, { url: subscriber.url, ordered: true });
  const numbersOf = () => subscriber.received.map(({ headers }) => Number(headers['nuncio-sequence']));
  const refused = withAccountHold(server.db, held.id, async () => {
    await publish(publisher, other, ['before it']);
    await subscriber.waitFor(1);
    await publish(publisher, held, ['held']);
    await publish(publisher, other, ['after it']);
    await fannedOut(server);
    await sleep(300);
    assert.deepEqual(numbersOf(), [1], 'the lane waits at the first delivery of the account');
    throw new Error('it does not end');
  });
  await assert.rejects(refused, /it does not end/);
  await subscriber.waitFor(3);
  assert.deepEqual(numbersOf(), [1, 2, 3]);
  await withAccountHold(server.db, held.id, async (tx) => {
    await publish(publisher, held, ['never sent']);
    await publish(publisher, other, ['sent']);
    await fannedOut(server);
    await sleep(300);
    await sql`update accounts set disabled_at = now() where id = ${held.id}`.execute(tx);
  });
  await subscriber.waitFor(4);
  assert.deepEqual(numbersOf(), [1, 2, 3, 5]);
});

test('a delivery hold ends when its requester is gone', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const { lane } = await laneOf(server.db, id);
  await sql`
    insert into delivery_holds (id, lane, until) values (${newId()}, ${lane}, now() + interval '3 seconds')`.execute(
    server.db,
  );
  // There is no notification: the node finds the hold by polling.
  await until(
    async () => (await sql`select from delivery_hold_acknowledgements`.execute(server.db)).rows.length,
    (answers) => answers === 1,
  );
  await publish(publisher, app.account, ['kept back']);
  await sleep(500);
  assert.equal(subscriber.received.length, 0);
  await subscriber.waitFor(1);
  assert.equal((await sql`select from delivery_holds`.execute(server.db)).rows.length, 0);
});

test('a delivery hold does not time out while its transaction commits', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: subscriber.url });
  const { lane } = await laneOf(server.db, id);
  await sql`
    insert into delivery_holds (id, lane, until) values (${newId()}, ${lane}, now() + interval '2 seconds')`.execute(
    server.db,
  );
  await until(
    async () => (await sql`select from delivery_hold_acknowledgements`.execute(server.db)).rows.length,
    (answers) => answers === 1,
  );
  await publish(publisher, app.account, ['kept back']);
  await server.db.transaction().execute(async (tx) => {
    await sql`delete from delivery_holds`.execute(tx);
    await sleep(4_000);
    assert.equal(subscriber.received.length, 0);
  });
  await subscriber.waitFor(1);
});

test('an attempt that waits for its connection is called off and not counted', async (t) => {
  let isSlow = true;
  const resolveHost = async () => {
    while (isSlow) await sleep(20);
    return ['127.0.0.1'];
  };
  const own = await startTestServer(t, {}, 'dev', undefined, { resolveHost });
  const subscriber = await startSubscriber(t);
  const url = `http://subscriber.example:${subscriber.port}`;
  const toPublish = await createPublisher(own);
  const app = await createSubscribingClient(own);
  const [leaves, stays] = [await createTestAccount(own), await createTestAccount(own)];
  const scopes = ['read:posts'];
  const grantId = await createGrant(own.db, { accountId: leaves.id, clientId: app.client.id, scopes });
  await createGrant(own.db, { accountId: stays.id, clientId: app.client.id, scopes });
  const { id } = await subscribe(app, { url, ordered: true });
  await publish(toPublish, leaves, ['withdrawn']);
  await publish(toPublish, stays, ['goes on', 'and on']);
  await sleep(500);
  await withdrawGrant(own.db, grantId, 'user');
  isSlow = false;
  await subscriber.waitFor(2);
  await sleep(500);
  assert.deepEqual(
    subscriber.received.map(({ body }) => JSON.parse(body).ref),
    ['refs/heads/goes on', 'refs/heads/and on'],
  );
  const { body } = await app.request('GET', `/subscriptions/${id}/deliveries`);
  const seen = body.items.map(({ state, attempt_count }: never) => [state, attempt_count]);
  assert.deepEqual(seen, [
    ['succeeded', 1],
    ['succeeded', 1],
    ['cancelled', 0],
  ]);
});

async function startNodes(t: TestContext) {
  const nodes = await startTwoNodes(t);
  await silence(nodes.db);
  return { ...nodes, publisher: await createPublisher(nodes.serverB) };
}

test('nothing starts on one node after it ended on another', async (t) => {
  const { db, serverA, serverB, publisher: throughB } = await startNodes(t);
  const account = await createTestAccount(serverA);
  const client = await createTestClient(serverA, { scopes: appScopes });
  for (const how of ['withdrawn', 'deleted', 'withdrawn'] as const) {
    const subscriber = await startSubscriber(t);
    const { accessToken, grantId } = await mintAccessToken(serverA, { account, client, scopes: appScopes });
    const [atA, atB] = [requester(serverA, accessToken), requester(serverB, accessToken)];
    const { id } = await subscribe({ request: atA }, { url: subscriber.url });
    const load = publishOnAndOn(t, throughB, account);
    await endsAtOnce(subscriber, async () => {
      if (how === 'withdrawn') await withdrawGrant(db, grantId as string, 'user');
      else assert.equal((await atB('DELETE', `/subscriptions/${id}`)).status, 204);
    });
    await load.stop();
  }
});

test('a stalled node is waited for until it starts nothing, and starts nothing when it resumes', async (t) => {
  const { db, first, serverA, publisher: throughB } = await startNodes(t);
  const account = await createTestAccount(serverA);
  const client = await createTestClient(serverA, { scopes: appScopes });
  const subscriber = await startSubscriber(t);
  const { accessToken, grantId } = await mintAccessToken(serverA, { account, client, scopes: appScopes });
  await subscribe({ request: requester(serverA, accessToken) }, { url: subscriber.url });
  const load = publishOnAndOn(t, throughB, account);
  await subscriber.waitFor(200);
  // The node is stopped while all attempts of the lane's window wait for responses: one stopped within a request would still finish it.
  const unanswered: ServerResponse[] = [];
  subscriber.behave((_received, response) => unanswered.push(response));
  await until(
    async () => unanswered.length,
    (count) => count === 32,
  );
  // Other nodes count its silence from its last heartbeat.
  const readHeartbeats = async () => {
    const { rows } = await sql<{ heartbeats: string }>`
      select heartbeats from nodes where process like ${`${first.child.pid} %`}`.execute(db);
    return rows[0]?.heartbeats;
  };
  const before = await readHeartbeats();
  assert.ok(before !== undefined);
  // Before the last heartbeat.
  let earlierAt = performance.now();
  const readNext = async () => {
    const askedAt = performance.now();
    const heartbeats = await readHeartbeats();
    if (heartbeats === before) earlierAt = askedAt;
    return heartbeats;
  };
  await until(readNext, (heartbeats) => heartbeats !== before);
  first.child.kill('SIGSTOP');
  // It finds them when it resumes, and has room for more attempts.
  for (const response of unanswered) response.writeHead(204).end();
  subscriber.behave(accept);
  await withdrawGrant(db, grantId as string, 'user');
  const silentMs = performance.now() - earlierAt;
  const count = await countNow(subscriber);
  first.child.kill('SIGCONT');
  await sleep(2_000);
  await load.stop();
  assert.equal(subscriber.received.length, count);
  assert.ok(silentMs >= silentNodeAfterMs, `${silentMs} ms`);
});

test('nothing can end while the database is away, and it can afterwards', async (t) => {
  const database = await createDatabase();
  const proxy = await startDatabaseProxy(database.url);
  const db = openDatabase({ connectionString: proxy.url, connectionsMax: 2, onIdleError: () => {} });
  t.after(async () => {
    await db.destroy();
    await proxy.close();
    await database.drop();
  });
  const account = await createTestAccount({ db });
  const client = await createTestClient({ db });
  const scopes = ['read:posts', 'write:webhooks'];
  const id = await createGrant(db, { accountId: account.id, clientId: client.id, scopes });
  proxy.cut();
  await assert.rejects(withdrawGrant(db, id, 'user'));
  proxy.mend();
  assert.equal(await withdrawGrant(db, id, 'user'), true);
  assert.equal(await withdrawGrant(db, id, 'user'), false);
  assert.equal((await sql`select from delivery_holds`.execute(db)).rows.length, 0);
});

async function laneOf(db: Database, id: string) {
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions where id = ${id}`.execute(db);
  return { clientId: null, accountId: null, lane: Number(rows[0]?.lane) };
}

test('a PATCH holds deliveries only when it changes their destination or the right to them', async (t) => {
  const own = await startTestServer(t);
  const app = await createApp(own);
  const { id } = await subscribe(app, { url: 'http://127.0.0.1:20001/', kinds: ['push', 'article.*'] });
  await sql`create table asked (lane bigint)`.execute(own.db);
  await sql`
    create function note_delivery_hold() returns trigger language plpgsql as $$
    begin
      insert into asked values (new.lane);
      return null;
    end $$`.execute(own.db);
  await sql`
    create trigger note_delivery_hold after insert on delivery_holds for each row execute function note_delivery_hold()`.execute(
    own.db,
  );
  const countHolds = async (json: Record<string, unknown>) => {
    await sql`delete from asked`.execute(own.db);
    const { status, text } = await app.request('PATCH', `/subscriptions/${id}`, { json });
    assert.equal(status, 200, text);
    return (await sql`select from asked`.execute(own.db)).rows.length;
  };
  for (const json of [
    {},
    { description: 'another' },
    { rate_limit: 5, retry_schedule: [5] },
    { url: 'http://127.0.0.1:20001/', kinds: ['push', 'article.*', 'comment.*'] },
  ]) {
    assert.equal(await countHolds(json), 0, JSON.stringify(json));
  }
  for (const json of [
    { url: 'http://127.0.0.1:20001/other' },
    { headers: { 'x-key': 'value' } },
    { kinds: ['push'] },
    { state: 'disabled' },
  ]) {
    assert.equal(await countHolds(json), 1, JSON.stringify(json));
  }
});

/** Counts the holds that are requested from now on. */
async function countHoldsOf(db: Database): Promise<() => Promise<number>> {
  await sql`create table asked (id uuid)`.execute(db);
  await sql`
    create function note_delivery_hold() returns trigger language plpgsql as $$
    begin
      insert into asked values (new.id);
      return null;
    end $$`.execute(db);
  await sql`
    create trigger note_delivery_hold after insert on delivery_holds for each row execute function note_delivery_hold()`.execute(
    db,
  );
  return async () => (await sql`select from asked`.execute(db)).rows.length;
}

test('a withdrawal waits for an unresponsive node, unless other nodes recorded it as silent at its current heartbeat', async (t) => {
  const { db } = await openTestDatabase(t, 4);
  const countHoldsNow = await countHoldsOf(db);
  const subject = { clientId: null, accountId: newId(), lane: null };
  /** @returns how many holds were requested: one if no node was waited for */
  const holdsBeside = async (silentHeartbeats: number | null, epoch: ReturnType<typeof sql>) => {
    const before = await countHoldsNow();
    await sql`delete from nodes`.execute(db);
    await sql`
      insert into nodes (id, host, process, alive_until, heartbeats, silent_heartbeats, silent_epoch, generation)
      values (7, 'elsewhere', '1 1', now() + interval '1 day', 5, ${silentHeartbeats}, ${epoch}, 2)`.execute(
      db,
    );
    await withDeliveryHold(db, subject, async () => {});
    return (await countHoldsNow()) - before;
  };
  assert.equal(await holdsBeside(5, sql`current_epoch()`), 1);
  assert.equal(await holdsBeside(4, sql`current_epoch()`), 2);
  assert.equal(await holdsBeside(5, sql`gen_random_uuid()`), 2);
  assert.equal(await holdsBeside(null, sql`null`), 2);
});

test('nodes record a silent node, and its next heartbeat ends that', async (t) => {
  const { db } = await startTestServer(t);
  await sql`
    insert into nodes (id, host, process, alive_until, heartbeats, generation)
    values (7, 'elsewhere', '1 1', now() + interval '1 day', 5, 2)`.execute(db);
  const readRecord = async () => {
    const { rows } = await sql<{ silent: string | null; is_current: boolean }>`
      select silent_heartbeats as silent, silent_epoch = current_epoch() as is_current from nodes where id = 7`.execute(
      db,
    );
    return rows[0];
  };
  const recorded = await until(readRecord, (row) => row?.silent !== null);
  assert.deepEqual(recorded, { silent: '5', is_current: true });
  await sql`update nodes set heartbeats = 6 where id = 7`.execute(db);
  await until(readRecord, (row) => row?.silent === '6');
});

test('a node that was silent reads the rights again before it sends, although it missed the hold', async (t) => {
  const own = await startTestServer(t);
  await silence(own.db);
  const responses = Promise.withResolvers<void>();
  const subscriber = await startSubscriber(t, async (_received, response) => {
    await responses.promise;
    response.writeHead(204).end();
  });
  const app = await createApp(own);
  await subscribe(app, { url: subscriber.url });
  await publish(
    await createPublisher(own),
    app.account,
    Array.from({ length: 50 }, (_, index) => index),
  );
  await subscriber.waitFor(1);
  await own.db.transaction().execute(async (tx) => {
    // Heartbeats wait for this lock.
    await sql`select from nodes for update`.execute(tx);
    await sleep(maxStalenessMs + 2_000);
    // As after a hold that did not wait for this node.
    await sql`update accounts set disabled_at = now() where id = ${app.account.id}`.execute(own.db);
  });
  const count = await countNow(subscriber);
  responses.resolve();
  await sleep(2_000);
  assert.equal(subscriber.received.length, count);
});

test('deliveries continue while an unresponsive node is found to be silent', async (t) => {
  const own = await startTestServer(t);
  const subscriber = await startSubscriber(t);
  const app = await createApp(own);
  const { id } = await subscribe(app, { url: subscriber.url });
  const lane = await laneOf(own.db, id);
  const load = publishOnAndOn(t, await createPublisher(own), app.account);
  await subscriber.waitFor(100);
  await sql`
    insert into nodes (id, host, process, alive_until, heartbeats, generation)
    values (7, 'elsewhere', '1 1', now() + interval '1 day', 5, 2)`.execute(own.db);
  const countHoldsNow = await countHoldsOf(own.db);
  const areNone = async () => (await sql`select from delivery_holds`.execute(own.db)).rows.length === 0;
  const done = withDeliveryHold(own.db, lane, async () => {
    const before = await countNow(subscriber);
    await sleep(200);
    assert.equal(subscriber.received.length, before);
  });
  // The first hold is cancelled after a moment, before its work begins.
  await until(
    async () => (await countHoldsNow()) === 1 && (await areNone()),
    (isCancelled) => isCancelled,
  );
  await subscriber.waitFor(subscriber.received.length + 20);
  await done;
  await load.stop();
  assert.equal(await countHoldsNow(), 2);
});
