/** A database that is silent, comes back, or gets concurrent requests for the same rows. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { pino } from 'pino';
import { countGuess, forgiveGuess } from '../../src/accounts/throttle.ts';
import { ClientCache } from '../../src/clients/client_cache.ts';
import { loadConfig } from '../../src/config/config.ts';
import { isDatabaseUnavailable, openDatabase } from '../../src/database/database.ts';
import { Notifications } from '../../src/database/notifications.ts';
import { WithdrawalList } from '../../src/grants/withdrawals.ts';
import { createApplication } from '../../src/http/application.ts';
import { registerHealth } from '../../src/http/health.ts';
import { Keyring } from '../../src/oauth/keyring.ts';
import { rotateSigningKeys } from '../../src/oauth/signing_keys.ts';
import { createTestClient } from '../support/clients/oauth.ts';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';
import { patienceMs } from '../support/patience.ts';
import { startTestServer, testSecret } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });

/** Resolves to `still waiting` after a time that only an endless wait exceeds. */
function settled(work: Promise<unknown>): Promise<unknown> {
  return Promise.race([
    work.then(
      () => 'done',
      (error: unknown) => error,
    ),
    sleep(patienceMs, 'still waiting', { ref: false }),
  ]);
}

test('a silent database is unavailable, and requests do not wait for it', async (context) => {
  const proxy = await startDatabaseProxy(server.databaseUrl);
  const db = openDatabase({ connectionString: proxy.url, connectionsMax: 1, resultTimeoutMs: 3_000 });
  context.after(async () => {
    await proxy.close();
    await db.destroy();
  });
  const ask = () => sql<{ n: number }>`select ${1}::int as n`.execute(db);
  await ask();
  proxy.freeze();
  const error = await settled(ask());
  assert.ok(isDatabaseUnavailable(error), String(error));
  proxy.mend();
  // The late result is discarded: the next query has a connection of its own.
  assert.equal((await ask()).rows[0]?.n, 1);
});

test('an unreadable withdrawal list refuses in time', async () => {
  const proxy = await startDatabaseProxy(server.databaseUrl);
  const db = openDatabase({ connectionString: proxy.url, connectionsMax: 1 });
  const list = new WithdrawalList(db, new Notifications(server.databaseUrl, () => {}));
  await list.fresh();
  proxy.freeze();
  await sleep(1_000);
  assert.ok((await settled(list.fresh() as Promise<void>)) instanceof Error);
  await proxy.close();
  await db.destroy();
});

test('what all requests wait for leaves a silent connection, and other requests do not find one', async (context) => {
  const client = await createTestClient(server);
  for (const what of ['client', 'withdrawals']) {
    const proxy = await startDatabaseProxy(server.databaseUrl);
    const db = openDatabase({ connectionString: proxy.url, connectionsMax: 3 });
    context.after(async () => {
      await proxy.close();
      await db.destroy();
    });
    const notifications = new Notifications(server.databaseUrl, () => {});
    const clients = new ClientCache(db, notifications);
    const list = new WithdrawalList(db, notifications);
    const ask = () => sql<{ n: number }>`select ${1}::int as n, pg_sleep(0.1)`.execute(db);
    await Promise.all([ask(), ask(), ask()]);
    proxy.freeze();
    // With the limit of the pool, a minute.
    let isLeft = false;
    const silent = ask().catch(() => {
      isLeft = true;
    });
    const error = await settled(
      what === 'client' ? clients.find(client.id) : (list.fresh() as Promise<void>),
    );
    assert.ok(isDatabaseUnavailable(error), String(error));
    assert.equal((await ask()).rows[0]?.n, 1);
    assert.equal(isLeft, false, what);
    proxy.mend();
    await silent;
  }
});

test('signing keys are read again after a failed read', async () => {
  const proxy = await startDatabaseProxy(server.databaseUrl);
  const db = openDatabase({ connectionString: proxy.url, connectionsMax: 2 });
  let signing: string | undefined;
  const failed = new EventTarget();
  const keyring = new Keyring({
    db,
    // Never started: only the clock reveals a change.
    notifications: new Notifications(server.databaseUrl, () => {}),
    secret: testSecret,
    onChange: (keys) => {
      signing = keys.privateKeys[0]?.kid;
    },
    onError: () => failed.dispatchEvent(new Event('failed')),
  });
  const ids = await rotateSigningKeys(server.db, testSecret, 2);
  await keyring.start();
  assert.ok(!ids.includes(signing ?? ''));
  const failure = once(failed, 'failed');
  proxy.cut();
  await failure;
  proxy.mend();
  const changed = (async () => {
    while (!ids.includes(signing ?? '')) await sleep(50);
  })();
  assert.equal(await settled(changed), 'done');
  keyring.stop();
  await db.destroy();
  await proxy.close();
});

test('concurrent countGuess and forgiveGuess do not deadlock', async () => {
  const connectionsMax = 20;
  const db = openDatabase({ connectionString: server.databaseUrl, connectionsMax });
  const counters = ['a', 'b', 'c', 'd'].map((subject) => ({ subject, max: 1_000_000 }));
  const failures: unknown[] = [];
  // One caller per connection, so that none waits for the pool. The pool's timeout is not under test.
  const caller = async (offset: number) => {
    for (let index = 0; index < 100; index += 1) {
      const work = (index + offset) % 2 === 0 ? countGuess(db, counters) : forgiveGuess(db, counters, ['a']);
      await work.catch((error: unknown) => failures.push(error));
    }
  };
  await Promise.all(Array.from({ length: connectionsMax }, (_, index) => caller(index)));
  await db.destroy();
  assert.deepEqual(failures, []);
});

test('/readyz responds while the database is silent', async (context) => {
  const proxy = await startDatabaseProxy(server.databaseUrl);
  const db = openDatabase({ connectionString: proxy.url, connectionsMax: 1 });
  const app = createApplication(loadConfig({}, 'dev'), pino({ level: 'silent' }));
  registerHealth(app, db, async () => ({}));
  context.after(async () => {
    await app.close();
    await proxy.close();
    await db.destroy();
  });
  const address = await app.listen({ port: 0, host: '127.0.0.1' });
  assert.equal((await fetch(`${address}/readyz`)).status, 200);
  proxy.freeze();
  const asked = fetch(`${address}/readyz`);
  assert.equal(await settled(asked), 'done');
  const { status, headers } = await asked;
  assert.equal(status, 503);
  assert.equal(headers.get('retry-after'), '5');
});

test('lost notifications are reported once, not at every reconnect', async (context) => {
  const proxy = await startDatabaseProxy(server.databaseUrl);
  const told: Error[] = [];
  const notifications = new Notifications(proxy.url, (error) => told.push(error));
  let begun = 0;
  notifications.listen('nuncio_test', { onHints: () => 0, onListening: () => (begun += 1) });
  context.after(async () => {
    await notifications.stop();
    await proxy.close();
  });
  await notifications.start();
  for (const count of [1, 2]) {
    assert.equal(begun, count);
    proxy.cut();
    // Time for about ten attempts to reconnect.
    await sleep(2_500);
    assert.equal(told.length, count);
    proxy.mend();
    await until(
      async () => begun,
      (times) => times === count + 1,
    );
  }
});
