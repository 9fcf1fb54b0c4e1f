/** Readers that wait for events are woken soon after a connection to the database has fallen silent. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { openDatabase } from '../../../src/database/database.ts';
import { Notifications } from '../../../src/database/notifications.ts';
import { LaneWatch } from '../../../src/webhooks/reader/lane_watch.ts';
import { createDatabase } from '../../support/database/database.ts';
import { startDatabaseProxy } from '../../support/database/database_proxy.ts';

const holder = { tenant: 'somebody', clientId: 'app' };

test('a silent connection keeps waiting readers for seconds only, and is replaced', async (t) => {
  const database = await createDatabase();
  const proxy = await startDatabaseProxy(database.url);
  const db = openDatabase({ connectionString: proxy.url, connectionsMax: 3 });
  const errors: Error[] = [];
  const watch = new LaneWatch({
    db,
    notifications: new Notifications(
      database.url,
      () => {},
      () => {},
    ),
    onWake: () => {},
    appSubscriptions: 'all',
    onError: (error) => errors.push(error),
  });
  t.after(async () => {
    watch.stop();
    await db.destroy();
    await proxy.close();
    await database.drop();
  });
  const ask = () => sql`select ${1}::int, pg_sleep(0.1)`.execute(db);
  // Two connections are open, and one of them is in use.
  await Promise.all([ask(), ask()]);
  proxy.freeze();
  let isLeft = false;
  const silent = ask().catch(() => {
    isLeft = true;
  });
  // A lane that does not exist is closed, so its reader wakes at the first look.
  await new Promise<void>((resolve) => watch.watch({ lane: 9_000_001, after: 0, holder }, resolve));
  assert.equal(isLeft, false, 'the reader wakes before an ordinary statement gives up');
  assert.deepEqual(
    errors.map(({ message }) => message),
    ['Query read timeout'],
  );
  proxy.mend();
  await silent;
});
