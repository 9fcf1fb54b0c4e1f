/** The memory of a node is bounded, and subscribers that never respond do not use it up. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { createCatalogue } from '../../../src/events/catalogue.ts';
import { withdrawGrant } from '../../../src/grants/grant.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { EngineHandle } from '../../../src/webhooks/engine/engine_handle.ts';
import { kindArrays } from '../../../src/webhooks/fan_out/fan_out.ts';
import { defaultHeaderNames } from '../../../src/webhooks/subscriptions/delivery_headers.ts';
import { defaultQuotas } from '../../../src/webhooks/subscriptions/quotas.ts';
import { createTestAccount } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  type App,
  createApp,
  createPublisher,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { type Subscriber, startSubscriber } from '../../support/webhooks/subscriber.ts';

// The engine runs in this thread, where the test can measure and collect its memory. Host quotas are lifted, so that
// silent subscribers take up all that the other limits allow.
const unlimited = { attemptsPerUnknownHost: 10_000, unknownHostRate: 10_000, attemptsPerApp: 10_000 };
const platform = await loadPlatform(null);
const webhooks = { ...platform.webhooks, quotas: { ...defaultQuotas, ...unlimited } };
const server = await startTestServer({ after }, {}, 'dev', { ...platform, webhooks }, undefined, 'here');
const publisher = await createPublisher(server);

setFlagsFromString('--expose-gc');
const collectGarbage: () => void = runInNewContext('gc');

function bufferBytes(): number {
  collectGarbage();
  return process.memoryUsage().arrayBuffers;
}

async function endGrant({ grantId }: App): Promise<void> {
  await withdrawGrant(server.db, grantId, 'user');
}

const marks = (count: number) => Array.from({ length: count }, (_, index) => index);

/**
 * Publishes events of an account in batches and waits for their deliveries.
 * @param limitMs the timeout
 * @returns the duration in milliseconds
 */
async function deliver(
  { account }: App,
  subscriber: Subscriber,
  batches: readonly number[],
  limitMs?: number,
): Promise<number> {
  const startedAt = performance.now();
  const before = subscriber.received.length;
  for (const count of batches) await publish(publisher, account, marks(count));
  await subscriber.waitFor(before + batches.reduce((sum, count) => sum + count, 0), limitMs);
  return performance.now() - startedAt;
}

test('webhooks 67: a hundred silent subscribers do not delay another’s backlog', async (t) => {
  const hanging = await startSubscriber(t, () => {});
  const subscriber = await startSubscriber(t);
  const [dead, alive] = [await createApp(server), await createApp(server)];
  t.after(() => endGrant(dead));
  await subscribe(alive, { url: subscriber.url });
  const backlog = [1_000, 1_000, 1_000];
  // The time without silent subscribers is the measure: a slow machine needs longer for both.
  const aloneMs = await deliver(alive, subscriber, backlog);
  for (let count = 0; count < 100; count += 1) await subscribe(dead, { url: `${hanging.url}/${count}` });
  await publish(publisher, dead.account, marks(700));
  await hanging.waitFor(100);
  await sleep(1_000);
  await deliver(alive, subscriber, backlog, Math.max(10_000, 10 * aloneMs));
});

test('large bodies that wait for silent subscribers are not all kept in memory', async (t) => {
  const hanging = await startSubscriber(t, () => {});
  const before = bufferBytes();
  const commits = Array.from({ length: 5 }, () => ({ id: 'a', message: 'm'.repeat(50_000) }));
  for (let count = 0; count < 8; count += 1) {
    const app = await createApp(server);
    t.after(() => endGrant(app));
    await subscribe(app, { url: hanging.url });
    for (let batch = 0; batch < 2; batch += 1) {
      const events = Array.from({ length: 50 }, () => ({
        kind: 'push',
        account: app.account.id,
        body: { ref: 'refs/heads/x', commits, repository: { name: 'example' } },
      }));
      assert.equal((await publisher('POST', '/events', { json: events })).status, 202);
    }
  }
  await sleep(2_000);
  // 200 MB were published. The event cache takes 32 MiB, and waiting deliveries take at most 64 MiB. Garbage that is
  // not collected yet still counts for a while.
  await until(
    async () => Math.round((bufferBytes() - before) / 1_048_576),
    (grownMiB) => grownMiB < 120,
  );
});

test('webhooks 67: more than a thousand silent subscribers leave room for a responsive one', async (t) => {
  const hanging = await startSubscriber(t, () => {});
  const subscriber = await startSubscriber(t);
  const alive = await createApp(server);
  await subscribe(alive, { url: subscriber.url });
  await deliver(alive, subscriber, [10]);
  const aloneMs = await deliver(alive, subscriber, [100]);
  const account = await createTestAccount(server);
  for (let apps = 0; apps < 2; apps += 1) {
    const dead = await createApp(server, { account });
    t.after(() => endGrant(dead));
    for (let round = 0; round < 30; round += 1) {
      await Promise.all(
        marks(20).map((count) => subscribe(dead, { url: `${hanging.url}/${round}/${count}` })),
      );
    }
  }
  await publish(publisher, account, marks(10));
  // As many as one account may have in flight whose subscribers never succeeded.
  await hanging.waitFor(1_300);
  await sleep(3_000);
  await deliver(alive, subscriber, [100], Math.max(3_000, 15 * aloneMs));
});

test('messages to a stuck engine are bounded', async (t) => {
  const kinds = kindArrays(createCatalogue([]));
  const engine = new EngineHandle({
    settings: {
      databaseUrl: server.databaseUrl,
      connectionsMax: 6,
      secret: Buffer.alloc(32),
      egress: { allowLoopback: false },
      clientCertificate: null,
      retryScheduleSeconds: [],
      headerNames: defaultHeaderNames,
      presentation: { baseUrl: server.baseUrl, resources: new Map(), versions: new Map(), conversions: null },
      quotas: defaultQuotas,
      agents: { codeOf: { Forbidden: -32_012, NotFound: -32_011 }, webhookId: 'event' },
      kinds,
      replayableKinds: kinds,
    },
    place: 'here',
    onWarning: () => {},
    onError: () => {},
    onWake: () => {},
    onSpan: () => {},
    onFalseHints() {},
    onLeadership: () => {},
  });
  t.after(() => engine.stop());
  const body = Buffer.alloc(1_048_576, 'm');
  const createdAt = new Date();
  let position = 0;
  // The engine runs in this thread and takes no message before this function returns to the event loop.
  const tell = () => {
    const before = process.memoryUsage().rss;
    for (let count = 0; count < 300; count += 1) {
      position += 1;
      const event = {
        position,
        id: 'id',
        day: '2020-02-02',
        kind: 'push',
        accountId: 'account',
        body,
        createdAt,
        version: null,
        traceparent: null,
        accountExternalId: null,
      };
      engine.remember([event]);
      engine.wake();
    }
    const grownBytes = process.memoryUsage().rss - before;
    assert.ok(grownBytes < 150_000_000, `${grownBytes} bytes wait`);
    return engine.queuedBytes;
  };
  for (let round = 0; round < 3; round += 1) {
    const untaken = tell();
    assert.ok(untaken > 30_000_000 && untaken < 40_000_000, `${untaken} bytes`);
    while (engine.queuedBytes > 2_000_000) await sleep(10);
  }
});
