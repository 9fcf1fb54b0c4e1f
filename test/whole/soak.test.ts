/**
 * The fault test, from a seed: random publishing and withdrawals; subscribers that are slow, refuse, reset, never
 * end, fail and respond 410; `kill -9` of the server, of PostgreSQL's postmaster and of a backend; connections that
 * are cut or frozen. Afterwards, every accepted event has been delivered at least once to exactly the subscriptions
 * that were allowed to receive it, with one sequence each. Sequences have no gap, and nothing was started after a
 * withdrawal.
 *
 * A normal test run keeps it short; `npm run soak` runs it for minutes. `SOAK_SEED` repeats a run.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { loadConfig } from '../../src/config/config.ts';
import { type Database, openDatabase } from '../../src/database/database.ts';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { type ApiResponse, requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { startDatabaseProxy } from '../support/database/database_proxy.ts';
import { atEnd, newDataDir, start } from '../support/database/embedded_process.ts';
import { type FaultName, startWithFaults } from '../support/servers/faults.ts';
import { freePort, testSecret } from '../support/servers/server.ts';
import { createRandom } from '../support/values/random.ts';
import {
  type App,
  appScopes,
  createApp,
  pushBody,
  type Request,
  subscribe,
} from '../support/webhooks/apps.ts';
import { insist, startFaultySubscriber } from '../support/webhooks/faulty_subscriber.ts';

const seconds = Number(process.env.SOAK_SECONDS ?? 20);
const seed = Number(process.env.SOAK_SEED ?? Date.now() % 1_000_000);
/** How long an attempt that started before a withdrawal may take to arrive. */
const onItsWayMs = 500;
/** How long to wait without progress before missing deliveries count as lost. A circuit pauses for at most one minute. */
const patienceMs = 90_000;

interface Member {
  path: string;
  request: Request;
  /** Null for a subscription of the client itself. */
  app: App | null;
  subscriptionId: string;
  /** Marks of events accepted while the subscription was allowed to receive them. */
  expected: Set<string>;
  /** Marks of events that may or may not arrive: published or still waiting when the grant ended. */
  possible: Set<string>;
  withdrawnAt: number | null;
}

/** Describes the lanes in the database, for diagnosing missing deliveries. */
async function describeLanes(db: Database, missing: number, members: readonly Member[]) {
  const { rows } = await sql`
    select s.id, s.state, s.disabled_reason, s.ordered, p.*, to_jsonb(l) as tail, newest_sequence(l) as newest,
      (select json_object_agg(state, count) from (
        select state, count(*) as count from retries r where r.lane = s.lane group by state) as r) as retries,
      (select json_agg(row_to_json(r)) from recoveries r where r.lane = s.lane and r.state = 'running') as recoveries,
      (select json_agg(row_to_json(h)) from held_ranges h where h.lane = s.lane) as held
    from subscriptions s join lane_progress p on p.lane = s.lane join lanes l on l.id = s.lane
    where s.id = any(${members.map(({ subscriptionId }) => subscriptionId)}::uuid[])`.execute(db);
  return { missing, rows };
}

test(`webhooks 62: random faults lose no event and deliver to nobody else (seed ${seed})`, async (t) => {
  t.diagnostic(`SOAK_SEED=${seed} SOAK_SECONDS=${seconds}`);
  const dataDir = newDataDir(t);
  const { connectionString } = await start(dataDir, 'server');
  const proxy = await startDatabaseProxy(connectionString);
  atEnd(t, () => proxy.close());
  const db = openDatabase({ connectionString, connectionsMax: 4, onIdleError: () => {} });
  atEnd(t, () => db.destroy());
  const settings = {
    PORT: String(await freePort()),
    DATABASE_URL: proxy.url,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    NUNCIO_RATE_LIMIT: '0',
    NUNCIO_RETRY_SCHEDULE: Array(20).fill('1s').join(','),
    LOG_LEVEL: 'fatal',
  };
  const config = loadConfig(settings, 'start');
  const server = { db, config, baseUrl: config.baseUrl };
  const subscriber = await startFaultySubscriber(t, createRandom(seed + 1));
  const faults = await startWithFaults(t, { dataDir, databaseUrl: connectionString, proxy, settings });
  const beganAt = new Date().toISOString();

  const machine = await createTestClient(server, { scopes: ['write:events'] });
  const { accessToken } = await mintAccessToken(server, { client: machine, scopes: ['write:events'] });
  const publisher = requester(server, accessToken);
  const everybody = await createTestClient(server, {
    scopes: ['read:posts', 'read:webhooks', 'write:webhooks'],
    maySubscribe: true,
  });
  const forAll = await mintAccessToken(server, { client: everybody, scopes: everybody.scopes });
  const newMember = (path: string, request: Request, app: App | null, subscriptionId: string): Member => ({
    path,
    request,
    app,
    subscriptionId,
    expected: new Set(),
    possible: new Set(),
    withdrawnAt: null,
  });
  const all = requester(server, forAll.accessToken);
  const { id: allId } = await subscribe({ request: all }, { url: `${subscriber.url}/all`, kinds: ['push'] });
  const hub = newMember('/all', all, null, allId);
  const members: Member[] = [];
  let paths = 0;
  /**
   * Creates a user with an app that receives pushes, an app that may not read them, and a grant for the client that
   * receives all events.
   */
  const join = (random: () => number) =>
    insist(async () => {
      paths += 1;
      // Each try uses a new path, because the result of a failed try is unknown.
      const path = `/${paths}`;
      const account = await createTestAccount(server, { email: `soak-${paths}@example.com` });
      const app = await createApp(server, { account });
      const blind = await createApp(server, {
        account,
        scopes: appScopes.filter((scope) => scope !== 'read:posts'),
      });
      await subscribe(blind, { url: `${subscriber.url}/blind` });
      const url = subscriber.url + path;
      const { id } = await subscribe(app, { url, kinds: ['push'], ordered: random() < 0.3 });
      await mintAccessToken(server, { account, client: everybody, scopes: ['read:posts'] });
      members.push(newMember(path, app.request, app, id));
    });
  const setUp = createRandom(seed);
  for (let count = 0; count < 6; count++) await join(setUp);

  let mark = 0;
  const end = Date.now() + seconds * 1_000;
  const publishAll = async (random: () => number) => {
    while (Date.now() < end) {
      const events: Record<string, unknown>[] = [];
      const marks: [Member, string][] = [];
      for (let count = Math.ceil(random() * 50); count > 0; count--) {
        const member = members[Math.floor(random() * members.length)] as Member;
        mark += 1;
        const account = member.app?.account.id;
        // A chosen id makes it safe to retry a request whose response was lost.
        events.push({ id: `soak-${mark}`, kind: 'push', account, body: pushBody(mark) });
        marks.push([member, String(mark)]);
        // The event may exist from here on. A subscription that is withdrawn later may have received it.
        if (member.withdrawnAt === null) member.possible.add(String(mark));
      }
      const accepted = await insist(async () => {
        const answer: ApiResponse = await publisher('POST', '/events', { json: events });
        if (answer.status >= 500) throw new Error(answer.text);
        return answer;
      });
      assert.equal(accepted.status, 202, accepted.text);
      for (const [member, name] of marks) {
        hub.expected.add(name);
        if (member.withdrawnAt === null) member.expected.add(name);
      }
      await sleep(random() * 250);
    }
  };
  const withdrawSome = async (random: () => number) => {
    while (Date.now() < end) {
      await sleep(500 + random() * 2_000);
      const active = members.filter(({ withdrawnAt }) => withdrawnAt === null);
      if (active.length <= 3) continue;
      const member = active[Math.floor(random() * active.length)] as Member;
      await insist(() => withdrawGrant(db, member.app?.grantId ?? '', 'user'));
      member.withdrawnAt = Date.now();
      // Deliveries not sent before the withdrawal may be missing.
      for (const name of member.expected) member.possible.add(name);
      member.expected.clear();
      await join(random);
    }
  };
  const counts: Record<string, number> = {};
  const strikeAll = async (random: () => number) => {
    const names = Object.keys(faults.strike) as FaultName[];
    // Each fault at least once, in an order determined by the seed, then at random.
    const order = names.map((name) => ({ name, by: random() })).sort((a, b) => a.by - b.by);
    while (Date.now() < end) {
      await sleep(500 + random() * Math.min(6_000, (seconds * 1_000) / 12));
      const name = order.shift()?.name ?? (names[Math.floor(random() * names.length)] as FaultName);
      counts[name] = (counts[name] ?? 0) + 1;
      await faults.strike[name](random);
    }
  };
  const jobs = new Map<Member, string>();
  /** Acts as an owner who finds a subscription disabled or deliveries failed. Runs one recovery at a time. */
  const tend = async (member: Member) => {
    const path = `/subscriptions/${member.subscriptionId}`;
    const { body } = await member.request('GET', path);
    if (body.state === 'disabled') await member.request('PATCH', path, { json: { state: 'active' } });
    const job = jobs.get(member);
    if (job !== undefined && (await member.request('GET', job)).body.state === 'running') return;
    const json = { since: beganAt, status: ['failed', 'held'] };
    const { headers } = await member.request('POST', `${path}/recover`, { json });
    jobs.set(member, headers.get('location') ?? `${path}/recoveries/none`);
  };
  const tendAll = async () => {
    while (Date.now() < end) {
      await sleep(3_000);
      for (const member of [hub, ...members].filter(({ withdrawnAt }) => withdrawnAt === null))
        await tend(member).catch(() => {});
    }
  };
  const refuseSome = async (random: () => number) => {
    while (Date.now() < end) {
      await sleep(3_000 + random() * 7_000);
      await subscriber.refuse(random() * 2_000);
    }
  };
  await Promise.all([
    publishAll(createRandom(seed + 2)),
    withdrawSome(createRandom(seed + 3)),
    strikeAll(createRandom(seed + 4)),
    refuseSome(createRandom(seed + 5)),
    tendAll(),
  ]);
  subscriber.calm();
  t.diagnostic(`${mark} events, ${members.length} subscriptions and one, ${JSON.stringify(counts)}`);

  const lasting = [hub, ...members.filter(({ withdrawnAt }) => withdrawnAt === null)];
  const missing = () =>
    lasting.flatMap(({ path, expected }) => {
      const { marks } = subscriber.inboxOf(path);
      return [...expected].filter((name) => !marks.has(name)).map((name) => `${path}: ${name}`);
    });
  // Waits as long as deliveries still arrive, and recovers failed ones meanwhile.
  let left = Number.POSITIVE_INFINITY;
  for (
    let patience = patienceMs, count = missing().length;
    count > 0 && patience > 0;
    count = missing().length
  ) {
    patience = count < left ? patienceMs : patience - 500;
    left = Math.min(left, count);
    for (const member of lasting) await insist(() => tend(member));
    await sleep(500);
  }
  if (missing().length > 0) t.diagnostic(JSON.stringify(await describeLanes(db, missing().length, lasting)));
  assert.deepEqual(missing().slice(0, 50), []);

  for (const { path, expected, possible, withdrawnAt } of [hub, ...members]) {
    const { marks, bySequence, faults: wrong, lastAt } = subscriber.inboxOf(path);
    assert.deepEqual(wrong, [], path);
    for (const name of marks.keys())
      assert.ok(expected.has(name) || possible.has(name), `${path} got ${name}`);
    if (withdrawnAt === null) {
      const sequences = [...bySequence.keys()].sort((a, b) => a - b);
      assert.deepEqual(
        sequences,
        sequences.map((_sequence, index) => index + 1),
        path,
      );
    } else {
      const lateMs = lastAt - withdrawnAt;
      assert.ok(lateMs <= onItsWayMs, `${path} got something ${lateMs} ms after its withdrawal`);
    }
  }
  assert.equal(subscriber.inboxOf('/blind').marks.size, 0);
  const { rows } = await sql<{ left: string }>`select count(*) as left from outbox`.execute(db);
  assert.equal(rows[0]?.left, '0');
  assert.equal(await faults.server().end('SIGTERM'), 0);
});
