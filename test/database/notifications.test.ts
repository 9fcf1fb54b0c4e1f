/** The connection that listens for notifications: when it is lost, replaced and closed. */

import assert from 'node:assert/strict';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { Notifications } from '../../src/database/notifications.ts';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';
import { atEnd } from '../support/database/embedded_process.ts';
import { openTestDatabase } from '../support/database/open_database.ts';
import { until } from '../support/webhooks/apps.ts';

/** Notifications through a proxy, and a count of the connections that listen. */
async function open(t: TestContext) {
  const { db, url } = await openTestDatabase(t, 2);
  const proxy = await startDatabaseProxy(url);
  atEnd(t, () => proxy.close());
  const notifications = new Notifications(proxy.url, () => {});
  const seen = { listening: 0 };
  notifications.listen('test', {
    onHints: () => 0,
    onListening: () => {
      seen.listening += 1;
    },
  });
  const countConnections = async () => {
    const { rows } = await sql<{ count: number }>`
      select count(*)::int as count from pg_stat_activity
      where application_name = 'nuncio notifications' and datname = current_database()`.execute(db);
    return rows[0]?.count;
  };
  return { db, proxy, notifications, seen, countConnections };
}

/** A TCP proxy whose connections the test pauses one by one. */
async function startPausableProxy(t: TestContext, databaseUrl: string) {
  const { hostname, port } = new URL(databaseUrl);
  const sockets: Socket[][] = [];
  const proxy = { isPausingNew: false };
  const server = createServer((inner) => {
    const outer = connect(Number(port), hostname);
    const pair = [inner, outer];
    sockets.push(pair);
    inner.pipe(outer).pipe(inner);
    for (const socket of pair) {
      socket.on('error', () => {});
      socket.on('close', () => {
        for (const each of pair) each.destroy();
      });
      if (proxy.isPausingNew) socket.pause();
    }
  });
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => {
    for (const socket of sockets.flat()) socket.destroy();
    server.close();
  });
  const url = new URL(databaseUrl);
  url.port = String((server.address() as AddressInfo).port);
  const each = (index: number, act: (socket: Socket) => void) => sockets[index]?.forEach(act);
  return Object.assign(proxy, {
    url: url.href,
    count: () => sockets.length,
    pause: (index: number) => each(index, (socket) => socket.pause()),
    resume: (index: number) => each(index, (socket) => socket.resume()),
  });
}

test('a lost connection that ends while its successor connects opens no third one', async (t) => {
  const { proxy: inner, countConnections } = await open(t);
  const proxy = await startPausableProxy(t, inner.url);
  const notifications = new Notifications(proxy.url, () => {});
  let listening = 0;
  notifications.listen('test', {
    onHints: () => 0,
    onListening() {
      listening += 1;
    },
  });
  await notifications.start();
  proxy.isPausingNew = true;
  proxy.pause(0);
  notifications.reconnect();
  await until(
    async () => proxy.count(),
    (count) => count === 2,
  );
  proxy.resume(0);
  await until(countConnections, (count) => count === 0);
  // A third connection would be opened after a quarter of a second.
  await sleep(1_000);
  assert.equal(proxy.count(), 2);
  proxy.resume(1);
  await until(
    async () => listening,
    (count) => count === 2,
  );
  await notifications.stop();
  await until(countConnections, (count) => count === 0);
});

test('an earlier connection that ends while its successor connects leaves one connection', async (t) => {
  const { db, notifications, seen, countConnections } = await open(t);
  await notifications.start();
  const endAll = () =>
    sql`
      select pg_terminate_backend(pid) from pg_stat_activity
      where application_name = 'nuncio notifications' and datname = current_database()`.execute(db);
  for (let count = 0; count < 5; count += 1) {
    notifications.reconnect();
    await endAll();
  }
  await until(
    async () => [notifications.isListening, await countConnections()],
    ([isListening, connections]) => isListening === true && connections === 1,
  );
  assert.ok(seen.listening >= 2);
  await notifications.stop();
  assert.equal(notifications.isListening, false);
  await until(countConnections, (count) => count === 0);
});

test('stop ends a connection that does not respond, and one that is being opened', async (t) => {
  const frozen = await open(t);
  await frozen.notifications.start();
  frozen.proxy.freeze();
  await frozen.notifications.stop();
  const opening = await open(t);
  void opening.notifications.start();
  await opening.notifications.stop();
  await until(opening.countConnections, (count) => count === 0);
  assert.equal(opening.notifications.isListening, false);
  assert.equal(opening.seen.listening, 0);
});
