/**
 * Windows: whatever other tenants do, a delivery finds a place. In the end-to-end tests hostile receivers respond only when the test
 * is over, so a stranger's delivery that waits for one of them never arrives.
 */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { reserveOf } from '../../../src/shared/share.ts';
import { TokenBucket } from '../../../src/shared/token_bucket.ts';
import { DeliveryMemory, Tenant } from '../../../src/webhooks/lanes/delivery_memory.ts';
import { Host } from '../../../src/webhooks/lanes/destination.ts';
import type { Lane } from '../../../src/webhooks/lanes/lane.ts';
import { Window } from '../../../src/webhooks/lanes/window.ts';
import { type Places, Windows } from '../../../src/webhooks/lanes/windows.ts';
import { defaultQuotas } from '../../../src/webhooks/subscriptions/quotas.ts';
import { requester } from '../../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { startTestServer, type TestServer } from '../../support/servers/server.ts';
import {
  type App,
  appScopes,
  createApp,
  createPublisher,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { startSubscriber } from '../../support/webhooks/subscriber.ts';

const range = (count: number) => Array.from({ length: count }, (_, index) => index);

/** A repeatable source of numbers below `limit` (Lehmer's generator). */
function dice(seed: number): (limit: number) => number {
  let state = seed;
  return (limit) => {
    state = (state * 48_271) % 2_147_483_647;
    return state % limit;
  };
}

const memory = new DeliveryMemory();
const applicant = (name: string, isProven: boolean) =>
  ({ tenant: new Tenant(name, memory), isProven }) as Lane;

test('failures of one account leave a known host what deliveries of others have added', () => {
  const quotas = { unknown: 4, known: 512, unknownRate: 5, knownRate: null };
  const host = new Host(quotas, 0);
  for (const _accepted of range(50)) host.acceptOf('proven', 0);
  for (const _round of range(20)) {
    host.acceptOf('failing', 0);
    for (const _failed of range(31)) host.fail('failing', true, 0);
  }
  assert.equal(host.window.size, 8 + 50);
  for (const _failed of range(60)) host.fail('proven', true, 0);
  assert.equal(host.window.size, 8);
});

test('a newcomer finds a place beside as many tenants as the reserve has places', () => {
  for (const seed of range(300)) {
    const roll = dice(seed + 1);
    const unprovenSize = 2 + roll(80);
    const window = new Window(2 * unprovenSize, unprovenSize);
    // Each of them takes and frees places as it likes, with proven lanes and with others.
    const others = range(1 + roll(reserveOf(unprovenSize))).flatMap((index) => {
      const { tenant } = applicant(`other ${index}`, true);
      return [true, false].map((isProven) => ({ tenant, isProven }) as Lane);
    });
    const inFlight: Lane[] = [];
    for (const _step of range(500)) {
      const other = others[roll(others.length)] as Lane;
      if (roll(4) > 0 && window.admits(other, 0)) {
        window.take(other);
        inFlight.push(other);
      } else if (inFlight.length > 0 && roll(4) === 0) {
        window.release(inFlight.splice(roll(inFlight.length), 1)[0] as Lane);
      }
      for (const isProven of [true, false]) {
        const finds = window.admits(applicant('newcomer', isProven), 0);
        assert.ok(finds, `seed ${seed}: ${window.inFlight} of ${window.size} in flight`);
      }
      assert.ok(window.inFlight <= window.size);
    }
  }
});

test('a tenant that waits for a full window gets a place in its turn, whoever had it', () => {
  const window = new Window(8, 4);
  const others = range(4).map((index) => applicant(`other ${index}`, false));
  const newcomer = applicant('newcomer', false);
  const laneOf = ({ tenant }: Lane) => ({ tenant, isProven: false }) as Lane;
  for (const other of others) {
    assert.ok(window.admits(other, 0));
    window.take(other);
    for (const _lane of range(10)) window.wait(laneOf(other));
  }
  window.wait(newcomer);
  window.offer(0, Number.POSITIVE_INFINITY, () => assert.fail('it is full'));
  const inFlight = [...others];
  const offered: Lane[] = [];
  // Each of the others has a turn before it.
  for (const _turn of range(others.length + 1)) {
    window.release(inFlight.shift() as Lane);
    window.offer(0, 1, (lane) => offered.push(lane));
    window.take(offered.at(-1) as Lane);
    inFlight.push(offered.at(-1) as Lane);
  }
  assert.ok(offered.includes(newcomer));
});

test('n tenants with a backlog have 1/(n + 1) of a window each, and leave as much', () => {
  for (const seed of range(60)) {
    const roll = dice(seed + 1);
    const window = new Window(40 + roll(200), 0);
    const tenants = range(1 + roll(6)).map((index) => applicant(`tenant ${index}`, true));
    const inFlight: Lane[] = [];
    const steps = 20_000;
    let sum = 0;
    for (const _step of range(steps)) {
      // Each takes all that it can, then one attempt ends.
      for (const one of tenants) {
        while (window.admits(one, 0)) {
          window.take(one);
          inFlight.push(one);
        }
      }
      window.release(inFlight.splice(roll(inFlight.length), 1)[0] as Lane);
      sum += window.inFlightOf((tenants[0] as Lane).tenant);
    }
    const share = window.size / (tenants.length + 1);
    assert.ok(
      sum / steps <= 1.2 * share + 1,
      `${sum / steps} of ${window.size} beside ${tenants.length - 1}`,
    );
  }
});

test('proven lanes find a place beside any number of unproven tenants', () => {
  const window = new Window(16, 8);
  for (const index of range(1_000)) {
    const hanging = applicant(`hanging ${index}`, false);
    while (window.admits(hanging, 0)) window.take(hanging);
  }
  assert.equal(window.inFlight, 8);
  const proven = applicant('proven', true);
  assert.ok(window.admits(proven, 0));
});

test('a lane waits for a rate for at most four turns of each other tenant', () => {
  const perSecond = 10;
  const tickMs = 25;
  for (const seed of range(50)) {
    const roll = dice(seed + 1);
    const window = new Window(10_000, 10_000, new TokenBucket(perSecond, 4, 0));
    const others = range(1 + roll(8)).map((index) => new Tenant(`other ${index}`, memory));
    for (const tenant of others)
      for (const _lane of range(200)) window.wait({ tenant, isProven: roll(2) === 0 } as Lane);
    let now = 0;
    const offered: Lane[] = [];
    const step = () => {
      now += tickMs;
      window.requeueAll();
      window.offer(now, Number.POSITIVE_INFINITY, (lane) => {
        window.take(lane);
        offered.push(lane);
      });
    };
    // Beyond their head starts.
    for (const _step of range(1 + roll(400))) step();
    const stranger = applicant('stranger', roll(2) === 0);
    window.wait(stranger);
    const startedAt = now;
    while (!offered.includes(stranger)) step();
    const boundMs = (4 * (others.length + 1) * 1_000) / perSecond + tickMs;
    assert.ok(now - startedAt <= boundMs, `${now - startedAt} ms with ${others.length} others`);
  }
});

/** A lane of a user. It has only the members that the windows of its host read: a whole one needs a subscription and its rights. */
function laneTo(host: string, tenant: string, isProven: boolean): Lane {
  const template = { origin: `https://${host}` };
  const members = { subscription: { clientId: null }, template, pausedUntil: 0 };
  return { ...applicant(tenant, isProven), ...members } as unknown as Lane;
}

test('accounts that fail at an unknown host pause it for themselves, and for nobody else', () => {
  const laneOf = (name: string) => laneTo('shared.example', name, false);
  const windows = new Windows(defaultQuotas, () => {});
  const failing = range(100).map((index) => laneOf(`failing ${index}`));
  let now = 0;
  for (const lane of failing) {
    for (const _attempt of range(20)) {
      const places = windows.enter(lane, now);
      if (places !== null) windows.leave(places, false, now);
      // Within the rate of the host.
      now += 250;
    }
  }
  assert.equal(windows.enter(failing.at(-1) as Lane, now), null);
  assert.notEqual(windows.enter(laneOf('stranger'), now), null);
});

test('few attempts with large bodies are in flight, and leave places to small ones and to newcomers', () => {
  const windows = new Windows(defaultQuotas, () => {});
  const tenants = range(40).map((index) => new Tenant(`account ${index}`, memory));
  let now = 0;
  /** Lets forty accounts start what they may, each attempt at a host of its own. @returns how many that is */
  const startAll = (round: number, isLarge: boolean): number => {
    // Attempts that have just started have a limit of their own.
    now += 1_100;
    windows.tick(now);
    const lanes = range(1_000).map((index) => {
      const lane = laneTo(`${index}.${round}.example`, '', true);
      return Object.assign(lane, { tenant: tenants[index % tenants.length] });
    });
    return lanes.filter((lane) => windows.enter(lane, now, isLarge) !== null).length;
  };
  const large = range(10).reduce((sum, round) => sum + startAll(round, true), 0);
  assert.ok(large > 256 && large <= 512 - reserveOf(512), `${large} in flight`);
  assert.equal(windows.inFlight, large);
  assert.ok(startAll(10, false) > 256);
  assert.notEqual(windows.enter(laneTo('new.example', 'newcomer', false), now, true), null);
});

test('idle addresses are forgotten after a minute if there are very many, also those of one host', () => {
  const windows = new Windows(defaultQuotas, () => {});
  const lane = laneTo('one.example', 'lane', true);
  let now = performance.now();
  /** Whether the address is known when an attempt comes to it, which is then accepted. */
  const isKnown = (address: string): boolean => {
    now += 1;
    const places = windows.enter(lane, now) as Places;
    assert.ok(places.admit(address));
    const { keepsConnection } = places;
    windows.leave(places, true, now);
    return keepsConnection;
  };
  assert.equal(isKnown('first'), false);
  assert.equal(isKnown('first'), true);
  now += 120_000;
  windows.tick(now);
  assert.equal(isKnown('first'), true);
  for (const index of range(50_001)) isKnown(`other ${index}`);
  now += 120_000;
  windows.tick(now);
  assert.equal(isKnown('first'), false);
});

/** Resolves when the test is over. Call it before the server starts: hanging attempts would delay the end of the server. */
function untilEnd(t: TestContext): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  t.after(async () => resolve());
  return promise;
}

/** Two users of one app. */
async function createUsers(server: TestServer): Promise<[App, App]> {
  const client = await createTestClient(server, { scopes: appScopes });
  const [first, second] = await Promise.all(
    range(2).map(async () => {
      const account = await createTestAccount(server);
      const { accessToken, grantId } = await mintAccessToken(server, { account, client, scopes: appScopes });
      const request = requester(server, accessToken);
      return { account, clientId: client.id, grantId: grantId as string, accessToken, request };
    }),
  );
  return [first as App, second as App];
}

async function attemptsOf({ db }: TestServer, { account }: App): Promise<{ error: string | null }[]> {
  const { rows } = await sql<{ error: string | null }>`
    select a.error from attempts a join subscriptions s on s.lane = a.lane
    where s.account_id = ${account.id}`.execute(db);
  return rows;
}

test('an account with many hanging hosts takes nothing from another account of its app', async (t) => {
  const ended = untilEnd(t);
  const server = await startTestServer(t);
  const publisher = await createPublisher(server);
  const [hostile, stranger] = await createUsers(server);
  // In development each port of this machine counts as an address of its own.
  const hanging = await Promise.all(
    range(100).map(() =>
      startSubscriber(t, (_received, response) => void ended.then(() => response.destroy())),
    ),
  );
  const healthy = await startSubscriber(t);
  for (const { url } of hanging) await subscribe(hostile, { url });
  await subscribe(stranger, { url: healthy.url });
  await publish(publisher, hostile.account, range(10));
  const count = () => hanging.reduce((sum, { received }) => sum + received.length, 0);
  await until(
    async () => count(),
    (sum) => sum >= 20,
  );
  for (const mark of range(30)) {
    await publish(publisher, stranger.account, [mark]);
    await healthy.waitFor(mark + 1);
    // The stranger waited for no hanging attempt to end.
    if (mark === 0) assert.deepEqual(await attemptsOf(server, hostile), []);
  }
  assert.ok((await attemptsOf(server, stranger)).every(({ error }) => error === null));
});

test('hanging names at an address leave room for others, and what waits is no attempt', async (t) => {
  const ended = untilEnd(t);
  const resolveHost = async () => ['127.0.0.1'];
  const server = await startTestServer(t, {}, 'dev', undefined, { resolveHost }, 'here');
  const publisher = await createPublisher(server);
  const subscriber = await startSubscriber(t, async ({ path }, response) => {
    if (path === '/hanging') await ended;
    response.writeHead(204).end();
  });
  const [hostile, stranger] = [await createApp(server), await createApp(server)];
  for (const index of range(60)) {
    await subscribe(hostile, { url: `http://name-${index}.example:${subscriber.port}/hanging` });
  }
  await subscribe(stranger, { url: `http://stranger.example:${subscriber.port}/healthy` });
  await publish(publisher, hostile.account, [1]);
  await subscriber.waitFor(4);
  const healthy = () => subscriber.received.filter(({ path }) => path === '/healthy').length;
  for (const mark of range(30)) {
    await publish(publisher, stranger.account, [mark]);
    while (healthy() <= mark) await subscriber.waitFor(subscriber.received.length + 1);
    if (mark === 0) assert.deepEqual(await attemptsOf(server, hostile), []);
  }
  const errors = (await attemptsOf(server, stranger)).map(({ error }) => error);
  assert.ok(errors.length > 0 && errors.every((error) => error === null), `${errors}`);
  // None of them has ended: those that wait for the address have not begun.
  const waiting = await attemptsOf(server, hostile);
  const sent = subscriber.received.length - healthy();
  assert.ok(waiting.length <= sent, `${waiting.length} attempts recorded, ${sent} sent`);
});
