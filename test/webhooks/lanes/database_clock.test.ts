/** Servers run while the clock of their database is set ahead and back. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { loadConfig } from '../../../src/config/config.ts';
import { openDatabase } from '../../../src/database/database.ts';
import { newDataDir, start } from '../../support/database/embedded_process.ts';
import { createSteppedClock } from '../../support/database/stepped_clock.ts';
import { startProcess } from '../../support/servers/process.ts';
import { freePort, testSecret } from '../../support/servers/server.ts';
import { createApp, createPublisher, pushBody, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const day = 86_400;

test('steps of the database’s clock lose, delay and repeat no delivery', async (t) => {
  const clock = createSteppedClock(t);
  if (clock === undefined) return t.skip('needs Linux and a C compiler');
  const postgres = await clock.under(() => start(newDataDir(t), 'server'));
  const port = String(await freePort());
  const settings = {
    NUNCIO_BASE_URL: `http://localhost:${port}`,
    DATABASE_URL: postgres.connectionString,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    NUNCIO_RATE_LIMIT: '0',
    NUNCIO_RETRY_SCHEDULE: '1s,1s,1s,1s,1s',
    LOG_LEVEL: 'error',
    PORT: port,
  };
  const server = startProcess(t, ['start'], settings);
  await server.ready();
  const db = openDatabase({ connectionString: postgres.connectionString, connectionsMax: 2 });
  t.after(() => db.destroy());
  const config = loadConfig(settings, 'start');
  const here = { db, config, baseUrl: config.baseUrl };
  let failures = 0;
  const subscriber = await startSubscriber(t, (_received, response) => {
    response.writeHead(failures > 0 ? 503 : 204).end();
    failures -= 1;
  });
  const publisher = await createPublisher(here);
  const paths: string[] = [];
  const accounts: string[] = [];
  const join = async () => {
    const app = await createApp(here);
    const path = `/${paths.length}`;
    await subscribe(app, { url: subscriber.url + path });
    paths.push(path);
    accounts.push(app.account.id);
  };
  let mark = 0;
  /** Publishes two events for each account. */
  const publishAll = async () => {
    const events = accounts.flatMap((account) => {
      mark += 2;
      return [mark - 1, mark].map((each) => ({
        id: `clock-${each}`,
        kind: 'push',
        account,
        body: pushBody(each),
      }));
    });
    // A write that finds no partition for its day creates one, and may ask the client to retry.
    const status = async () => (await publisher('POST', '/events', { json: events })).status;
    await until(status, (value) => value === 202);
  };
  await join();
  for (const ahead of [0, 9 * day, 0, 35 * day, 0, -7_200, 0, -2 * day, 9 * day, 0]) {
    clock.set(ahead);
    const [{ seconds } = { seconds: 0 }] = (
      await sql<{ seconds: number }>`
        select extract(epoch from now())::float8 - ${Date.now() / 1_000} as seconds`.execute(db)
    ).rows;
    assert.ok(Math.abs(seconds - ahead) < 60, 'the clock of the database is not set');
    // A server reads the database's clock every five seconds.
    await until(
      async () =>
        (
          await sql<{ is_told: boolean }>`
            select abs(extract(epoch from alive_until - now())) < 60 as is_told from nodes`.execute(db)
        ).rows.every(({ is_told }) => is_told),
      (isTold) => isTold,
    );
    await publishAll();
    await join();
    // One attempt fails, so that a retry is scheduled by this clock.
    failures = 1;
    await publishAll();
    await until(
      async () => new Set(subscriber.received.map(({ headers }) => headers['nuncio-delivery'])).size,
      (count) => count === mark,
    );
  }
  const pending = async () =>
    (await sql`select from retries where state = 'pending'`.execute(db)).rows.length;
  await until(pending, (count) => count === 0);
  // Each delivery has one event, and each event one delivery.
  const pairs = subscriber.received.map(
    ({ headers, path, body }) => `${headers['nuncio-delivery']} ${path} ${JSON.parse(body).ref}`,
  );
  assert.equal(new Set(pairs).size, mark);
});
