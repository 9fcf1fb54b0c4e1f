/** Housekeeping while the database's clock is ahead: nothing is deleted for good that expires only by a wrong clock. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { TrustedClock } from '../../src/database/trusted_clock.ts';
import { startHousekeeping } from '../../src/oauth/housekeeping.ts';
import { openTestDatabase } from '../support/database/open_database.ts';

const [minute, hour, day] = [60_000, 3_600_000, 86_400_000];

test('a clock that jumps ahead is not trusted until it is back', () => {
  const clock = new TrustedClock();
  assert.ok(clock.isTrusted(0, 0));
  assert.ok(clock.isTrusted(minute, minute));
  assert.ok(!clock.isTrusted(35 * day, 2 * minute));
  assert.ok(!clock.isTrusted(35 * day + minute, 3 * minute));
  assert.ok(clock.isTrusted(4 * minute, 4 * minute));
  // It went back by two hours. Nothing expires early by that, but its return looks like a jump.
  assert.ok(clock.isTrusted(5 * minute - 2 * hour, 5 * minute));
  assert.ok(!clock.isTrusted(6 * minute, 6 * minute));
});

test('a clock that stays ahead is trusted after an hour', () => {
  const clock = new TrustedClock();
  assert.ok(clock.isTrusted(0, 0));
  assert.ok(!clock.isTrusted(day + minute, minute));
  assert.ok(!clock.isTrusted(day + hour, hour));
  assert.ok(clock.isTrusted(day + hour + minute, hour + minute));
  assert.ok(clock.isTrusted(day + hour + 2 * minute, hour + 2 * minute));
});

test('a clock that is adjusted by a few minutes stays trusted', () => {
  const clock = new TrustedClock();
  assert.ok(clock.isTrusted(0, 0));
  assert.ok(clock.isTrusted(5 * minute, minute));
});

/** A database with a row that its clock has let expire, and a function that counts what is left of it. */
async function createExpired(t: TestContext) {
  // One connection: statements run one after another.
  const { db } = await openTestDatabase(t, 1);
  await sql`
    insert into withdrawals (kind, subject, until) values ('token', 'one', now() - interval '1 minute')`.execute(
    db,
  );
  return { db, left: async () => (await sql`select from withdrawals`.execute(db)).rows.length };
}

test('housekeeping leaves out the rounds in which the database’s clock is ahead', async (t) => {
  const { db, left } = await createExpired(t);
  t.mock.timers.enable({ apis: ['setInterval'] });
  const stop = startHousekeeping(db, (error) => assert.fail(String(error)));
  // Runs after the first reading of the clock.
  assert.equal(await left(), 1);
  // The monotonic clock stands still while the database's clock gains ten minutes.
  const realNow = performance.now.bind(performance);
  const behind = t.mock.method(performance, 'now', () => realNow() - 10 * minute);
  t.mock.timers.tick(minute);
  assert.equal(await left(), 1);
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(await left(), 1);
  behind.mock.restore();
  t.mock.timers.tick(minute);
  await stop();
  assert.equal(await left(), 0);
});

test('a server that starts while the database’s clock is ahead deletes nothing', async (t) => {
  const { db, left } = await createExpired(t);
  t.mock.timers.enable({ apis: ['setInterval'] });
  const realNow = Date.now.bind(Date);
  const behind = t.mock.method(Date, 'now', () => realNow() - 35 * day);
  const stop = startHousekeeping(db, (error) => assert.fail(String(error)));
  behind.mock.restore();
  t.mock.timers.tick(minute);
  await stop();
  assert.equal(await left(), 1);
});
