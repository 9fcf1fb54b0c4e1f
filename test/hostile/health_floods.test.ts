/** An account with very many subscriptions asks for their health: the sums of others come between its slices. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { startTestServer } from '../support/servers/server.ts';
import { type App, addPaused, createApp, until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const path = '/deliveries/health';

async function createWith(subscriptions: number): Promise<App> {
  const app = await createApp(server);
  await addPaused(server.db, app, subscriptions);
  return app;
}

/** Runs `ask` while no counts can be read. */
async function whileCountsAreLocked<Result>(ask: () => Promise<Result>): Promise<Result> {
  return server.db.transaction().execute(async (tx) => {
    await sql`lock table delivery_stats in access exclusive mode`.execute(tx);
    return ask();
  });
}

async function untilOneReads(): Promise<void> {
  const count = async () => {
    const { rows } = await sql`
      select from pg_locks where relation = 'delivery_stats'::regclass and not granted`.execute(server.db);
    return rows.length;
  };
  await until(count, (waiting) => waiting > 0);
}

/** Asks as often as the account may wait, which the refusal of one more tells, and notes those that get a sum. */
async function askUntilFull(app: App, name: string, order: string[]): Promise<Promise<void>[]> {
  const asked = Array.from({ length: 6 }, async () => {
    const { status } = await app.request('GET', path);
    if (status === 200) order.push(name);
    return status;
  });
  assert.equal(await Promise.race(asked), 503);
  return asked.map(async (each) => void (await each));
}

async function askFirst(app: App, name: string, order: string[]): Promise<{ sum: Promise<void> }> {
  const sum = app.request('GET', path).then(({ status, text }) => {
    assert.equal(status, 200, text);
    order.push(name);
  });
  await untilOneReads();
  return { sum };
}

test('attack: others’ sums of health come between the slices of one of many subscriptions', async () => {
  const [attacker, other] = [await createWith(1_000), await createWith(2)];
  const order: string[] = [];
  const asked = await whileCountsAreLocked(async () => {
    const { sum } = await askFirst(attacker, 'attacker', order);
    return [sum, ...(await askUntilFull(other, 'other', order))];
  });
  await Promise.all(asked);
  assert.deepEqual([...new Set(order)], ['other', 'attacker']);
});

test('sums of very many subscriptions end one after the other, between them those of few', async () => {
  const [first, second, other] = [await createWith(1_000), await createWith(1_000), await createWith(30)];
  const order: string[] = [];
  const asked = await whileCountsAreLocked(async () => {
    const { sum } = await askFirst(first, 'first', order);
    return [
      sum,
      ...(await askUntilFull(second, 'second', order)),
      ...(await askUntilFull(other, 'other', order)),
    ];
  });
  await Promise.all(asked);
  assert.deepEqual([...new Set(order)], ['other', 'first', 'second']);
});

test('a sum of health that has had its time is refused before its next slice', async (t) => {
  const app = await createWith(60);
  const ending = new AbortController();
  const { timeout } = AbortSignal;
  t.mock.method(AbortSignal, 'timeout', (ms: number) => (ms === 40_000 ? ending.signal : timeout(ms)));
  const { answer } = await whileCountsAreLocked(async () => {
    const answer = app.request('GET', path);
    await untilOneReads();
    ending.abort();
    return { answer };
  });
  const { status, body } = await answer;
  assert.deepEqual([status, body.code], [503, 'overloaded']);
});
