/** What the log has of an engine's errors: an outage of the database is a few lines, another error is whole. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { startDatabaseProxy } from '../../support/database/database_proxy.ts';
import { prepareProcess, startProcess } from '../../support/servers/process.ts';

interface Line {
  level: number;
  msg: string;
  err?: { type: string; message: string; stack: string; code?: string };
  errors?: number;
  reason?: string;
}

async function startLogging(t: TestContext) {
  const { settings, db } = await prepareProcess(t, { LOG_LEVEL: 'warn' });
  const proxy = await startDatabaseProxy(settings.DATABASE_URL);
  t.after(() => proxy.close());
  const server = startProcess(t, ['start'], { ...settings, DATABASE_URL: proxy.url });
  await server.ready();
  /** The lines of the engine. */
  const lines = () =>
    server
      .output()
      .split('\n')
      .slice(0, -1)
      .map((line) => JSON.parse(line) as Line)
      .filter(({ msg }) => msg.includes('delivery engine'));
  const waitFor = async (message: string, count: number): Promise<Line[]> => {
    for (;;) {
      const found = lines().filter(({ msg }) => msg === message);
      if (found.length >= count) return found;
      await sleep(50);
    }
  };
  return { server, db, proxy, lines, waitFor };
}

test('an outage of the database is one line, one every few seconds, and one when it is over', async (t) => {
  const { server, proxy, lines, waitFor } = await startLogging(t);
  proxy.cut();
  const still = await waitFor('the delivery engine still has no database', 2);
  for (const { errors, reason } of still) {
    assert.ok(Number(errors) > 5, 'many errors became one line');
    assert.match(reason ?? '', /\S/);
  }
  proxy.mend();
  await waitFor('the delivery engine has its database again', 1);
  const counts = Map.groupBy(lines(), ({ msg }) => msg);
  assert.equal(counts.get('the delivery engine has no database: deliveries wait')?.length, 1);
  assert.equal(counts.get('the delivery engine has its database again')?.length, 1);
  assert.equal(counts.size, 3);
  assert.ok(lines().every(({ err }) => err === undefined));

  proxy.cut();
  await waitFor('the delivery engine has no database: deliveries wait', 2);
  proxy.mend();
  await waitFor('the delivery engine has its database again', 2);
  assert.equal(await server.end('SIGTERM'), 0);
});

test('another error of the engine has its class, SQLSTATE and stack', async (t) => {
  const { server, db, waitFor } = await startLogging(t);
  await sql`alter table outbox rename to hidden`.execute(db);
  const [line] = await waitFor('the delivery engine had an error and continues', 1);
  assert.equal(line?.err?.type, 'DatabaseError');
  assert.equal(line?.err?.code, '42P01');
  assert.match(line?.err?.stack ?? '', /\n +at /);
  await sql`alter table hidden rename to outbox`.execute(db);
  assert.equal(await server.end('SIGTERM'), 0);
});
