/** Nodes under failures: lost database results, a node that stalls, two nodes that share the work. */

import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { pino } from 'pino';
import { loadConfig } from '../../../src/config/config.ts';
import { inTransaction, openDatabase } from '../../../src/database/database.ts';
import { appendEvent } from '../../../src/events/event.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { startServer } from '../../../src/server.ts';
import { requester } from '../../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { createDatabase } from '../../support/database/database.ts';
import { startDatabaseProxy } from '../../support/database/database_proxy.ts';
import { freePort, type ReachableServer, testSecret } from '../../support/servers/server.ts';
import { startTwoNodes } from '../../support/servers/two_nodes.ts';
import { appScopes, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

/**
 * A proxy to the database that loses the result of a statement: the database executes it, then the connection is cut, or stays open
 * without a word.
 */
async function startLossyProxy(t: TestContext, databaseUrl: string) {
  const target = new URL(databaseUrl);
  const directory = target.searchParams.get('host');
  const port = Number(target.port || 5432);
  const sockets = new Set<Socket>();
  let wanted: string | undefined;
  let isCut = true;
  let losses = 0;
  const ends: ('node' | 'database')[] = [];
  const server = createServer((inner) => {
    const outer =
      directory === null ? connect(port, target.hostname) : connect(`${directory}/.s.PGSQL.${port}`);
    let isDeaf = false;
    inner.on('close', () => isDeaf && ends.push('node'));
    outer.on('close', () => isDeaf && ends.push('database'));
    for (const [socket, other] of [
      [inner, outer],
      [outer, inner],
    ] as const) {
      sockets.add(socket);
      socket.on('error', () => other.destroy());
      socket.on('close', () => other.destroy());
    }
    outer.on('data', (chunk) => {
      if (!isDeaf) inner.write(chunk);
    });
    inner.on('data', (chunk) => {
      if (wanted !== undefined && chunk.toString('latin1').includes(wanted)) {
        wanted = undefined;
        isDeaf = true;
        losses += 1;
        if (isCut) setTimeout(() => inner.destroy(), 300);
      }
      outer.write(chunk);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  });
  const url = new URL(databaseUrl);
  url.hostname = '127.0.0.1';
  url.port = String((server.address() as AddressInfo).port);
  url.searchParams.delete('host');
  return {
    url: url.href,
    /** @param statement part of its text, which a connection sends when it first uses the statement */
    loseAnswerTo(statement: string) {
      wanted = statement;
    },
    /** The same, and the connection stays open. */
    freezeAt(statement: string) {
      wanted = statement;
      isCut = false;
    },
    losses: () => losses,
    /** Who closed a connection whose result was lost. The other side follows. */
    ends: () => ends,
  };
}

interface Setup {
  databaseUrl: string;
  start: (databaseUrl: string) => Promise<{ close: () => Promise<void> }>;
  app: Awaited<ReturnType<typeof createParticipants>>;
}

async function createParticipants(host: Pick<ReachableServer, 'db' | 'config'>) {
  const client = await createTestClient(host, { scopes: [...appScopes, 'write:events'] });
  const account = await createTestAccount(host);
  const forUser = await mintAccessToken(host, { account, client, scopes: appScopes });
  const forMachine = await mintAccessToken(host, { client, scopes: ['write:events'] });
  return { account, userToken: forUser.accessToken, machineToken: forMachine.accessToken };
}

async function setUp(
  t: TestContext,
): Promise<Setup & { db: ReturnType<typeof openDatabase>; baseUrl: string }> {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  const port = String(await freePort());
  const config = loadConfig({ PORT: port, LOG_LEVEL: 'silent', NUNCIO_RATE_LIMIT: '0' }, 'dev');
  const running = new Set<{ close: () => Promise<void> }>();
  t.after(async () => {
    for (const one of running) await one.close();
    await db.destroy();
    await database.drop();
  });
  const start = async (databaseUrl: string) => {
    const server = await startServer({
      config,
      platform: await loadPlatform(null),
      databaseUrl,
      secret: testSecret,
      logger: pino({ level: 'silent' }),
    });
    running.add(server);
    return {
      close: async () => {
        running.delete(server);
        await server.close();
      },
    };
  };
  const first = await start(database.url);
  const app = await createParticipants({ db, config });
  await first.close();
  return { databaseUrl: database.url, start, app, db, baseUrl: config.baseUrl };
}

for (const [what, statement] of [
  ['a claim', 'where owner is null and due_at <= now()'],
  ['a fan-out', 'insert into deliveries'],
  ['a mark', 'free as ('],
  ['a record', 'insert into attempts'],
] as const) {
  test(`webhooks 62: everything is delivered and logged once when the response to ${what} is lost`, async (t) => {
    const { databaseUrl, start, app, db, baseUrl } = await setUp(t);
    const subscriber = await startSubscriber(t);
    const first = await start(databaseUrl);
    const user = { request: requester({ baseUrl }, app.userToken) };
    const { id } = await subscribe(user, { url: subscriber.url });
    const proxy = await startLossyProxy(t, databaseUrl);
    await first.close();
    if (what === 'a claim') {
      // A delivery that waits for the next node, in a lane without a lease.
      await sql`
        with event as (
          insert into events (id, account_id, kind, body)
          values ('waiting', ${app.account.id}, 'push', '{"ref":"refs/heads/1","commits":[],"repository":{}}')
          returning day, position
        ), head as (
          update lanes set next_sequence = 2 where id = (select lane from subscriptions where id = ${id}) returning id
        ), due as (
          update lane_progress set due_at = now() from head where lane = head.id
        )
        insert into deliveries (day, lane, sequence, event) select day, head.id, 1, position from event, head`.execute(
        db,
      );
    }
    if (what === 'a fan-out') {
      // The event exists from the beginning, so that the first fan-out pass does not find an empty outbox.
      const body = { ref: 'refs/heads/1', commits: [], repository: {} };
      await db
        .transaction()
        .execute((tx) => appendEvent(tx, { accountId: app.account.id, kind: 'push', body }));
    }
    proxy.loseAnswerTo(statement);
    const second = await start(proxy.url);
    if (what === 'a mark' || what === 'a record')
      await publish(requester({ baseUrl }, app.machineToken), app.account, [1]);
    await until(
      async () => proxy.losses(),
      (losses) => losses === 1,
    );
    await subscriber.waitFor(1);
    const [item] = await until(
      async () => (await user.request('GET', `/subscriptions/${id}/deliveries`)).body.items,
      ([one]) => one?.state === 'succeeded',
    );
    await sleep(1_000);
    assert.equal(item.sequence, 1);
    const { body } = await user.request('GET', `/deliveries/${item.id}`);
    assert.equal(body.attempts.length, subscriber.received.length);
    await second.close();
  });
}

test('a leader leaves a connection that is silent, before the database ends its session', async (t) => {
  const { databaseUrl, start, app, baseUrl } = await setUp(t);
  const subscriber = await startSubscriber(t);
  const proxy = await startLossyProxy(t, databaseUrl);
  proxy.freezeAt('insert into deliveries');
  const server = await start(proxy.url);
  await subscribe({ request: requester({ baseUrl }, app.userToken) }, { url: subscriber.url });
  await until(
    async () => proxy.losses(),
    (losses) => losses === 1,
  );
  await publish(requester({ baseUrl }, app.machineToken), app.account, [1]);
  await subscriber.waitFor(1);
  await until(
    async () => proxy.ends().length,
    (count) => count > 0,
  );
  assert.equal(proxy.ends()[0], 'node');
  await server.close();
});

test('a node whose connections are all silent sends on new ones, before statements of requests end', async (t) => {
  const { databaseUrl, start, app, baseUrl, db } = await setUp(t);
  const subscriber = await startSubscriber(t);
  const proxy = await startDatabaseProxy(databaseUrl);
  t.after(() => proxy.close());
  const server = await start(proxy.url);
  await subscribe({ request: requester({ baseUrl }, app.userToken) }, { url: subscriber.url });
  await publish(requester({ baseUrl }, app.machineToken), app.account, [1]);
  await subscriber.waitFor(1);
  const ofRequests = openDatabase({ connectionString: proxy.url, connectionsMax: 1 });
  t.after(() => ofRequests.destroy());
  await sql`select ${1}::int`.execute(ofRequests);
  proxy.freeze();
  let isLeft = false;
  const silent = sql`select ${1}::int`.execute(ofRequests).catch(() => {
    isLeft = true;
  });
  for (const mark of [2, 3, 4]) {
    const body = { ref: `refs/heads/${mark}`, commits: [], repository: {} };
    await inTransaction(db, (tx) => appendEvent(tx, { accountId: app.account.id, kind: 'push', body }));
    await subscriber.waitFor(mark);
  }
  assert.equal(isLeft, false);
  proxy.mend();
  await silent;
  await server.close();
});

test('webhooks 63, 66: two nodes share the work; a stalled one is replaced and resumes without harm', async (t) => {
  const { first, serverA: server, serverB } = await startTwoNodes(t);
  const subscriber = await startSubscriber(t);
  const app = await createParticipants(server);
  const user = { request: requester(server, app.userToken) };
  for (let count = 0; count < 10; count += 1) await subscribe(user, { url: `${subscriber.url}/${count}` });
  const throughB = requester(serverB, app.machineToken);
  await publish(
    throughB,
    app.account,
    Array.from({ length: 50 }, (_, index) => index),
  );
  await subscriber.waitFor(500);
  // The first node leads the fan-out, because it started first.
  const count = () => new Set(subscriber.received.map(({ headers }) => headers['nuncio-delivery'])).size;
  first.child.kill('SIGSTOP');
  try {
    await publish(
      throughB,
      app.account,
      Array.from({ length: 50 }, (_, index) => 50 + index),
    );
    await until(
      async () => count(),
      (value) => value === 1_000,
    );
  } finally {
    // Also after a failure: a stopped process cannot shut down.
    first.child.kill('SIGCONT');
  }
  await publish(
    throughB,
    app.account,
    Array.from({ length: 50 }, (_, index) => 100 + index),
  );
  await until(
    async () => count(),
    (value) => value === 1_500,
  );
  const bySubscription = Map.groupBy(subscriber.received, ({ path }) => path);
  for (const received of bySubscription.values()) {
    const sequences = new Set(received.map(({ headers }) => Number(headers['nuncio-sequence'])));
    assert.deepEqual(
      [...sequences].sort((a, b) => a - b),
      Array.from({ length: 150 }, (_, index) => index + 1),
    );
  }
});

test('a node that stops leaves its lanes to others while an attempt of another account hangs', async (t) => {
  const { first, serverA: server, serverB } = await startTwoNodes(t);
  const hanging: ServerResponse[] = [];
  const slow = await startSubscriber(t, (_received, response) => hanging.push(response));
  const healthy = await startSubscriber(t);
  for (const { url } of [slow, healthy]) {
    const { userToken, machineToken, account } = await createParticipants(server);
    await subscribe({ request: requester(server, userToken) }, { url });
    await publish(requester(serverB, machineToken), account, [1]);
    if (url === slow.url) continue;
    await healthy.waitFor(1);
    await slow.waitFor(1);
    // The first node leads the fan-out and leases both lanes.
    first.child.kill('SIGTERM');
    await publish(requester(serverB, machineToken), account, [2]);
  }
  await healthy.waitFor(2);
  assert.equal(first.child.exitCode, null, 'it waits for the attempt that hangs');
  for (const response of hanging) response.writeHead(204).end();
});
