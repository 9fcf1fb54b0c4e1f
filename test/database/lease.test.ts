/** Leases: one holder at a time, and nothing commits for a former one. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { openDatabase } from '../../src/database/database.ts';
import { Lease, releaseLeasesOf } from '../../src/database/lease.ts';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';
import { openTestDatabase } from '../support/database/open_database.ts';
import { until } from '../support/webhooks/apps.ts';

async function open(t: TestContext) {
  const leases: Lease[] = [];
  let isOver = false;
  // Before the database is closed. A renewal may be under way.
  t.after(() => {
    isOver = true;
    for (const lease of leases) lease.forget();
  });
  const { db } = await openTestDatabase(t, 4);
  const onError = (error: Error) => {
    if (!isOver) assert.fail(error);
  };
  const leaseOf = (holder: string) => {
    const lease = new Lease({ db, name: 'fan-out', holder, onError });
    leases.push(lease);
    return lease;
  };
  return { db, one: leaseOf('one'), two: leaseOf('two') };
}

test('a lease has one holder, and another one at once when it is released', async (t) => {
  const { one, two } = await open(t);
  assert.deepEqual([await one.acquire(), await two.acquire()], ['self', 'other']);
  assert.deepEqual([one.isHeld, two.isHeld], [true, false]);
  await one.release();
  assert.equal(one.isHeld, false);
  assert.equal(await two.acquire(), 'self');
});

test('a lease lasts while its holder renews it, and not much longer', async (t) => {
  const { db, one, two } = await open(t);
  await one.acquire();
  const readExpiry = async () =>
    (await sql<{ at: Date }>`select expires_at as at from leases where name = 'fan-out'`.execute(db)).rows[0]
      ?.at as Date;
  const first = await readExpiry();
  await until(readExpiry, (at) => at.getTime() - first.getTime() > 4_000);
  assert.equal(await two.acquire(), 'other');
  // Killed: it renews no more.
  one.forget();
  await until(
    () => two.acquire(),
    (holder) => holder === 'self',
  );
});

test('a statement of a former holder does nothing when another node has acquired the lease', async (t) => {
  const { db, one, two } = await open(t);
  await sql`create table work (number int)`.execute(db);
  const work = (lease: Lease) =>
    sql`
      with leadership as materialized (${lease.held})
      insert into work select 1 where exists (select from leadership) returning number`.execute(db);
  await one.acquire();
  assert.equal((await work(one)).rows.length, 1);
  // Paused: its own clock does not tell it that the lease is over.
  await sql`update leases set expires_at = '-infinity'`.execute(db);
  assert.equal(await two.acquire(), 'self');
  assert.equal(one.isHeld, true);
  assert.equal((await work(one)).rows.length, 0);
  assert.equal((await work(two)).rows.length, 1);
  await until(
    async () => one.isHeld,
    (isHeld) => !isHeld,
  );
});

test('a lease cannot be acquired while a statement of its holder runs', async (t) => {
  const { db, one, two } = await open(t);
  await one.acquire();
  await db.transaction().execute(async (tx) => {
    assert.equal((await sql`${one.held}`.execute(tx)).rows.length, 1);
    await sql`update leases set expires_at = '-infinity'`.execute(tx);
    assert.notEqual(await two.acquire(), 'self');
  });
  assert.equal(await two.acquire(), 'self');
});

test('a lease is free when the database’s clock went back, or its holder is known gone', async (t) => {
  const { db, one, two } = await open(t);
  await one.acquire();
  one.forget();
  await sql`update leases set expires_at = now() + interval '1 day'`.execute(db);
  assert.equal(await two.acquire(), 'self');
  await releaseLeasesOf(db, ['two']);
  assert.equal(await one.acquire(), 'self');
});

test('a holder keeps its lease when one of its connections freezes', async (t) => {
  const { db, url } = await openTestDatabase(t, 2);
  const proxy = await startDatabaseProxy(url);
  const frozen = openDatabase({ connectionString: proxy.url, connectionsMax: 4 });
  const lease = new Lease({ db: frozen, name: 'fan-out', holder: 'one', onError: () => {} });
  assert.equal(await lease.acquire(), 'self');
  proxy.freeze();
  // Longer than the lease.
  const end = performance.now() + 5_000;
  while (performance.now() < end) {
    assert.equal(lease.isHeld, true);
    await sleep(100);
  }
  const { rows } =
    await sql`select from leases where name = 'fan-out' and expires_at > clock_timestamp()`.execute(db);
  assert.equal(rows.length, 1);
  lease.forget();
  proxy.mend();
  await frozen.destroy();
  await proxy.close();
});

test('a lease expires while the work of its holder makes no progress', async (t) => {
  const { db, two } = await open(t);
  const stuck = new Lease({
    db,
    name: 'fan-out',
    holder: 'stuck',
    mayRenew: () => false,
    onError: assert.fail,
  });
  t.after(() => stuck.forget());
  assert.equal(await stuck.acquire(), 'self');
  assert.equal(await two.acquire(), 'other');
  await until(
    () => two.acquire(),
    (holder) => holder === 'self',
  );
  assert.equal(stuck.isHeld, false);
});
