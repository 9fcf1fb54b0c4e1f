/** The statement that all waiting readers share is nobody's: it does not wait for the connections of one of them. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { asUser, type ConnectionUser, currentUser } from '../../../src/database/connection_user.ts';
import { openDatabase } from '../../../src/database/database.ts';
import { Notifications } from '../../../src/database/notifications.ts';
import { LaneWatch } from '../../../src/webhooks/reader/lane_watch.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { until } from '../../support/webhooks/apps.ts';

const server = await startTestServer({ after });
/** Lanes that do not exist are closed, so their readers wake at the first look. */
const [lane, other] = [9_000_001, 9_000_002];
const connectionTimeoutMs = 60_000;
const users: Record<'first' | 'second', ConnectionUser> = {
  first: { owner: 'first', hasEnded: false },
  second: { owner: 'second', hasEnded: false },
};

test('attack: a reader whose connections are all in use does not keep the others waiting', async (t) => {
  const { databaseUrl } = server;
  const db = openDatabase({ connectionString: databaseUrl, connectionsMax: 4, connectionTimeoutMs });
  const errors: Error[] = [];
  const watch = new LaneWatch({
    db,
    notifications: new Notifications(
      databaseUrl,
      () => {},
      () => {},
    ),
    onWake: () => {},
    appSubscriptions: 'all',
    onError: (error) => errors.push(error),
  });
  const { promise: released, resolve: release } = Promise.withResolvers<void>();
  t.after(async () => {
    release();
    watch.stop();
    await db.destroy();
  });
  let held = 0;
  const holders = asUser(users.first, () =>
    Array.from({ length: 4 }, () =>
      db.connection().execute(async () => {
        held += 1;
        await released;
      }),
    ),
  );
  await until(
    async () => held,
    (count) => count > 0,
  );
  const woken: [string, string | undefined][] = [];
  const wait = (name: keyof typeof users, of: number) =>
    asUser(
      users[name],
      () =>
        new Promise<void>((resolve) =>
          watch.watch(of, 0, () => {
            woken.push([name, currentUser()?.owner]);
            resolve();
          }),
        ),
    );
  // The first one plans the look.
  await Promise.all([wait('first', lane), wait('second', other)]);
  assert.ok(held < 4, 'one connection is left');
  assert.deepEqual(woken, [
    ['first', 'first'],
    ['second', 'second'],
  ]);
  assert.deepEqual(errors, []);
  release();
  await Promise.all(holders);
});
