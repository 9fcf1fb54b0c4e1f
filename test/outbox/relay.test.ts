/** The relay between an outbox and a real Nuncio server, with network and server faults. */

import assert from 'node:assert/strict';
import { after, describe, type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { withdrawToken } from '../../src/grants/withdrawals.ts';
import { createRelay, type NewEvent, type RelayOptions } from '../../src/outbox/outbox.ts';
import { createPublisher } from '../../src/protect/protect.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { databases, openOutbox, pushes } from '../support/publishing/application_outbox.ts';
import { type ProxyBehaviour, startFaultyProxy } from '../support/publishing/faulty_proxy.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createRandom } from '../support/values/random.ts';
import { createApp, pushBody, subscribe, until } from '../support/webhooks/apps.ts';
import { startSubscriber } from '../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const client = await createTestClient(server, {
  grantTypes: ['client_credentials'],
  scopes: ['write:events'],
  redirectUris: [],
});
const account = await createTestAccount(server);
let count = 0;

/** Unique event ids. */
function marks(length: number): string[] {
  count += 1;
  return Array.from({ length }, (_, index) => `${count}-${index}`);
}

async function setUp(t: TestContext, database: (typeof databases)[number]) {
  const troubles = await startFaultyProxy(t, server.baseUrl);
  const opened = await openOutbox(t, database);
  const publisher = createPublisher({
    issuer: server.baseUrl,
    clientId: client.id,
    clientSecret: client.secret ?? '',
    attempts: 1,
    fetch: troubles.fetch,
  });
  const errors: unknown[] = [];
  const relay = (options: Partial<RelayOptions> = {}) => {
    const made = createRelay({
      store: opened.outbox,
      publisher,
      pauseMaxMs: 100,
      onError: (error) => errors.push(error),
      ...options,
    });
    t.after(() => made.stop());
    return made;
  };
  return { ...opened, troubles, publisher, relay, errors };
}

/** Returns the given ids that the server has stored for an account, in order. */
async function stored(ids: readonly string[], owner = account.id): Promise<string[]> {
  const { rows } = await sql<{ id: string }>`
    select id from events where id = any(${[...ids]}) and account_id = ${owner} order by position`.execute(
    server.db,
  );
  return rows.map(({ id }) => id);
}

for (const database of databases) {
  describe(`relay with ${database}`, () => {
    test('start publishes committed events in order, and a subscriber receives them', async (t) => {
      const { outbox, append, relay } = await setUp(t, database);
      const app = await createApp(server);
      const subscriber = await startSubscriber(t);
      await subscribe(app, { url: subscriber.url, ordered: true });
      const ids = marks(40);
      const running = relay();
      running.start();
      await append(pushes(app.account.id, ids.slice(0, 20)));
      running.wake();
      await append(pushes(app.account.id, ids.slice(20)));
      await append(pushes(app.account.id, marks(3)), 'rollback');
      running.wake();
      const received = await subscriber.waitFor(40);
      assert.deepEqual(
        received.map(({ body }) => JSON.parse(body).ref),
        ids.map((id) => `refs/heads/${id}`),
      );
      await running.stop({ drain: true });
      assert.deepEqual(await outbox.stats(), { waiting: 0, rejected: 0, oldestMs: null });
    });

    test('each event is stored once and in the order of its account when requests fail', async (t) => {
      const { outbox, append, relay, troubles, errors } = await setUp(t, database);
      const random = createRandom(database.length);
      const fates: ProxyBehaviour[] = [
        ...Array.from({ length: 14 }, () => 'pass' as const),
        'late',
        'half',
        'drop',
        'hang',
        { status: 500, body: 'Internal error' },
        { status: 502, body: '<html>' },
        { status: 503, headers: { 'retry-after': '0' } },
        { status: 429, headers: { 'retry-after': '0' } },
        { status: 401 },
        { status: 403, body: '{"title":"no"}' },
        { status: 404 },
        { status: 422, body: '<html>not the server</html>' },
        { status: 302, headers: { location: 'http://127.0.0.1:1/' } },
        { status: 202, headers: { 'content-length': '1000' }, body: '{' },
      ];
      troubles.behave(() => fates[Math.floor(random() * fates.length)] as ProxyBehaviour);
      const owners = [account, await createTestAccount(server), await createTestAccount(server)];
      const running = relay({ batchEvents: 20 });
      running.start();
      const ids = marks(300);
      const of = (owner: number) => ids.filter((_, index) => index % 3 === owner);
      for (let from = 0; from < ids.length; from += 30) {
        const some = ids.slice(from, from + 30);
        await append(some.flatMap((id, index) => pushes(owners[(from + index) % 3]?.id ?? '', [id])));
        running.wake();
      }
      await until(
        () => outbox.stats(),
        ({ waiting }) => waiting === 0,
      );
      await running.stop();
      for (const [index, owner] of owners.entries()) assert.deepEqual(await stored(ids, owner.id), of(index));
      assert.ok(errors.length > 0, 'something failed');
      assert.equal((await outbox.stats()).rejected, 0);
    });

    test('rejected events are kept and the others are published in order when the server rejects a batch', async (t) => {
      const { outbox, append, relay } = await setUp(t, database);
      const ids = marks(40);
      const events = pushes(account.id, ids);
      const change = (index: number, fields: Partial<NewEvent>) =>
        Object.assign(events[index] as NewEvent, fields);
      change(3, { body: { ref: 7 } });
      change(10, { kind: 'no.such.kind' });
      change(11, { account: 'nobody' });
      change(20, { account: '0190a1b2-0000-7000-8000-000000000000' });
      change(39, { body: null });
      const [known] = ids.slice(5) as [string];
      await append(events);
      const rejectedIds: string[] = [];
      const result = await relay({ onRejected: ({ id }) => rejectedIds.push(id) }).runOnce();
      assert.deepEqual(result, { published: 35, rejected: 5, isHeldElsewhere: false });
      const bad = [3, 10, 11, 20, 39].map((index) => ids[index] as string);
      assert.deepEqual(
        await stored(ids),
        ids.filter((id) => !bad.includes(id)),
      );
      const rejected = await outbox.rejected.list();
      assert.deepEqual(
        rejected.map(({ id }) => id),
        bad,
      );
      assert.deepEqual([...rejectedIds].sort(), [...bad].sort());
      const reasons = rejected.map(({ reason }) => reason);
      assert.match(reasons[0] ?? '', /^\/body/);
      assert.match(reasons[1] ?? '', /^\/kind must be a declared kind/);
      assert.match(reasons[2] ?? '', /^\/account must be the id of an account/);
      assert.match(reasons[3] ?? '', /^\/account must be the id of an account/);
      // An id that the server has stored with different content.
      await append([{ kind: 'push', account: account.id, body: pushBody('other'), id: known }]);
      assert.equal((await relay().runOnce()).rejected, 1);
      assert.match(
        (await outbox.rejected.list()).at(-1)?.reason ?? '',
        /^\/id is already the id of another event/,
      );

      await outbox.rejected.retry(ids[3] as string, { body: pushBody('corrected') });
      await outbox.rejected.discard(ids[10] as string);
      assert.deepEqual(await relay().runOnce(), { published: 1, rejected: 0, isHeldElsewhere: false });
      assert.equal((await stored([ids[3] as string])).length, 1);
    });

    test('500 consecutive rejected events do not block later events', async (t) => {
      const { outbox, append, relay } = await setUp(t, database);
      const [bad, good] = [marks(500), marks(1)];
      await append(pushes(account.id, bad).map((event) => ({ ...event, body: {} })));
      await append(pushes(account.id, good));
      assert.deepEqual(await relay().runOnce(), { published: 1, rejected: 500, isHeldElsewhere: false });
      assert.deepEqual(await stored(good), good);
      assert.equal(await outbox.rejected.retryAll(), 500);
      assert.equal((await outbox.stats()).waiting, 500);
    });

    test('a 413 of a proxy splits the batch, or rejects a single event', async (t) => {
      const { outbox, append, relay, troubles } = await setUp(t, database);
      troubles.behave((body) => (body.length > 1_500 ? { status: 413, body: '<html>' } : 'pass'));
      const ids = marks(50);
      const events = pushes(account.id, ids);
      const large = events[17] as NewEvent;
      large.body = { ...pushBody('x'.repeat(1_000)), commits: [{ id: '1', message: 'x'.repeat(1_000) }] };
      await append(events);
      assert.deepEqual(await relay().runOnce(), { published: 49, rejected: 1, isHeldElsewhere: false });
      assert.deepEqual(
        await stored(ids),
        ids.filter((_, index) => index !== 17),
      );
      assert.match((await outbox.rejected.list())[0]?.reason ?? '', /413/);
    });

    test('bodies at the size limit are published in small batches', async (t) => {
      const { append, relay, troubles } = await setUp(t, database);
      const commits = Array.from({ length: 4 }, (_, index) => ({
        id: String(index),
        message: 'x'.repeat(65_000),
      }));
      const body = { ref: 'refs/heads/full', commits, repository: { name: 'example' } };
      for (const commit of commits) {
        const missing = 262_144 - JSON.stringify(body).length;
        commit.message += 'x'.repeat(Math.min(536, missing));
      }
      assert.equal(JSON.stringify(body).length, 262_144);
      const ids = marks(9);
      await append(ids.map((id) => ({ kind: 'push', account: account.id, body, id })));
      assert.equal((await relay().runOnce()).published, 9);
      assert.deepEqual(await stored(ids), ids);
      assert.ok(troubles.requests.every((request) => request.length < 1_500_000));
    });

    test('a relay takes over when the relay with the lease stops', async (t) => {
      const { append, another, outbox, relay } = await setUp(t, database);
      const [first, second] = [
        relay({ batchEvents: 7, pollMs: 10 }),
        relay({ batchEvents: 7, pollMs: 10, store: await another() }),
      ];
      first.start();
      second.start();
      const ids = marks(400);
      for (let from = 0; from < ids.length; from += 20) {
        await append(pushes(account.id, ids.slice(from, from + 20)));
        if (from === 200) await first.stop();
      }
      await until(
        () => outbox.hasWaiting(),
        (waits) => !waits,
      );
      await second.stop();
      assert.deepEqual(await stored(ids), ids);
    });

    test('no event is duplicated or reordered when a stalled relay sends its batch after another one took over', async (t) => {
      const { append, another, relay, query, publisher } = await setUp(t, database);
      const ids = marks(30);
      await append(pushes(account.id, ids.slice(0, 10)));
      const stalled = Promise.withResolvers<void>();
      const isIn = Promise.withResolvers<void>();
      const slow = relay({
        publisher: {
          async publish(events, options) {
            isIn.resolve();
            await stalled.promise;
            return publisher.publish(events, options);
          },
        },
      });
      const late = slow.runOnce();
      await isIn.promise;
      await query(
        database === 'SQLite'
          ? 'update nuncio_outbox_lease set until = 0'
          : `update nuncio_outbox_lease set until = '-infinity'`,
      );
      const other = relay({ store: await another() });
      await append(pushes(account.id, ids.slice(10)));
      assert.equal((await other.runOnce()).published, 30);
      stalled.resolve();
      await late;
      assert.deepEqual(await stored(ids), ids);
    });

    test('runOnce returns isHeldElsewhere when another relay has the lease', async (t) => {
      const { append, outbox, relay } = await setUp(t, database);
      await append(pushes(account.id, marks(1)));
      assert.ok(await outbox.hold('another', 5_000));
      assert.deepEqual(await relay().runOnce(), { published: 0, rejected: 0, isHeldElsewhere: true });
    });

    test('stop waits for the request in flight and aborts it after the timeout', async (t) => {
      const { append, outbox, relay, troubles } = await setUp(t, database);
      const ids = marks(2);
      await append(pushes(account.id, ids));
      const isIn = Promise.withResolvers<void>();
      const release = Promise.withResolvers<void>();
      const patient = relay({
        publisher: {
          async publish() {
            isIn.resolve();
            await release.promise;
          },
        },
      });
      patient.start();
      await isIn.promise;
      const stopped = patient.stop({ timeoutMs: 600_000 });
      release.resolve();
      await stopped;
      assert.equal(await outbox.hasWaiting(), false, 'the published events are recorded');

      await append(pushes(account.id, ids));
      const asked = Promise.withResolvers<AbortSignal>();
      const hanging = relay({
        publisher: {
          publish: (_events, { signal }) =>
            new Promise((_resolve, reject) => {
              asked.resolve(signal);
              signal.addEventListener('abort', () => reject(signal.reason));
            }),
        },
      });
      hanging.start();
      await asked.promise;
      await hanging.stop({ timeoutMs: 1 });
      assert.equal(await outbox.hasWaiting(), true);
      assert.throws(() => hanging.start(), /stopped/);
      assert.deepEqual(troubles.requests, []);
      assert.equal((await relay().runOnce()).published, 2, 'the lease was released');
    });
  });
}

test('the relay gets a new token when its token is revoked', async (t) => {
  const { append, relay, troubles, outbox } = await setUp(t, 'SQLite');
  const ids = marks(60);
  await append(pushes(account.id, ids));
  let posts = 0;
  const tokens = new Set<string>();
  const fetching: typeof troubles.fetch = async (url, init) => {
    const token = new Headers(init?.headers).get('authorization') ?? '';
    if (url.endsWith('/events')) {
      tokens.add(token);
      posts += 1;
      if (posts === 3) await revoke(token);
    }
    return troubles.fetch(url, init);
  };
  const publisher = createPublisher({
    issuer: server.baseUrl,
    clientId: client.id,
    clientSecret: client.secret ?? '',
    fetch: fetching,
  });
  const running = relay({ publisher, batchEvents: 10 });
  running.start();
  await until(
    () => outbox.hasWaiting(),
    (waits) => !waits,
  );
  await running.stop();
  assert.deepEqual(await stored(ids), ids);
  assert.equal(tokens.size, 2);

  async function revoke(token: string): Promise<void> {
    const { jti } = JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString());
    await withdrawToken(server.db, jti, new Date(Date.now() + 900_000));
    // Waits until the node rejects the token.
    await until(
      async () =>
        (await fetch(`${server.baseUrl}/event-kinds`, { headers: { authorization: token } })).status,
      (status) => status === 401,
    );
  }
});

test('pauses grow up to pauseMaxMs during an outage, and follow Retry-After where the server sends it', async (t) => {
  const { append, relay, outbox } = await setUp(t, 'SQLite');
  await append(pushes(account.id, marks(100)));
  const pauses: number[] = [];
  const asked: number[] = [];
  let retryAfterMs: number | null = null;
  const failing = relay({
    pauseMaxMs: 3_600_000,
    batchEvents: 64,
    publisher: {
      async publish(events) {
        asked.push(events.length);
        throw Object.assign(new Error('away'), { status: 503, retryAfterMs });
      },
    },
    onError: (_error, { retryInMs }) => pauses.push(retryInMs),
  });
  t.mock.timers.enable({ apis: ['setTimeout'] });
  failing.start();
  for (let failures = 1; failures <= 20; failures += 1) {
    if (failures === 20) retryAfterMs = 86_400_000_000;
    while (pauses.length < failures) await new Promise((resolve) => setImmediate(resolve));
    await new Promise((resolve) => setImmediate(resolve));
    t.mock.timers.tick((pauses[failures - 1] as number) - 1);
    await new Promise((resolve) => setImmediate(resolve));
    assert.equal(asked.length, failures, 'it waits until the pause is over');
    if (failures < 20) t.mock.timers.tick(1);
  }
  for (const [index, pause] of pauses.slice(0, 19).entries()) {
    const doubled = Math.min(3_600_000, 500 * 2 ** index);
    assert.ok(pause >= doubled / 2 && pause <= doubled, `${index}: ${pause}`);
  }
  assert.equal(pauses[19], 3_600_000);
  assert.deepEqual(asked.slice(0, 8), [64, 32, 16, 8, 4, 2, 1, 1], 'it asks for less each time');
  t.mock.timers.reset();
  await failing.stop();
  assert.equal((await outbox.stats()).waiting, 100);
});

test('wake ends an idle wait but not a pause after a failure', async (t) => {
  const { append, relay, outbox } = await setUp(t, 'SQLite');
  const ids = marks(2);
  let isAway = true;
  let attempts = 0;
  const idle = relay({
    pollMs: 3_600_000,
    pauseMaxMs: 3_600_000,
    publisher: {
      async publish() {
        attempts += 1;
        if (isAway) throw Object.assign(new Error('away'), { retryAfterMs: 3_600_000 });
      },
    },
  });
  idle.start();
  await append(pushes(account.id, ids.slice(0, 1)));
  idle.wake();
  await until(
    async () => attempts,
    (seen) => seen === 1,
  );
  isAway = false;
  for (let number = 0; number < 20; number += 1) {
    idle.wake();
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.equal(attempts, 1);
  assert.equal(await outbox.hasWaiting(), true);
  await idle.stop({ drain: true });
  assert.equal(await outbox.hasWaiting(), false);
});

test('the relay continues when a hook throws', async (t) => {
  const { append, relay } = await setUp(t, 'SQLite');
  const fail = () => {
    throw new Error('a hook');
  };
  const warnings: string[] = [];
  const listen = ({ message }: Error) => warnings.push(message);
  process.on('warning', listen);
  t.after(() => process.off('warning', listen));
  const [good, bad] = marks(2);
  await append(
    pushes(account.id, [good, bad]).map((event, index) => (index === 1 ? { ...event, body: {} } : event)),
  );
  const { published, rejected } = await relay({
    onPublished: fail,
    onRejected: fail,
    onError: fail,
  }).runOnce();
  assert.deepEqual([published, rejected], [1, 1]);
});

test('an event is rejected when its body has an integer that JavaScript cannot represent exactly', async (t) => {
  const { outbox, relay, query } = await setUp(t, 'PostgreSQL');
  const [id] = marks(1);
  await query(`
    insert into nuncio_outbox (id, kind, account_id, body)
    values ('${id}', 'push', '${account.id}', '{"ref": 12345678901234567890}')`);
  assert.deepEqual(await relay().runOnce(), { published: 0, rejected: 1, isHeldElsewhere: false });
  assert.match((await outbox.rejected.list())[0]?.reason ?? '', /12345678901234567890/);
});

test('a rejection is stored when its reason has characters that databases reject', async (t) => {
  for (const database of databases) {
    const { outbox, append, relay } = await setUp(t, database);
    await append(pushes(account.id, marks(1)));
    const message = `NUL \0 half \ud800 ${'\u{1f4e8}'.repeat(2_000)}`;
    const publisher = {
      async publish() {
        throw Object.assign(new Error(message), {
          status: 422,
          problem: { errors: [null, 7, { pointer: '/7' }, { pointer: '/0/body', message }] },
        });
      },
    };
    assert.equal((await relay({ publisher }).runOnce()).rejected, 1);
    assert.match((await outbox.rejected.list())[0]?.reason ?? '', /^\/body NUL {3}half/);
  }
});

test('other events are published when a body is nested too deeply', async (t) => {
  const { outbox, append, relay, query } = await setUp(t, 'PostgreSQL');
  const [deep, good] = marks(2) as [string, string];
  const text = `${'['.repeat(5_000)}${']'.repeat(5_000)}`;
  await query(
    `insert into nuncio_outbox (id, kind, account_id, body) values ('${deep}', 'push', '${account.id}', '${text}')`,
  );
  await append(pushes(account.id, [good]));
  assert.deepEqual(await relay().runOnce(), { published: 1, rejected: 1, isHeldElsewhere: false });
  assert.equal((await outbox.stats()).rejected, 1);
  assert.deepEqual(await stored([deep, good]), [good]);
});

test('other events are published when the publisher cannot serialize an event', async (t) => {
  const { append, relay, publisher } = await setUp(t, 'SQLite');
  const [bad, good] = marks(2) as [string, string];
  await append(pushes(account.id, [bad, good]));
  const choking: RelayOptions['publisher'] = {
    publish(events, options) {
      if (events.some(({ id }) => id === bad)) throw new RangeError('Maximum call stack size exceeded');
      return publisher.publish(events, options);
    },
  };
  assert.deepEqual(await relay({ publisher: choking }).runOnce(), {
    published: 1,
    rejected: 1,
    isHeldElsewhere: false,
  });
});

test('runOnce throws the error of the publisher and loses no event', async (t) => {
  const { append, outbox, relay, troubles } = await setUp(t, 'SQLite');
  const ids = marks(3);
  await append(pushes(account.id, ids));
  troubles.behave(() => ({ status: 503 }));
  await assert.rejects(relay().runOnce(), /503/);
  assert.equal((await outbox.stats()).waiting, 3);
  troubles.behave(() => 'pass');
  assert.equal((await relay().runOnce()).published, 3);
  assert.deepEqual(await stored(ids), ids);
});

test('createRelay throws a TypeError when an option is invalid', async (t) => {
  const { outbox, publisher } = await setUp(t, 'SQLite');
  const good = { store: outbox, publisher };
  for (const change of [
    { store: {} },
    { publisher: {} },
    { batchEvents: 0 },
    { batchEvents: 1_001 },
    { batchBytes: 0.5 },
    { pollMs: 1 },
    { pauseMaxMs: Number.NaN },
  ]) {
    assert.throws(() => createRelay({ ...good, ...change } as never), TypeError);
  }
});
