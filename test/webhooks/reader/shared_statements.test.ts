/** Statements that many readers share are nobody's: they do not wait for the connections of the reader who asked first. */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { asUser, type ConnectionUser, currentUser } from '../../../src/database/connection_user.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { Notifications } from '../../../src/database/notifications.ts';
import { undivided } from '../../../src/shared/owner_turns.ts';
import { createAgentLaneFinder } from '../../../src/webhooks/reader/agent_lane.ts';
import { LaneWatch } from '../../../src/webhooks/reader/lane_watch.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { until } from '../../support/webhooks/apps.ts';

const { databaseUrl } = await startTestServer({ after });
const first: ConnectionUser = { ...undivided('first'), purpose: 'first', hasEnded: false };
const second: ConnectionUser = { ...undivided('second'), purpose: 'first', hasEnded: false };

/** Opens four connections, of which the first user holds its share, and waits for more. */
async function openBusy(t: TestContext): Promise<Database> {
  const db = openDatabase({
    connectionString: databaseUrl,
    connectionsMax: 4,
    connectionTimeoutMs: 60_000,
  });
  const { promise: released, resolve: release } = Promise.withResolvers<void>();
  let held = 0;
  const hold = () =>
    db.connection().execute(async () => {
      held += 1;
      await released;
    });
  const holders = asUser(first, () => [hold(), hold(), hold(), hold()]);
  t.after(async () => {
    release();
    await Promise.all(holders);
    await db.destroy();
  });
  await until(
    async () => held,
    (count) => count > 0,
  );
  assert.ok(held < 4, 'one connection is left');
  return db;
}

/** Watches lanes without notifications. */
function createWatch(db: Database, onError: (error: Error) => void): LaneWatch {
  const notifications = new Notifications(
    databaseUrl,
    () => {},
    () => {},
  );
  return new LaneWatch({ db, notifications, onWake: () => {}, appSubscriptions: 'all', onError });
}

test('attack: a reader whose connections are all in use does not keep other waiting readers', async (t) => {
  const db = await openBusy(t);
  const errors: Error[] = [];
  const watch = createWatch(db, (error) => errors.push(error));
  t.after(() => watch.stop());
  const woken: [string, string | undefined][] = [];
  const wait = (user: ConnectionUser, lane: number) =>
    asUser(user, () => {
      const { promise, resolve } = Promise.withResolvers<void>();
      watch.watch({ lane, after: 0, holder: { tenant: user.owner, clientId: 'app' } }, () => {
        woken.push([user.owner, currentUser()?.owner]);
        resolve();
      });
      return promise;
    });
  // Lanes that do not exist are closed, so their readers wake at the first look, which the first one plans.
  await Promise.all([wait(first, 9_000_001), wait(second, 9_000_002)]);
  assert.deepEqual(woken, [
    ['first', 'first'],
    ['second', 'second'],
  ]);
  assert.deepEqual(errors, []);
});

test('attack: a reader of one lane does not wait until another’s thousand lanes were asked for', async (t) => {
  const db = openDatabase({ connectionString: databaseUrl, connectionsMax: 3 });
  const watch = createWatch(db, (error) => assert.fail(error));
  t.after(async () => {
    watch.stop();
    await db.destroy();
  });
  const woken: string[] = [];
  const wait = (owner: string, clientId: string, lane: number) =>
    new Promise<void>((resolve) => {
      watch.watch({ lane, after: 0, holder: { tenant: owner, clientId } }, () => {
        woken.push(`${owner} ${clientId}`);
        resolve();
      });
    });
  // Lanes that do not exist are closed, so their readers wake when they are asked for.
  const many = Array.from({ length: 1_000 }, (_, index) => wait('first', 'app', 9_000_001 + index));
  await Promise.all([...many, wait('first', 'other-app', 9_100_001), wait('second', 'app', 9_100_002)]);
  assert.deepEqual(woken.slice(0, 3).toSorted(), ['first app', 'first other-app', 'second app']);
  assert.equal(woken.length, 1_002);
});

test('attack: an agent whose connections are all in use does not keep the polls of others waiting', async (t) => {
  const find = createAgentLaneFinder(await openBusy(t), 'all');
  const polls = [first, second].map((user) => asUser(user, () => find(user.owner)));
  assert.deepEqual(await Promise.all(polls), [undefined, undefined]);
});
