/** The database's clock goes back while the leader changes: what was scheduled before is brought forward once. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { loadConfig } from '../../../src/config/config.ts';
import { openDatabase } from '../../../src/database/database.ts';
import { newDataDir, start } from '../../support/database/embedded_process.ts';
import { createSteppedClock } from '../../support/database/stepped_clock.ts';
import { startProcess } from '../../support/servers/process.ts';
import { freePort, testSecret } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const hour = 3_600;

test('a retry keeps its time when the clock goes back while the leader is suspended', async (t) => {
  const clock = createSteppedClock(t);
  if (clock === undefined) return t.skip('needs Linux and a C compiler');
  const postgres = await clock.under(() => start(newDataDir(t), 'server'));
  clock.set(2 * hour);
  const ports = [String(await freePort()), String(await freePort())];
  const settings = {
    NUNCIO_BASE_URL: `http://localhost:${ports[1]}`,
    DATABASE_URL: postgres.connectionString,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    NUNCIO_RATE_LIMIT: '0',
    NUNCIO_RETRY_SCHEDULE: '1h',
    LOG_LEVEL: 'error',
  };
  const leader = startProcess(t, ['start'], {
    ...settings,
    NUNCIO_BASE_URL: `http://localhost:${ports[0]}`,
    PORT: ports[0] as string,
  });
  await leader.ready();
  t.after(() => void leader.child.kill('SIGKILL'));
  const other = startProcess(t, ['start'], { ...settings, PORT: ports[1] as string });
  await other.ready();
  const db = openDatabase({ connectionString: postgres.connectionString, connectionsMax: 2 });
  t.after(() => db.destroy());
  const config = loadConfig({ ...settings, PORT: '1' }, 'start');
  const here = { db, config, baseUrl: config.baseUrl };
  const subscriber = await startSubscriber(t, (_received, response) => void response.writeHead(503).end());
  const app = await createApp(here);
  await subscribe(app, { url: subscriber.url });
  await publish(await createPublisher(here), app.account, ['waiting']);
  const minutesLeft = async () => {
    const { rows } = await sql<{ minutes: number }>`
      select (extract(epoch from due_at - now()) / 60)::float8 as minutes from retries`.execute(db);
    return rows[0]?.minutes ?? 0;
  };
  await until(minutesLeft, (minutes) => minutes > 0);
  leader.child.kill('SIGSTOP');
  clock.set(0);
  // The other server has read the clock after the step: it has renewed its row.
  await until(
    async () =>
      (
        await sql`
          select from nodes where abs(extract(epoch from alive_until - now())) < 60
            and split_part(process, ' ', 1) = ${String(other.child.pid)}`.execute(db)
      ).rows.length,
    (count) => count === 1,
  );
  leader.child.kill('SIGKILL');
  const minutes = await until(minutesLeft, (left) => left < 90);
  assert.ok(minutes > 45, `${minutes} minutes are left of 60`);
  assert.equal(subscriber.received.length, 1);
});
