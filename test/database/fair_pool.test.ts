/** Who gets the connections of a pool, with a real pool of 11. */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import {
  asServer,
  asUser,
  type ConnectionUser,
  currentUser,
  inTurnOf,
  type Purpose,
  purposeOf,
} from '../../src/database/connection_user.ts';
import { type Database, openDatabase, poolStatus, type Transaction } from '../../src/database/database.ts';
import { ConnectionShareError } from '../../src/database/fair_pool.ts';
import type { TimeOwner } from '../../src/shared/fair_time.ts';
import { undivided } from '../../src/shared/owner_turns.ts';
import { createDatabase } from '../support/database/database.ts';
import { until } from '../support/webhooks/apps.ts';

const size = 11;
const database = await createDatabase();
const open = (connectionTimeoutMs: number) =>
  openDatabase({ connectionString: database.url, connectionsMax: size, connectionTimeoutMs });
// Nobody is refused on a slow machine.
const db = open(60_000);
const impatient = open(1_000);
const [byTime, byTurns] = [true, false].map((isByTime) =>
  openDatabase({ connectionString: database.url, connectionsMax: 3, connectionTimeoutMs: 60_000, isByTime }),
) as [Database, Database];
after(async () => {
  for (const each of [db, impatient, byTime, byTurns]) await each.destroy();
  await database.drop();
});

/** A request of the owner. */
const requestOf = (owner: string, purpose: Purpose = 'first'): ConnectionUser => ({
  ...undivided(owner),
  purpose,
  hasEnded: false,
});

/** Holds connections until told to end, or until the end of the test. */
function holder(t: TestContext, pool = db) {
  const held: string[] = [];
  const refused: Error[] = [];
  const ends: { label: string; end: () => void }[] = [];
  const running: Promise<void>[] = [];

  function hold(
    user: ConnectionUser | null,
    work: (tx: Transaction) => Promise<unknown> = async () => {},
  ): void {
    const label = user?.owner ?? 'server';
    const run = () =>
      pool
        .transaction()
        .execute(async (tx) => {
          await work(tx);
          const { promise, resolve } = Promise.withResolvers<void>();
          held.push(label);
          ends.push({ label, end: resolve });
          await promise;
        })
        .catch((error: Error) => void refused.push(error));
    running.push(user === null ? asServer(run) : asUser(user, run));
  }

  async function endAll(): Promise<void> {
    let isOver = false;
    const all = Promise.all(running).then(() => {
      isOver = true;
    });
    while (!isOver) {
      for (const { end } of ends.splice(0)) end();
      await Promise.race([all, new Promise((resolve) => setTimeout(resolve, 5))]);
    }
  }
  // Also after a failure. Otherwise the pool would never close.
  t.after(endAll);

  return {
    held,
    refused,
    hold,
    endAll,
    untilHeld: (count: number) =>
      until(
        async () => held.length,
        (length) => length === count,
      ),
    /** Ends the oldest holding of the owner. */
    end(label: string): void {
      const [first] = ends.splice(
        ends.findIndex((each) => each.label === label),
        1,
      );
      first?.end();
    },
  };
}

/** How many of the labels the owner has. */
const countOf = (labels: readonly string[], owner: string) =>
  labels.filter((label) => label === owner).length;

test('one user holds 5 of 11 connections, four hold 9, and others find one at once', async (t) => {
  const { held, hold, untilHeld, endAll } = holder(t);
  for (let count = 0; count < 30; count += 1) hold(requestOf('a'));
  await untilHeld(5);
  for (const owner of ['b', 'c', 'd']) for (let count = 0; count < 30; count += 1) hold(requestOf(owner));
  await untilHeld(9);
  assert.deepEqual(
    ['a', 'b', 'c', 'd'].map((owner) => countOf(held, owner)),
    [5, 2, 1, 1],
  );
  // Nothing waits that more connections would help.
  assert.equal(poolStatus(db).waiting, 0);
  await asUser(requestOf('victim'), () => sql`select`.execute(db));
  assert.equal(held.length, 9);
  await endAll();
  assert.equal(held.length, 120);
});

test('apps of an account share its connections, and that goes first which holds fewest', async (t) => {
  const { held, hold, untilHeld, end, endAll } = holder(t);
  const served: string[] = [];
  const holdFor = (app: string, count: number) => {
    for (let left = count; left > 0; left -= 1)
      hold({ ...requestOf('a'), part: `a ${app}` }, async () => served.push(app));
  };
  holdFor('hostile', 10);
  await untilHeld(4);
  holdFor('quiet', 2);
  await untilHeld(5);
  // The account has room again when it holds three.
  end('a');
  end('a');
  await untilHeld(6);
  holdFor('new', 1);
  await untilHeld(7);
  assert.deepEqual(served.slice(4), ['quiet', 'quiet', 'new']);
  await endAll();
  assert.equal(held.length, 13);
});

test('with all connections in use, the server goes first, then users who had none for the longest time', async (t) => {
  const { held, hold, untilHeld, end, endAll } = holder(t);
  const owners = Array.from({ length: size }, (_none, index) => `owner ${index}`);
  for (const owner of owners) hold(requestOf(owner));
  await untilHeld(size);
  for (const owner of owners) for (let count = 0; count < 2; count += 1) hold(requestOf(owner));
  assert.deepEqual(new Set(held), new Set(owners));
  hold(requestOf('victim'));
  hold(null);
  assert.equal(poolStatus(db).waiting, 2 * size + 2);
  end('owner 0');
  await untilHeld(size + 1);
  end('owner 1');
  await untilHeld(size + 2);
  end('owner 2');
  await untilHeld(size + 3);
  assert.deepEqual(held.slice(size), ['server', 'victim', 'owner 0']);
  await endAll();
});

test('work of the server and of ended requests has no share', async (t) => {
  const { held, hold, untilHeld, endAll } = holder(t);
  const ended = { ...requestOf('ended'), hasEnded: true };
  for (let count = 0; count < 5; count += 1) hold(null);
  for (let count = 0; count < 6; count += 1) hold(ended);
  await untilHeld(size);
  assert.equal(countOf(held, 'ended'), 6);
  await endAll();
});

/** The user of work of the owner in a turn, for which others wait. */
async function inTurn(owner: string, waiting: TimeOwner[] = []): Promise<ConnectionUser> {
  const run = () =>
    inTurnOf(
      'lists',
      () => waiting,
      async () => currentUser(),
    );
  const user = (await asUser(requestOf(owner, 'read'), run)) as ConnectionUser;
  // What a turn leaves behind is the server's.
  assert.equal(user.hasEnded, true);
  return { ...user, hasEnded: false };
}

test('attack: work in a turn waits behind none of its user’s other work', async (t) => {
  const { held, hold, untilHeld, endAll } = holder(t);
  for (let count = 0; count < 8; count += 1) hold(requestOf('busy', 'read'));
  await untilHeld(4);
  const user = await inTurn('busy');
  assert.deepEqual([user.part, purposeOf(user)], [null, 'read']);
  hold(user);
  await untilHeld(5);
  assert.equal(held[4], user.owner);
  const ofServer = await inTurnOf(
    'lists',
    () => [],
    async () => currentUser(),
  );
  assert.equal(ofServer, undefined);
  await endAll();
});

test('attack: in a pool by time, work in a turn comes when whoever waits for it would', async (t) => {
  for (const waiting of [[], [undivided('stranger')]]) {
    const { held, hold, untilHeld, end, endAll } = holder(t, byTime);
    await asUser(requestOf('hostile'), () => sql`select pg_sleep(0.4)`.execute(byTime));
    await asUser(requestOf('other'), () => sql`select pg_sleep(0.1)`.execute(byTime));
    for (let count = 0; count < 3; count += 1) hold(null);
    await untilHeld(3);
    const user = await inTurn('hostile', waiting);
    hold(requestOf('other'));
    hold(user);
    end('server');
    await untilHeld(4);
    assert.equal(held[3], waiting.length === 0 ? 'other' : user.owner);
    await endAll();
  }
});

test('attack: changes of many users leave connections to reads, and both to what goes first', async (t) => {
  const { hold, held, untilHeld } = holder(t);
  const many = (purpose: Purpose) => {
    for (let user = 0; user < 2 * size; user += 1) hold(requestOf(`${purpose} ${user}`, purpose));
  };
  many('change');
  await untilHeld(8);
  assert.equal(poolStatus(db).waiting, 0, 'reads need not wait');
  many('read');
  await untilHeld(10);
  assert.match(held.at(-1) ?? '', /^read/);
  assert.ok(poolStatus(db).waiting > 0);
  hold(requestOf('one'));
  await untilHeld(11);
  assert.equal(held.at(-1), 'one');
});

test('attack: ends of rights leave connections to changes, both to reads, and all of these to sign-in', async (t) => {
  const { hold, held, untilHeld } = holder(t);
  for (let user = 0; user < 2 * size; user += 1) hold(requestOf(`right ${user}`, 'right'));
  await untilHeld(8);
  hold(requestOf('changing', 'change'));
  await untilHeld(9);
  assert.equal(held.at(-1), 'changing');
  hold(requestOf('other', 'change'));
  hold(requestOf('reading', 'read'));
  await untilHeld(10);
  assert.equal(held.at(-1), 'reading');
  hold(requestOf('other reader', 'read'));
  hold(requestOf('one'));
  await untilHeld(11);
  assert.equal(held.at(-1), 'one');
});

test('a change that waits does not hold up what its owner reads', async (t) => {
  const { hold, held, untilHeld } = holder(t);
  for (let user = 0; user < 8; user += 1) hold(requestOf(`change ${user}`, 'change'));
  await untilHeld(8);
  hold(requestOf('one', 'change'));
  await asUser(requestOf('one', 'read'), () => sql`select`.execute(db));
  assert.equal(countOf(held, 'one'), 0);
});

test('a request that holds a connection gets a second one, beyond the share', async (t) => {
  const { hold, untilHeld, endAll } = holder(t);
  for (let count = 0; count < 30; count += 1) {
    hold(requestOf('a'), () => sql`select`.execute(db));
  }
  await untilHeld(5);
  await endAll();
});

test('a user whose share is used up for too long is refused, and others are served', async (t) => {
  // On a slow machine, new connections would take longer than the pool waits.
  for (let opened = 0; opened < size; opened = poolStatus(impatient).total) {
    await Promise.allSettled(
      Array.from({ length: size }, () => sql`select pg_sleep(0.1)`.execute(impatient)),
    );
  }
  const { refused, hold, untilHeld, endAll } = holder(t, impatient);
  for (let count = 0; count < 5; count += 1) hold(requestOf('a'));
  await untilHeld(5);
  hold(requestOf('a'));
  await until(
    async () => refused.length,
    (length) => length === 1,
  );
  assert.ok(refused[0] instanceof ConnectionShareError);
  await asUser(requestOf('b'), () => sql`select`.execute(impatient));
  await endAll();
  // The refused request took nothing.
  for (let count = 0; count < 5; count += 1) hold(requestOf('a'));
  await untilHeld(10);
  await endAll();
});

test('connections that fail or are lost are given back', async (t) => {
  const fragile = open(60_000);
  const { hold, untilHeld, endAll } = holder(t, fragile);
  t.after(() => fragile.destroy());
  const lost = Array.from({ length: 8 }, () =>
    asUser(requestOf('a'), () =>
      sql`select pg_terminate_backend(pg_backend_pid())`.execute(fragile).catch(() => {}),
    ),
  );
  await Promise.all(lost);
  // The driver keeps a connection for a moment after the message that it ends.
  await until(
    async () => poolStatus(fragile).total,
    (total) => total === 0,
  );
  for (let count = 0; count < 5; count += 1) hold(requestOf('a'));
  await untilHeld(5);
  await endAll();
  const nowhere = openDatabase({ connectionString: 'postgres://x@127.0.0.1:1/x', connectionsMax: 1 });
  for (let count = 0; count < 3; count += 1) {
    await assert.rejects(sql`select`.execute(nowhere), { code: 'ECONNREFUSED' });
  }
  await nowhere.destroy();
});

test('next is who has had least time in a pool by time, and least turns in others', async (t) => {
  for (const pool of [byTime, byTurns]) {
    const { held, hold, untilHeld, end, endAll } = holder(t, pool);
    const busy = requestOf('busy');
    await asUser(busy, () => sql`select pg_sleep(0.2)`.execute(pool));
    // One turn each, of which that of the first was longer.
    await asUser(requestOf('new'), () => sql`select`.execute(pool));
    for (let count = 0; count < 3; count += 1) hold(null);
    await untilHeld(3);
    hold(busy);
    hold(requestOf('new'));
    end('server');
    await untilHeld(4);
    assert.equal(held[3], pool === byTime ? 'new' : 'busy');
    await endAll();
    for (let count = 0; count < 3; count += 1) hold(null);
    await untilHeld(8);
    hold(busy);
    hold(requestOf('newest'));
    end('server');
    await untilHeld(9);
    assert.equal(held[8], 'newest');
    await endAll();
  }
});

test('attack: users of an app that has had much wait behind others', async (t) => {
  for (const pool of [byTime, byTurns]) {
    const { held, hold, untilHeld, end, endAll } = holder(t, pool);
    const ofApp = (owner: string, app: string) => ({
      ...requestOf(owner),
      part: `${owner} ${app}`,
      group: app,
    });
    for (let count = 0; count < 3; count += 1) hold(null);
    await untilHeld(3);
    for (const [owner, app] of [
      ['hostile 0', 'large app'],
      ['hostile 1', 'large app'],
      ['stranger', 'small app'],
    ] as const)
      hold(ofApp(owner, app));
    end('server');
    await untilHeld(4);
    await sleep(100);
    end('hostile 0');
    await untilHeld(5);
    end('server');
    await untilHeld(6);
    assert.deepEqual(held.slice(3), ['hostile 0', 'stranger', 'hostile 1']);
    await endAll();
  }
});

test('attack: users of an app have four turns for each of another user, whatever others read meanwhile', async (t) => {
  const { held, hold, untilHeld, end, endAll } = holder(t);
  const ofApp = (owner: string) => ({ ...requestOf(owner, 'right'), part: `${owner} app`, group: 'app' });
  for (let count = 0; count < 8; count += 1) hold(requestOf(`other ${count}`, 'right'));
  await untilHeld(8);
  for (let count = 0; count < 10; count += 1) hold(ofApp(`hostile ${count}`));
  for (let count = 0; count < 3; count += 1) hold(requestOf('stranger', 'right'));
  for (let count = 0; count < 8; count += 1) {
    for (let read = 0; read < 5; read += 1)
      await asUser(requestOf('reader', 'read'), () => sql`select`.execute(db));
    end(held.at(-1) as string);
    await untilHeld(9 + count);
  }
  const turns = held.slice(8).map((owner) => owner.replace(/ .*/, ''));
  const [app, stranger] = ['hostile', 'stranger'];
  assert.deepEqual(turns, [app, stranger, app, app, app, app, stranger, app]);
  await endAll();
});

test('attack: many who read do not go before one who changes, however much that one had before', async (t) => {
  const { held, hold, untilHeld, end, endAll } = holder(t);
  const regular = requestOf('regular', 'change');
  for (let count = 0; count < 40; count += 1) await asUser(regular, () => sql`select`.execute(db));
  for (let count = 0; count < size; count += 1) hold(null);
  await untilHeld(size);
  for (let count = 0; count < 30; count += 1) hold(requestOf(`reader ${count}`, 'read'));
  hold(regular);
  for (let count = 1; count <= 4; count += 1) {
    end('server');
    await untilHeld(size + count);
  }
  assert.ok(held.slice(size).includes('regular'), `${held}`);
  await endAll();
});

test('attack: many who had nothing go once before one who had much', async (t) => {
  const { held, hold, untilHeld, end, endAll } = holder(t);
  const regular = requestOf('regular');
  for (let count = 0; count < 40; count += 1) await asUser(regular, () => sql`select`.execute(db));
  for (let count = 0; count < size; count += 1) hold(null);
  await untilHeld(size);
  for (let round = 0; round < 3; round += 1)
    for (let count = 0; count < 10; count += 1) hold(requestOf(`new ${count}`));
  hold(regular);
  for (let count = 1; count <= 21; count += 1) {
    end(held[count - 1] as string);
    await untilHeld(size + count);
  }
  const at = held.indexOf('regular') - size;
  assert.ok(at >= 10 && at <= 20, `${at}`);
  await endAll();
});
