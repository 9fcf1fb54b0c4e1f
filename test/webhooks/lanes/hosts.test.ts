/** Hosts: few attempts reach a host that has never accepted one, and hosts that accept are not held back. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { addressKey } from '../../../src/egress/address_key.ts';
import { defaultQuotas } from '../../../src/webhooks/subscriptions/quotas.ts';
import { platformWithPatientHosts } from '../../support/servers/platform.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { type App, createApp, createPublisher, publish, subscribe } from '../../support/webhooks/apps.ts';
import { type Behaviour, startSubscriber } from '../../support/webhooks/subscriber.ts';

const range = (count: number) => Array.from({ length: count }, (_, index) => index);
const window = defaultQuotas.attemptsPerUnknownHost;

async function subscribeMany(app: App, url: string, count: number): Promise<void> {
  for (let first = 0; first < count; first += 20) {
    await Promise.all(range(20).map((index) => subscribe(app, { url: `${url}/${first + index}` })));
  }
}

/** A subscriber that counts its concurrent requests. */
async function startCounting(t: TestContext, respond: Behaviour) {
  const counted = { atOnce: 0, most: 0 };
  const subscriber = await startSubscriber(t, (received, response) => {
    counted.atOnce += 1;
    counted.most = Math.max(counted.most, counted.atOnce);
    response.on('close', () => {
      counted.atOnce -= 1;
    });
    respond(received, response);
  });
  return { subscriber, counted };
}

test('a host that accepts nothing gets few attempts from any number of subscriptions, and recovers once it accepts', async (t) => {
  const server = await startTestServer(t, { NUNCIO_RETRY_SCHEDULE: '1s,1s,1s,1s,1s' });
  const publisher = await createPublisher(server);
  let accepts = false;
  const { subscriber, counted } = await startCounting(t, (_received, response) => {
    setTimeout(() => response.writeHead(accepts ? 204 : 404).end(), 20);
  });
  const app = await createApp(server);
  await subscribeMany(app, subscriber.url, 200);
  await publish(publisher, app.account, [1]);
  await subscriber.waitFor(10);
  const healthy = await createApp(server);
  const accepting = await startSubscriber(t);
  await subscribe(healthy, { url: accepting.url });
  await publish(publisher, healthy.account, range(500));
  await accepting.waitFor(500);
  // Ten failures, the attempts in flight with the tenth, and then one probe every few seconds.
  assert.ok(subscriber.received.length < 50, `${subscriber.received.length} requests came`);
  assert.ok(counted.most <= window, `${counted.most} requests at once`);
  accepts = true;
  const paths = () => new Set(subscriber.received.map(({ path }) => path)).size;
  while (paths() < 200) await subscriber.waitFor(subscriber.received.length + 1);
});

test('a host that accepts gets more and more concurrent attempts', async (t) => {
  const server = await startTestServer(t);
  const publisher = await createPublisher(server);
  const { subscriber, counted } = await startCounting(t, (_received, response) => {
    setTimeout(() => response.writeHead(204).end(), 100);
  });
  const app = await createApp(server);
  await subscribeMany(app, subscriber.url, 200);
  await publish(publisher, app.account, range(5));
  await subscriber.waitFor(1_000);
  assert.ok(counted.most > 4 * window, `${counted.most} requests at once`);
});

for (const isKnown of [true, false]) {
  const name = isKnown ? 'known' : 'unknown';
  test(`one account’s hanging subscriptions at a shared ${name} host take nothing from another account`, async (t) => {
    const server = await startTestServer(t);
    const publisher = await createPublisher(server);
    const { promise: ended, resolve: end } = Promise.withResolvers<void>();
    t.after(async () => end());
    const subscriber = await startSubscriber(t, async ({ path }, response) => {
      if (path !== '/healthy') await ended;
      response.writeHead(204).end();
    });
    const [hostile, healthy] = [await createApp(server), await createApp(server)];
    const come = async (count: number) => {
      const healthyOnes = () => subscriber.received.filter(({ path }) => path === '/healthy').length;
      while (healthyOnes() < count) await subscriber.waitFor(subscriber.received.length + 1);
    };
    await subscribe(healthy, { url: `${subscriber.url}/healthy` });
    if (isKnown) await publish(publisher, healthy.account, range(50));
    if (isKnown) await come(50);
    await subscribeMany(hostile, `${subscriber.url}/hanging`, 100);
    const before = subscriber.received.length;
    await publish(publisher, hostile.account, range(10));
    await subscriber.waitFor(before + 1);
    await publish(publisher, healthy.account, range(300));
    await come(isKnown ? 350 : 300);
    const hanging = subscriber.received.filter(({ path }) => path !== '/healthy').length;
    assert.ok(hanging < 500, `${hanging} of 1000 hostile deliveries came before`);
  });
}

for (const quota of ['hostRate', 'appRate'] as const) {
  test(`${quota} spaces out one ${quota === 'hostRate' ? 'host' : 'app'}’s attempts, and others get theirs`, async (t) => {
    const perSecond = 50;
    const platform = await platformWithPatientHosts();
    const quotas = { ...platform.webhooks.quotas, [quota]: perSecond };
    const server = await startTestServer(t, {}, 'dev', {
      ...platform,
      webhooks: { ...platform.webhooks, quotas },
    });
    const publisher = await createPublisher(server);
    const [busy, other] = [await startSubscriber(t), await startSubscriber(t)];
    const [busyApp, otherApp] = [await createApp(server), await createApp(server)];
    // The first delivery makes the host known: a host that has accepted nothing has a rate of its own.
    await subscribe(busyApp, { url: `${busy.url}/a` });
    await publish(publisher, busyApp.account, [0]);
    await busy.waitFor(1);
    await subscribe(busyApp, { url: `${busy.url}/b` });
    await subscribe(otherApp, { url: other.url });
    const first = performance.now();
    await publish(publisher, busyApp.account, range(100));
    await publish(publisher, otherApp.account, range(30));
    await other.waitFor(30);
    await busy.waitFor(201);
    const seconds = (performance.now() - first) / 1_000;
    // Attempts that may start at once do not count.
    assert.ok(seconds >= (200 - perSecond * 0.1 - 5) / perSecond, `200 came in ${seconds} s`);
  });
}

test('many names at one address that accepts nothing open few connections', async (t) => {
  const resolveHost = async () => ['127.0.0.1'];
  const server = await startTestServer(t, {}, 'dev', undefined, { resolveHost }, 'here');
  const publisher = await createPublisher(server);
  const { promise: ended, resolve: end } = Promise.withResolvers<void>();
  t.after(async () => end());
  const { subscriber, counted } = await startCounting(t, async (_received, response) => {
    await ended;
    response.writeHead(404).end();
  });
  for (let apps = 0; apps < 4; apps += 1) {
    const app = await createApp(server);
    for (let count = 0; count < 15; count += 1) {
      await subscribe(app, { url: `http://name-${apps}-${count}.example:${subscriber.port}/` });
    }
    await publish(publisher, app.account, [1]);
  }
  await subscriber.waitFor(2 * window);
  const healthy = await createApp(server);
  const accepting = await startSubscriber(t);
  await subscribe(healthy, { url: accepting.url });
  await publish(publisher, healthy.account, range(300));
  await accepting.waitFor(300);
  assert.ok(counted.most <= 2 * window, `${counted.most} requests at once`);
});

test('an IPv6 address counts by its /64, an IPv4 address alone', () => {
  assert.equal(addressKey('2606:4700:1:2:3:4:5:6', '443'), '2606:4700:1:2');
  assert.equal(addressKey('2606:4700::5', '443'), '2606:4700:0:0');
  assert.equal(addressKey('93.184.215.14', '443'), '93.184.215.14');
});
