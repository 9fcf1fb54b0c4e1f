/**
 * One account does not delay another. Each test gives an attacker a backlog, and shows that a healthy account has all
 * of its deliveries while most of that backlog is pending.
 */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { loadPlatform } from '../../../src/platform.ts';
import { defaultQuotas, type Quotas } from '../../../src/webhooks/subscriptions/quotas.ts';
import { startTestServer, type TestServer } from '../../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  fannedOut,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const range = (count: number) => Array.from({ length: count }, (_, index) => index);

/** Host limits have tests of their own. */
const unlimitedHosts = { attemptsPerUnknownHost: 10_000, unknownHostRate: 10_000, attemptsPerApp: 10_000 };

async function startWith(t: TestContext, quotas: Partial<Quotas>): Promise<TestServer> {
  const platform = await loadPlatform(null);
  const webhooks = { ...platform.webhooks, quotas: { ...defaultQuotas, ...unlimitedHosts, ...quotas } };
  return startTestServer(t, { NUNCIO_RETRY_SCHEDULE: '1h' }, 'dev', { ...platform, webhooks });
}

async function subscribeMany(app: App, count: number, fields: (index: number) => Record<string, unknown>) {
  for (let first = 0; first < count; first += 20) {
    await Promise.all(
      range(Math.min(20, count - first)).map((index) => subscribe(app, fields(first + index))),
    );
  }
}

/** Counts an account's deliveries without a recorded attempt. */
async function unattempted({ db }: TestServer, { account }: App): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from deliveries d
    join subscriptions s on s.lane = d.lane
    where s.account_id = ${account.id}
      and not exists (select from attempts a where a.lane = d.lane and a.sequence = d.sequence)`.execute(db);
  return rows[0]?.count ?? 0;
}

test('large bodies for one account’s hundreds of hanging subscriptions take nothing from another', async (t) => {
  // A sixteenth of the defaults, so that few bodies are enough.
  const server = await startWith(t, { waitingBytes: 4_194_304, waitingBytesPerAccount: 1_048_576 });
  const publisher = await createPublisher(server);
  const inFlight = { now: 0, most: 0 };
  const hanging = await startSubscriber(t, (_received, response) => {
    inFlight.now += 1;
    inFlight.most = Math.max(inFlight.most, inFlight.now);
    response.once('close', () => {
      inFlight.now -= 1;
    });
  });
  const subscriber = await startSubscriber(t);
  const [attacker, healthy] = [await createApp(server), await createApp(server)];
  await subscribeMany(attacker, 200, (index) => ({ url: `${hanging.url}/${index}` }));
  await subscribe(healthy, { url: subscriber.url });
  const commits = range(2).map(() => ({ id: 'a', message: 'm'.repeat(32_000) }));
  const large = { ref: 'refs/heads/x', commits, repository: { name: 'example' } };
  for (let count = 0; count < 40; count += 1) {
    const event = { kind: 'push', account: attacker.account.id, body: large };
    assert.equal((await publisher('POST', '/events', { json: event })).status, 202);
  }
  await fannedOut(server);
  // One account alone has half of what the reserve leaves of 384.
  await hanging.waitFor(168);
  for (let batch = 0; batch < 3; batch += 1) await publish(publisher, healthy.account, range(1_000));
  await subscriber.waitFor(3_000);
  const left = await unattempted(server, attacker);
  assert.ok(left >= 4_000, `${left} of 8000 deliveries of the attacker are left`);
  // Each of them may have a copy of the body.
  assert.ok(inFlight.most <= 168, `${inFlight.most} in flight`);
});

test('one account’s thousands of rate-limited lanes leave room for another, and each gets its turn', async (t) => {
  const server = await startWith(t, { lanes: 100 });
  const publisher = await createPublisher(server);
  const slow = await startSubscriber(t);
  const subscriber = await startSubscriber(t);
  const [attacker, healthy] = [await createApp(server), await createApp(server)];
  await subscribeMany(attacker, 200, (index) => ({ url: `${slow.url}/${index}`, rate_limit: 1 }));
  await subscribe(healthy, { url: subscriber.url });
  await publish(publisher, attacker.account, range(50));
  await fannedOut(server);
  await slow.waitFor(50);
  await publish(publisher, healthy.account, range(500));
  await subscriber.waitFor(500);
  const left = await unattempted(server, attacker);
  assert.ok(left >= 5_000, `${left} of 10000 deliveries of the attacker are left`);
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from lane_progress where owner is not null`.execute(server.db);
  assert.ok((rows[0]?.count ?? 0) <= 100, `${rows[0]?.count} lanes are held`);
  await until(
    async () => new Set(slow.received.map(({ path }) => path)).size,
    (paths) => paths === 200,
  );
});
