/** PostgreSQL's notification queue while a session fills it: what was lost is made up for. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import pg from 'pg';
import { migrate } from '../../src/database/migrate.ts';
import { Notifications } from '../../src/database/notifications.ts';
import { atEnd, newDataDir, query, start } from '../support/database/embedded_process.ts';
import { until } from '../support/webhooks/apps.ts';

/** The smallest queue that PostgreSQL allows, in pages. One long notification fills a page. */
const pages = 64;

test('listeners read everything again while the queue is full, and when it has room again', async (t) => {
  const dataDir = newDataDir(t);
  const before = await start(dataDir, 'server');
  await query(before.connectionString, `alter system set max_notify_queue_pages = ${pages}`);
  await before.stop();
  const { connectionString } = await start(dataDir, 'server');
  await migrate(connectionString);
  const errors: string[] = [];
  const notifications = new Notifications(connectionString, ({ message }) => errors.push(message));
  const seen = { hints: [] as string[], listening: 0 };
  notifications.listen('test', {
    onHints: ({ payloads }) => {
      seen.hints.push(...payloads);
      return 0;
    },
    onListening: () => {
      seen.listening += 1;
    },
  });
  await notifications.start();
  atEnd(t, () => notifications.stop());

  const stranger = new pg.Client({ connectionString });
  await stranger.connect();
  await stranger.query('listen other');
  await stranger.query('begin');
  for (let sent = 0; sent < pages * 0.7; sent += 1) {
    await query(connectionString, `select pg_notify('other', '${sent} ' || repeat('x', 7900))`);
  }
  // Left out, because the queue has no room for it.
  await query(connectionString, `select nuncio.announce('test', 'lost')`);
  const wait = (isDone: (listening: number) => boolean) => until(async () => seen.listening, isDone);
  await wait((listening) => listening >= 2);
  assert.equal(notifications.isListening, false);
  assert.match(errors[0] ?? '', /notification queue is \d+ % full/);

  await stranger.end();
  const atRelease = seen.listening;
  await until(
    async () => notifications.isListening,
    (isListening) => isListening,
  );
  assert.equal(seen.listening, atRelease + 1);
  await query(connectionString, `select nuncio.announce('test', 'heard')`);
  await until(
    async () => seen.hints.at(-1),
    (hint) => hint === 'heard',
  );
  assert.deepEqual([seen.hints, errors.length], [['heard'], 1]);
});
