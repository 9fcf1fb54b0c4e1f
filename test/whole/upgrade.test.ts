/**
 * An upgrade while both versions serve: nodes of the previous version on a database with a million deliveries, `nuncio migrate` of
 * this version, nodes of this version beside the old ones, then the old ones stop one after the other. All the time requests,
 * publications and deliveries continue.
 */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { loadConfig } from '../../src/config/config.ts';
import { type Database, openDatabase } from '../../src/database/database.ts';
import { requester } from '../support/clients/api_client.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import { createForeignDatabase } from '../support/database/database.ts';
import { seedLog, seedParties } from '../support/database/database_with_history.ts';
import { atEnd } from '../support/database/embedded_process.ts';
import { watchMigration } from '../support/database/watched_migration.ts';
import { Fleet, type FleetNode } from '../support/servers/fleet.ts';
import { extractPrevious, knownRefusal, missingHistory } from '../support/servers/previous_version.ts';
import { runCommandProcess } from '../support/servers/process.ts';
import { prepareTraffic, type Traffic } from '../support/servers/rolling_traffic.ts';
import { freePort, testSecret } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';
import { type Received, startSubscriber } from '../support/webhooks/subscriber.ts';

/** UPGRADE_DELIVERIES: fewer, to try out a change of this test. */
const deliveries = Number(process.env.UPGRADE_DELIVERIES ?? 1_000_000);
/** Attempts that a lane can have in flight. */
const laneInFlightMax = 32;

/** Tables of the previous version that get a column, and are locked against readers for the milliseconds that this takes. */
const exclusivelyLocked = [
  'events',
  'intake',
  'lane_progress',
  'lanes',
  'nodes',
  'subscription_revisions',
  'subscriptions',
];

/** Two old nodes, and two requests at once that change subscriptions. */
const knownRefusalsMax = 4;

const markOf = ({ body }: Received): string => JSON.parse(body).ref.slice('refs/heads/'.length);

/** Starts nodes of the previous version on its schema, with history. */
async function startPrevious(t: TestContext) {
  const previous = extractPrevious();
  atEnd(t, previous.remove);
  const database = await createForeignDatabase();
  atEnd(t, () => database.drop());
  const settings = {
    NUNCIO_BASE_URL: `http://localhost:${await freePort()}`,
    DATABASE_URL: database.url,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    NUNCIO_RATE_LIMIT: '0',
    NUNCIO_RETRY_SCHEDULE: Array(20).fill('1s').join(','),
    LOG_LEVEL: 'error',
  };
  await previous.run(['migrate'], settings);
  // A statement of the history writes a million rows.
  const db = openDatabase({
    connectionString: database.url,
    connectionsMax: 6,
    resultTimeoutMs: timeout,
    onIdleError: () => {},
  });
  atEnd(t, () => db.destroy());
  const config = loadConfig({ ...settings, PORT: '1' }, 'start');
  const server = { db, config, baseUrl: config.baseUrl };
  const owner = await createTestAccount(server, { email: 'owner@upgrade.example' });
  await seedParties(db, owner.id, { accounts: 200, apps: 20, subscriptions: 220 });
  const { rows } = await sql<{ lane: string }>`select lane from subscriptions order by lane limit 1`.execute(
    db,
  );
  await seedLog(db, Number(rows[0]?.lane), deliveries);
  const fleet = new Fleet({ after: (hook) => atEnd(t, hook) }, settings);
  const old = { name: 'old', cli: previous.cli, folder: previous.folder } as const;
  await fleet.start(old);
  await fleet.start(old);
  return { db, server, settings, fleet };
}

/** Indexes that the migration adds to tables that have limits (withdrawals of an hour, 200,000 rejected events), and to notices. */
const newIndexes: Readonly<Record<string, readonly string[]>> = {
  notices: ['notices_of_subject'],
  rejected_events: ['rejected_events_of_account'],
  withdrawals: ['withdrawals_read'],
};

/** What a migration must not do to a table of any size: write it anew, or build an index on it. */
async function describeTables(db: Database): Promise<Map<string, string>> {
  const { rows } = await sql<{ name: string; state: string }>`
    select c.relname as name, concat_ws(' ', c.relfilenode,
      (select string_agg(i.indexrelid::regclass::text, ',' order by i.indexrelid) from pg_index i where i.indrelid = c.oid)) as state
    from pg_class c where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p')`.execute(
    db,
  );
  return new Map(rows.map(({ name, state }) => [name, state]));
}

/** Waits until the traffic has got further with everything that it does. */
async function proceed(traffic: Traffic, subscriber: { received: Received[] }): Promise<void> {
  const { counts } = traffic;
  const before = { ...counts };
  const received = subscriber.received.length;
  await until(
    async () => {
      if (traffic.failure !== null) throw traffic.failure;
      return { received: subscriber.received.length, ...counts };
    },
    (now) =>
      now.received >= received + 30 &&
      Object.keys(counts).length === 5 &&
      Object.entries(counts).every(([what, count]) => count >= (before[what] ?? 0) + 2),
  );
}

async function ownersOf(db: Database, lane: string): Promise<number[]> {
  const { rows } = await sql<{ generation: number }>`
    select n.generation from lane_progress p join nodes n on n.id = p.owner where p.lane = ${lane}::bigint`.execute(
    db,
  );
  return rows.map(({ generation }) => generation);
}

/** A subscription that old nodes cannot serve is refused while one is running. */
async function tryNewFields(send: ReturnType<typeof requester>, url: string): Promise<string[]> {
  const fields = [
    { url, kinds: ['push'], filter: { all: [{ path: '/ref', prefix: 'refs/heads/a' }] } },
    { url, kinds: ['push'], format: 'thin' },
    { url: null, kinds: ['push'] },
    { url, kinds: ['push'], auth: { type: 'basic', username: 'a', password: 'b' } },
  ];
  const responses = [];
  for (const json of fields) {
    const { status, body } = await send('POST', '/subscriptions', { json });
    responses.push(`${status} ${body.code ?? ''}`.trim());
  }
  return responses;
}

/** The runner's usual limit of a test suits short ones. */
const timeout = 3_600_000;

test('an upgrade beside running nodes refuses, loses and repeats nothing', { timeout }, async (t) => {
  const missing = missingHistory();
  if (missing !== null) return t.skip(missing);
  const { db, server, settings, fleet } = await startPrevious(t);
  const subscriber = await startSubscriber({ after: async (hook) => atEnd(t, hook) });
  const traffic = await prepareTraffic(server, fleet, subscriber.url);
  const end = traffic.begin();
  await proceed(traffic, subscriber);
  t.diagnostic(`longest response before the migration: ${Math.round(fleet.stallMs)} ms`);

  // As docs/upgrading.md tells operators of large databases.
  await sql`
    create index concurrently grants_of_account_and_client on grants (account_id, client_id, id desc)
    where withdrawn_at is null`.execute(db);
  await sql`
    create index concurrently grants_all_of_account on grants (account_id, withdrawn_at, client_id, id desc)`.execute(
    db,
  );
  await sql`
    create index concurrently grants_withdrawn_of_client on grants (client_id, withdrawn_at)
    where withdrawn_at is not null`.execute(db);
  await sql`alter table lane_progress add column tenant uuid`.execute(db);
  await sql`
    create index concurrently lane_progress_turns on lane_progress (tenant, due_at)
    where owner is null and due_at is not null`.execute(db);
  const before = await describeTables(db);
  fleet.stallMs = 0;
  const migrated = await watchMigration(
    db,
    settings.DATABASE_URL,
    () => runCommandProcess(['migrate'], settings),
    () => proceed(traffic, subscriber),
  );
  assert.equal(migrated.result.code, 0, migrated.result.stderr);
  t.diagnostic(`longest response during the migration: ${Math.round(fleet.stallMs)} ms`);
  assert.equal(migrated.deadlocks, 0);
  const after = await describeTables(db);
  for (const [name, state] of before) {
    const expected = [state, ...(newIndexes[name] ?? [])].join(',');
    assert.equal(after.get(name), expected, `the migration rewrites ${name}`);
  }
  const exclusive = [...migrated.exclusive].filter((name) => before.has(name)).sort();
  assert.deepEqual(exclusive, exclusivelyLocked, 'tables that were locked against readers');
  await proceed(traffic, subscriber);

  await fleet.start({ name: 'new' });
  await fleet.start({ name: 'new' });
  for (const node of fleet.running) node.answered = 0;
  await proceed(traffic, subscriber);
  for (const node of fleet.running) assert.ok(node.answered > 0, `the ${node.version} node took no request`);
  await withdrawBeside(db, fleet, traffic, subscriber);
  await proceed(traffic, subscriber);

  const member = await traffic.join('chooser');
  const send = requester(fleet.of('new')[0] as FleetNode, member.accessToken);
  assert.deepEqual(await tryNewFields(send, `${subscriber.url}/new`), Array(4).fill('503 upgrade-running'));
  const killedAt = await stopOld(fleet, traffic, subscriber);
  await until(
    () => tryNewFields(send, `${subscriber.url}/new`),
    (all) => all.every((each) => each === '201'),
  );
  await proceed(traffic, subscriber);
  await end();

  const isKnown = (refusal: string) => knownRefusal.test(refusal);
  assert.deepEqual(
    fleet.refusals.filter((refusal) => !isKnown(refusal)),
    [],
  );
  t.diagnostic(`${fleet.refusals.length} known refusals of the previous version, repeated with success`);
  assert.ok(fleet.refusals.length <= knownRefusalsMax, fleet.refusals.join('\n'));
  const arrived = () => new Set(subscriber.received.map((each) => `${each.path} ${markOf(each)}`));
  const expected = [...traffic.acknowledged].flatMap(([mark, path]) => [`${path} ${mark}`, `/hub ${mark}`]);
  await until(
    async () => [...new Set(expected).difference(arrived())].slice(0, 10),
    (lost) => lost.length === 0,
  );
  judgeDuplicates(t, subscriber.received, killedAt, traffic.members.length + 2);
  t.diagnostic(
    `${expected.length} deliveries, ${fleet.repeated} requests repeated, ${JSON.stringify(traffic.counts)}`,
  );
  await readHistory(db);
});

/** A new node ends a subscription that an old node sends to: what waits in the old node's memory is not sent. */
async function withdrawBeside(
  db: Database,
  fleet: Fleet,
  traffic: Traffic,
  subscriber: Awaited<ReturnType<typeof startSubscriber>>,
): Promise<void> {
  const isOld = async (lane: string) => (await ownersOf(db, lane)).includes(0);
  for (let number = 1; ; number += 1) {
    const path = `leaving-${number}`;
    const held: (() => void)[] = [];
    subscriber.behave((received, response) => {
      const answer = () => void response.writeHead(204).end();
      if (received.path === `/${path}`) held.push(answer);
      else answer();
    });
    // One attempt at a time: the others wait in the memory of the node.
    const member = await traffic.join(path, { ordered: true });
    const marks = await traffic.publish(member, 20);
    await until(
      async () => held.length,
      (count) => count === 1,
    );
    const isOfOld = await isOld(member.lane);
    if (isOfOld) {
      const [node] = fleet.of('new') as [FleetNode];
      const operator = requester(node, traffic.operatorToken);
      const withdrawn = await operator('DELETE', `/grants/${member.grantId}`);
      assert.equal(withdrawn.status, 204, withdrawn.text);
    }
    const arrivals = () => subscriber.received.filter((each) => each.path === `/${path}`).length;
    held[0]?.();
    if (isOfOld) {
      // The hub gets the events of this account, and later ones of others.
      await until(
        async () => new Set(subscriber.received.filter((each) => each.path === '/hub').map(markOf)),
        (hub) => marks.every((mark) => hub.has(mark)),
      );
      await proceed(traffic, subscriber);
      assert.equal(arrivals(), 1, 'the old node sent to a withdrawn subscription');
      for (const mark of marks) traffic.acknowledged.delete(mark);
      return;
    }
    subscriber.behave((_received, response) => void response.writeHead(204).end());
    await until(
      async () => arrivals(),
      (count) => count === marks.length,
    );
  }
}

/** Stops the old nodes: one in an orderly way, one without warning. @returns when it was killed */
async function stopOld(
  fleet: Fleet,
  traffic: Traffic,
  subscriber: { received: Received[] },
): Promise<number> {
  const [first, second] = fleet.of('old') as [FleetNode, FleetNode];
  assert.equal(await fleet.stop(first, 'SIGTERM'), 0, first.process.output());
  await proceed(traffic, subscriber);
  const killedAt = Date.now();
  await fleet.stop(second, 'SIGKILL');
  await proceed(traffic, subscriber);
  return killedAt;
}

/** A delivery may come again only if its first attempt was in flight, or not recorded yet, when a node was killed. */
function judgeDuplicates(
  t: TestContext,
  received: readonly Received[],
  killedAt: number,
  lanes: number,
): void {
  const arrivals = Map.groupBy(received, ({ headers }) => String(headers['nuncio-delivery']));
  const repeated = [...arrivals.values()].filter((each) => each.length > 1);
  t.diagnostic(`${repeated.length} deliveries came twice`);
  for (const [first, second, third] of repeated) {
    assert.equal(third, undefined, `${first?.path}: a delivery came three times`);
    assert.ok((first?.at ?? 0) <= killedAt, `${first?.path}: repeated although no node was killed after it`);
    assert.ok((second?.at ?? 0) >= killedAt, `${first?.path}: repeated before a node was killed`);
  }
  assert.ok(repeated.length <= lanes * laneInFlightMax);
}

/** The deliveries from before the upgrade are all there. */
async function readHistory(db: Database): Promise<void> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from deliveries d
    join events e on e.day = d.day and e.position = d.event and e.version is null`.execute(db);
  assert.ok((rows[0]?.count ?? 0) >= deliveries, `${rows[0]?.count} deliveries are left`);
}
