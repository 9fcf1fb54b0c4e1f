/**
 * `npx node bench/long_work.ts <work> [seconds]`: the effect of long work for one account on the deliveries of another. A healthy
 * subscription receives 10 events a second, alone and beside the work: `missing`, `resend` (recoveries of a lane with a million
 * deliveries), `client-delete` (an app with 20,000 subscriptions), `grant-withdraw` (a grant with 1,000). Goal: a p50 of at most 250 ms.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { createAccount } from '../src/accounts/account.ts';
import { newId } from '../src/crypto/ids.ts';
import { createGrant, endClient, withdrawGrant } from '../src/grants/grant.ts';
import { createTestClient, mintAccessToken } from '../test/support/clients/oauth.ts';
import { describeLatency, measureSteady } from './deliveries/steady.ts';
import {
  addSubscription,
  type Bench,
  eventBody,
  type GrantPlace,
  openBench,
  publishEvents,
  startNuncio,
  startSubscriber,
} from './deliveries/support.ts';

const perSecond = 10;
const scopes = ['read:posts', 'read:webhooks', 'write:webhooks'];
const deliveries = 1_000_000;
/** Events from before the subscription, which a recovery adds. */
const earlyEvents = 20_000;
const days = 40;

interface Prepared {
  /** An account that the work is for. It receives one event a second meanwhile. */
  account?: string;
  run: () => Promise<unknown>;
}

type Work = (bench: Bench, url: string) => Promise<Prepared>;

const works: Record<string, Work> = {
  /** A recovery of events from before the subscription. All deliveries are of today. */
  async missing(bench, url) {
    const place = await createPlace(bench);
    await insertEvents(bench, place.accountId, earlyEvents, 1);
    await sql`update events set created_at = created_at - interval '1 minute'`.execute(bench.db);
    await sql`update grants set created_at = created_at - interval '9 days'`.execute(bench.db);
    const lane = await subscribe(bench, place, url);
    await fillLane(bench, lane, place.accountId, 1);
    return { account: place.accountId, run: () => recover(bench, lane, place, ['missing']) };
  },
  /** A recovery of failed deliveries, with a thousand failed ones. The deliveries are of 40 days. */
  async resend(bench, url) {
    const place = await createPlace(bench);
    const lane = await subscribe(bench, place, url);
    await fillLane(bench, lane, place.accountId, days);
    await sql`
      insert into retries (lane, sequence, day, state, attempts)
      select lane, sequence, day, 'failed', 3 from deliveries where lane = ${lane} and sequence % 1000 = 0`.execute(
      bench.db,
    );
    return { account: place.accountId, run: () => recover(bench, lane, place, ['failed', 'held']) };
  },
  async 'client-delete'(bench, url) {
    const { id: clientId } = await createTestClient(bench, { scopes });
    const places: GrantPlace[] = [];
    for (let index = 0; index < 20; index += 1) places.push(await createPlace(bench, clientId));
    for (const place of places) await subscribeMany(bench, place, 1_000, url);
    return { run: () => endClient(bench.db, clientId) };
  },
  async 'grant-withdraw'(bench, url) {
    const place = await createPlace(bench);
    await subscribeMany(bench, place, 1_000, url);
    return { run: () => withdrawGrant(bench.db, place.grantId, 'user') };
  },
};

async function createPlace(bench: Bench, clientId?: string): Promise<GrantPlace> {
  const client = clientId ?? (await createTestClient(bench, { scopes })).id;
  const { id: accountId } = await createAccount(bench.db, {
    email: `${newId()}@example.com`,
    password: null,
  });
  const grantId = await createGrant(bench.db, { accountId, clientId: client, scopes });
  return { accountId, clientId: client, grantId };
}

/** @returns the lane */
async function subscribe(bench: Bench, place: GrantPlace, url: string): Promise<number> {
  await addSubscription(bench, place, url);
  const { rows } = await sql<{ lane: string }>`
    select lane from subscriptions where grant_id = ${place.grantId}`.execute(bench.db);
  return Number(rows[0]?.lane);
}

async function subscribeMany(bench: Bench, place: GrantPlace, count: number, url: string): Promise<void> {
  for (let added = 0; added < count; added += 8) {
    await Promise.all(Array.from({ length: 8 }, () => addSubscription(bench, place, url)));
  }
}

/** Inserts events of the last days. */
async function insertEvents(bench: Bench, account: string, count: number, ofDays: number): Promise<void> {
  await sql`
    select ensure_day_partition(parent, (now() at time zone 'utc')::date - ago)
    from unnest(array['events', 'deliveries', 'attempts']) as parent, generate_series(0, ${ofDays}::int) as ago`.execute(
    bench.db,
  );
  await sql`
    insert into events (day, id, account_id, kind, body, created_at)
    select (now() at time zone 'utc')::date - ago, gen_random_uuid()::text, ${account}, 'push', '{}', now() - ago * interval '1 day'
    from (
      select ${ofDays}::int - 1 - (number - 1) * ${ofDays}::int / ${count}::int as ago
      from generate_series(1, ${count}::int) as number
    ) as each`.execute(bench.db);
}

/** A million deliveries that succeeded, each with an attempt. */
async function fillLane(bench: Bench, lane: number, account: string, ofDays: number): Promise<void> {
  for (let part = 0; part < 4; part += 1) await insertEvents(bench, account, deliveries / 4, ofDays);
  await bench.db.connection().execute(async (db) => {
    await sql`set statement_timeout = 0`.execute(db);
    await sql`
      insert into deliveries (day, lane, sequence, event, created_at)
      select day, ${lane}, row_number() over (order by position), position, created_at from events
      where position > (select created_position from subscriptions where lane = ${lane}) and account_id = ${account}`.execute(
      db,
    );
    await sql`
      insert into attempts (day, lane, sequence, started_at, number, trigger, status, truncated, revision, duration_ms)
      select day, lane, sequence, created_at, 1, 's', 200, false, 1, 10 from deliveries`.execute(db);
    await sql`update lanes set next_sequence = ${deliveries + 1} where id = ${lane}`.execute(db);
    await sql`update lane_progress set cursor = ${deliveries}, owner = null, due_at = null where lane = ${lane}`.execute(
      db,
    );
    await sql`analyze`.execute(db);
    await sql`reset statement_timeout`.execute(db);
  });
}

async function recover(bench: Bench, lane: number, place: GrantPlace, states: string[]): Promise<void> {
  const id = newId();
  await sql`
    insert into recoveries (id, lane, turn, since, until, states, missing_day)
    values (${id}, ${lane}, ${place.accountId}, now() - interval '50 days', now(), ${states}::text[],
      ${states.includes('missing') ? sql`(now() at time zone 'utc')::date` : sql`null`}::date)`.execute(
    bench.db,
  );
  if (states.includes('missing')) {
    await sql`update recoveries set phase = 'missing' where id = ${id}`.execute(bench.db);
  }
  for (;;) {
    const { rows } = await sql<{ state: string; added: string; resent: string }>`
      select state, added, resent from recoveries where id = ${id}`.execute(bench.db);
    if (rows[0]?.state === 'done') {
      console.log(`recovery: added ${rows[0].added}, resent ${rows[0].resent}`);
      return;
    }
    await sleep(50);
  }
}

const [name = '', secondsText = '20'] = process.argv.slice(2);
const prepare = works[name];
if (prepare === undefined) throw new Error(`no such work: ${name}`);
const [subscriber, others] = [await startSubscriber(), await startSubscriber()];
const bench = await openBench();
const server = await startNuncio(bench);
try {
  const { account, run } = await prepare(bench, `http://127.0.0.1:${others.ports.accept}/hooks`);
  const client = await createTestClient(bench, { scopes: ['write:events'] });
  const { accessToken } = await mintAccessToken(bench, { client, scopes: ['write:events'] });
  const healthy = await createPlace(bench);
  await addSubscription(bench, healthy, `http://127.0.0.1:${subscriber.ports.accept}/hooks`);
  let busyUntil = 0;
  const measure = (seconds: number) =>
    measureSteady(subscriber, perSecond, seconds, async (marks) => {
      const events = marks.map((mark) => ({
        kind: 'push',
        account: healthy.accountId,
        body: eventBody(mark),
      }));
      if (account !== undefined && performance.now() > busyUntil) {
        busyUntil = performance.now() + 1_000;
        events.push({ kind: 'push', account, body: eventBody('busy') });
      }
      await publishEvents(bench, accessToken, events);
    });
  await measure(5);
  console.log(`${name}: alone ${describeLatency(await measure(Number(secondsText)))}`);
  const begunAt = performance.now();
  const working = run().then(() =>
    console.log(`${name}: the work took ${((performance.now() - begunAt) / 1_000).toFixed(1)} s`),
  );
  console.log(`${name}: beside ${describeLatency(await measure(Number(secondsText)))}`);
  // It may take hours.
  await Promise.race([working, sleep(Number(secondsText) * 1_000)]);
} finally {
  server.child.kill('SIGKILL');
  subscriber.stop();
  others.stop();
  await sleep(200);
  await bench.close();
}
process.exit();
