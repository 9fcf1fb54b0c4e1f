/**
 * `npx node bench/deliveries.ts strangers [seconds] [troubles…]`: the effect of other tenants' problems on a healthy
 * subscription, from the first moment. One subscription receives 100 events a second, one event per request, alone
 * and beside each problem: `hanging`, `many`, `limited`, `readers`, `paused`, `dead`, `dump`. Goal: a p99 of at most
 * 1.5 times that alone, and no delivery later than a second (10 s for the paused leader).
 */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { sql } from 'kysely';
import { createAccount } from '../../src/accounts/account.ts';
import { newId } from '../../src/crypto/ids.ts';
import { openDatabase } from '../../src/database/database.ts';
import { createGrant } from '../../src/grants/grant.ts';
import { applyRetention } from '../../src/webhooks/log/retention.ts';
import { createTestClient, mintAccessToken } from '../../test/support/clients/oauth.ts';
import { freePort } from '../../test/support/servers/server.ts';
import { describeLatency, type Latency, measureSteady } from './steady.ts';
import {
  addSubscription,
  type Bench,
  type BenchSubscriber,
  eventBody,
  type GrantPlace,
  openBench,
  publishEvents,
  startNuncio,
  startSubscriber,
} from './support.ts';

const perSecond = 100;
const warmSeconds = 8;
const subscribedAtOnce = 8;
const scopes = ['read:posts', 'read:webhooks', 'write:webhooks'];

interface Scene {
  bench: Bench;
  /** The other tenants' subscriber, separate from the healthy one. */
  others: BenchSubscriber;
  publisherToken: string;
}

/** Starts a problem. @returns a function that ends it */
type Trouble = (scene: Scene) => Promise<() => Promise<void>>;

/** Problems that are prepared before the measurement: each function returns one that starts the problem. */
const troubles: Record<string, (scene: Scene) => Promise<Trouble>> = {
  /** 1,000 hanging subscriptions of one user, with five events of 64 kB each. */
  async hanging({ bench, others }) {
    const [place] = await strangers(bench, 1);
    await subscribeAll(bench, place as GrantPlace, 1_000, `http://127.0.0.1:${others.ports.hang}/hooks`);
    return async ({ publisherToken }) => {
      const commits = [{ id: '9c1185a5c5e9fc54612808977ee8f548b2258d31', message: 'x'.repeat(64_000) }];
      const body = { ...eventBody('large'), commits };
      const event = { kind: 'push', account: place?.accountId, body };
      for (let count = 0; count < 5; count += 1) await publishEvents(bench, publisherToken, [event]);
      return () => endSubscriptions(bench, [place as GrantPlace]);
    };
  },
  /** 10,000 subscriptions of one app. One of its users has 1,000 of them and publishes seven events a second. */
  async many({ bench, others }) {
    const places = await strangers(bench, 10);
    for (const place of places) {
      await subscribeAll(bench, place, 1_000, `http://127.0.0.1:${others.ports.accept}/hooks`);
    }
    return async ({ publisherToken }) => {
      const account = places[0]?.accountId;
      const timer = setInterval(() => {
        publishEvents(bench, publisherToken, [{ kind: 'push', account, body: eventBody('many') }]).catch(
          () => {},
        );
      }, 1_000 / 7);
      return async () => {
        clearInterval(timer);
        await endSubscriptions(bench, places);
      };
    };
  },
  /** 20,000 subscriptions of 20 users with a rate limit of one delivery a second, each with a backlog of ten. */
  async limited({ bench, others }) {
    const places = await strangers(bench, 20);
    for (const place of places) {
      const url = `http://127.0.0.1:${others.ports.accept}/hooks`;
      await subscribeAll(bench, place, 1_000, url, { rateLimit: 1 });
    }
    return async ({ publisherToken }) => {
      const events = places.flatMap(({ accountId }) =>
        Array.from({ length: 10 }, () => ({ kind: 'push', account: accountId, body: eventBody('limited') })),
      );
      await publishEvents(bench, publisherToken, events);
      return () => endSubscriptions(bench, places);
    };
  },
  /** 24 clients read a log of 60,000 deliveries without a pause. */
  async readers({ bench, others, publisherToken }) {
    const [place] = await strangers(bench, 1);
    const { accountId, clientId, grantId } = place as GrantPlace;
    await subscribeAll(bench, place as GrantPlace, 1, `http://127.0.0.1:${others.ports.accept}/hooks`);
    for (let count = 0; count < 60; count += 1) {
      const events = Array.from({ length: 1_000 }, () => ({
        kind: 'push',
        account: accountId,
        body: eventBody('log'),
      }));
      await publishEvents(bench, publisherToken, events);
    }
    const account = { id: accountId };
    const { accessToken } = await mintAccessToken(bench, {
      account,
      client: { id: clientId },
      scopes,
      grantId,
    });
    const headers = { authorization: `Bearer ${accessToken}` };
    const list = await fetch(`${bench.baseUrl}/subscriptions`, { headers });
    const { items } = (await list.json()) as { items: { id: string }[] };
    const url = `${bench.baseUrl}/subscriptions/${items[0]?.id}/deliveries?status=failed`;
    return async () => {
      const readers = fork(fileURLToPath(new URL('./readers.ts', import.meta.url)), [url, accessToken, '24']);
      return async () => {
        readers.disconnect();
        await once(readers, 'exit');
        await endSubscriptions(bench, [place as GrantPlace]);
      };
    };
  },
  /** A second server, the leader of the fan-out, is suspended. */
  async paused({ bench }) {
    const other = await startNuncio(bench, [], { port: String(await freePort()) });
    return async () => {
      other.child.kill('SIGSTOP');
      return async () => {
        other.child.kill('SIGCONT');
        await other.stop();
      };
    };
  },
  /** A second server is killed. */
  async dead({ bench }) {
    const other = await startNuncio(bench, [], { port: String(await freePort()) });
    return async () => {
      other.child.kill('SIGKILL');
      return async () => {};
    };
  },
  /** A backup reads every table while the partitions of the next day are made. */
  async dump({ bench }) {
    return async () => {
      const db = openDatabase({ connectionString: bench.databaseUrl, connectionsMax: 2 });
      const { rows } = await sql<{ name: string }>`
        select quote_ident(tablename) as name from pg_tables where schemaname = current_schema()`.execute(db);
      let end = () => {};
      const backup = db.transaction().execute(async (tx) => {
        const names = rows.map(({ name }) => name).join(', ');
        await sql.raw(`lock table ${names} in access share mode`).execute(tx);
        await new Promise<void>((resolve) => {
          end = resolve;
        });
      });
      const partitions = applyRetention(db).catch(() => {});
      return async () => {
        end();
        await backup;
        await partitions;
        await db.destroy();
      };
    };
  },
};

export async function measureStrangers([secondsText = '8', ...names]: string[]): Promise<void> {
  const seconds = Number(secondsText);
  for (const name of names.length > 0 ? names : Object.keys(troubles)) {
    const ready = troubles[name];
    if (ready === undefined) throw new Error(`no such trouble: ${name}`);
    const [subscriber, others] = [await startSubscriber(), await startSubscriber()];
    const bench = await openBench();
    const isFirst = name === 'paused' || name === 'dead';
    const server = isFirst ? undefined : await startNuncio(bench);
    const client = await createTestClient(bench, { scopes: ['write:events'] });
    const make = async () => {
      const { accessToken } = await mintAccessToken(bench, { client, scopes: ['write:events'] });
      return { bench, others, publisherToken: accessToken };
    };
    // The other server starts first, so that it becomes the leader.
    const early = isFirst ? await ready({ bench, others, publisherToken: '' }) : undefined;
    const running = server ?? (await startNuncio(bench));
    try {
      const scene = await make();
      const [healthy] = await strangers(bench, 1);
      const url = `http://127.0.0.1:${subscriber.ports.accept}/hooks`;
      await addSubscription(bench, healthy as GrantPlace, url);
      const measure = (some: number) =>
        measureSteady(subscriber, perSecond, some, async (marks) => {
          for (const mark of marks) {
            const event = { kind: 'push', account: healthy?.accountId, body: eventBody(mark) };
            await publishEvents(bench, scene.publisherToken, [event]);
          }
        });
      const begin = early ?? (await ready(scene));
      await measure(warmSeconds);
      const alone = await measure(seconds);
      const end = await begin(scene);
      const beside = await measure(seconds);
      await end();
      print(name, alone, beside);
    } finally {
      running.child.kill('SIGKILL');
      subscriber.stop();
      others.stop();
      await sleep(200);
      await bench.close();
    }
  }
}

function print(name: string, alone: Latency, beside: Latency): void {
  console.log(`${name}: alone ${describeLatency(alone)}`);
  console.log(
    `${name}: beside ${describeLatency(beside)}; p99 is ${(beside.p99 / alone.p99).toFixed(2)} of that alone`,
  );
}

/** Creates users who each granted the same app. */
async function strangers(bench: Bench, count: number): Promise<GrantPlace[]> {
  const { id: clientId } = await createTestClient(bench, { scopes });
  const places: GrantPlace[] = [];
  for (let index = 0; index < count; index += 1) {
    const { id: accountId } = await createAccount(bench.db, {
      email: `${newId()}@example.com`,
      password: null,
    });
    places.push({
      accountId,
      clientId,
      grantId: await createGrant(bench.db, { accountId, clientId, scopes }),
    });
  }
  return places;
}

async function subscribeAll(
  bench: Bench,
  place: GrantPlace,
  count: number,
  url: string,
  fields: { rateLimit?: number } = {},
): Promise<void> {
  for (let added = 0; added < count; added += subscribedAtOnce) {
    const size = Math.min(subscribedAtOnce, count - added);
    await Promise.all(Array.from({ length: size }, () => addSubscription(bench, place, url, fields)));
  }
}

async function endSubscriptions(bench: Bench, places: readonly GrantPlace[]): Promise<void> {
  await sql`
    update subscriptions set state = 'ended', ended_at = now()
    where account_id = any(${places.map(({ accountId }) => accountId)}::uuid[])`.execute(bench.db);
}
