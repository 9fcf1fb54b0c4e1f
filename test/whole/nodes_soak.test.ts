/**
 * The fault test of several servers: three on a PostgreSQL with an asynchronous standby, from a seed. Servers are killed,
 * stopped as a whole, and lose their way to the database; the standby takes over without what it had not heard of; the
 * disk is full for a while. Afterwards nothing that was acknowledged and is on the surviving timeline is lost, sequences
 * have no gap, each delivery id is one delivery, ordered subscriptions have no inversion, and nothing came after a
 * withdrawal.
 *
 * Short and from one seed here; `npm run soak:nodes` runs it for minutes, `SOAK_SEED` from another seed.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { loadConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/database/database.ts';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { type ApiAnswer, requester } from '../support/api.ts';
import { atEnd } from '../support/embedded_process.ts';
import { type DatabaseFault, NodeCluster, type NodeFault } from '../support/nodes.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/oauth.ts';
import { createRandom } from '../support/random.ts';
import { freePort, testSecret } from '../support/server.ts';
import { insist, startTroublesome } from '../support/troublesome.ts';
import { appScopes, pushBody } from '../support/webhooks.ts';

const seconds = Number(process.env.SOAK_SECONDS ?? 25);
const seed = Number(process.env.SOAK_SEED ?? 102);
/** Milliseconds that what was started before a withdrawal may be on its way. */
const onItsWayMs = 500;
/** Milliseconds without anything new after which what is missing is taken for lost. */
const patienceMs = 90_000;
/** Milliseconds that a request to a server that may be stopped is waited for. */
const requestMs = 5_000;

type Send = (method: string, path: string, json?: unknown) => Promise<ApiAnswer>;

interface Member {
  path: string;
  send: Send;
  accountId: string;
  /** Null for the client that hears of all. */
  grantId: string | null;
  subscriptionId: string;
  isOrdered: boolean;
  /** Whether a failover lost it. */
  isGone: boolean;
  /** When the withdrawal was answered; null for none. */
  withdrawnAt: number | null;
  /** When the last one began that a failover took back, or null. */
  revivedAt: number | null;
}

/** An event that a server said it has. */
interface Acknowledged {
  mark: string;
  member: Member;
  /** When the request was sent that was answered. */
  askedAt: number;
  /** Whether its owner's grant was there when it was acknowledged. */
  isExpected: boolean;
}

test(`webhooks 62: faults of servers and standby lose nothing on the surviving timeline (seed ${seed})`, async (t) => {
  t.diagnostic(`SOAK_SEED=${seed} SOAK_SECONDS=${seconds}`);
  const settings = {
    NUNCIO_BASE_URL: `http://localhost:${await freePort()}`,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    NUNCIO_RATE_LIMIT: '0',
    NUNCIO_RETRY_SCHEDULE: Array(20).fill('1s').join(','),
    LOG_LEVEL: 'error',
  };
  const cluster = await NodeCluster.start(t, 3, settings);
  const db = openDatabase({ connectionString: cluster.proxy.url, connectionsMax: 4, onIdleError: () => {} });
  atEnd(t, () => db.destroy());
  const config = loadConfig({ ...settings, PORT: '1', DATABASE_URL: cluster.proxy.url }, 'start');
  const server = { db, config, baseUrl: config.baseUrl } as never;
  const subscriber = await startTroublesome(t, createRandom(seed + 1));
  const beganAt = new Date().toISOString();

  const dice = createRandom(seed + 2);
  /** Sends to any server, and gives up one that does not answer. */
  const sender = (accessToken: string): Send => {
    return async (method, path, json) => {
      const node = cluster.nodes[Math.floor(dice() * cluster.nodes.length)] as { baseUrl: string };
      const late = sleep(requestMs, undefined, { ref: false }).then(() => {
        throw new Error('no answer');
      });
      return Promise.race([
        requester(node, accessToken)(method, path, json === undefined ? {} : { json }),
        late,
      ]);
    };
  };
  const subscribe = (send: Send, fields: Record<string, unknown>) =>
    insist(async () => {
      const { status, body, text } = await send('POST', '/subscriptions', { kinds: ['push'], ...fields });
      // What it needs is gone with an old primary: trying again does not help.
      assert.ok(status < 400 || status === 429 || status >= 500, text);
      if (status !== 201) throw new Error(text);
      return body.id as string;
    });

  const machine = await createTestClient(server, { scopes: ['write:events'] });
  const publisher = sender(
    (await mintAccessToken(server, { client: machine, scopes: ['write:events'] })).accessToken,
  );
  const everybody = await createTestClient(server, {
    scopes: ['read:posts', 'read:webhooks', 'write:webhooks'],
    maySubscribe: true,
  });
  const forAll = await mintAccessToken(server, { client: everybody, scopes: everybody.scopes });
  const fresh = { isGone: false, withdrawnAt: null, revivedAt: null };
  const hub: Member = {
    ...fresh,
    path: '/all',
    send: sender(forAll.accessToken),
    accountId: '',
    grantId: null,
    subscriptionId: await subscribe(sender(forAll.accessToken), { url: `${subscriber.url}/all` }),
    isOrdered: false,
  };
  const members: Member[] = [];
  let paths = 0;
  const join = async (random: () => number) => {
    paths += 1;
    const isOrdered = random() < 0.4;
    const path = `/${isOrdered ? 'ordered' : 'any'}-${paths}`;
    const email = `soak-${paths}-${Math.floor(random() * 1e9)}@example.com`;
    const account = await createTestAccount(server, { email });
    const client = await createTestClient(server, { scopes: appScopes });
    const { accessToken, grantId } = await mintAccessToken(server, { account, client, scopes: appScopes });
    await mintAccessToken(server, { account, client: everybody, scopes: ['read:posts'] });
    const send = sender(accessToken);
    const subscriptionId = await subscribe(send, { url: subscriber.url + path, ordered: isOrdered });
    members.push({ ...fresh, path, send, accountId: account.id, grantId, subscriptionId, isOrdered });
  };
  const setUp = createRandom(seed);
  for (let count = 0; count < 6; count += 1) await join(setUp);
  await cluster.caughtUp();

  let mark = 0;
  const acknowledged: Acknowledged[] = [];
  /** By mark: everything that was sent, acknowledged or not. */
  const published = new Map<string, Member>();
  const end = Date.now() + seconds * 1_000;
  const publishAll = async (random: () => number) => {
    while (Date.now() < end) {
      const there = members.filter(({ isGone }) => !isGone);
      const events = Array.from({ length: Math.ceil(random() ** 2 * 20) }, () => {
        mark += 1;
        const member = there[Math.floor(random() * there.length)] as Member;
        published.set(String(mark), member);
        return { mark: String(mark), member };
      });
      const list = events.map(({ mark: name, member }) => ({
        // A chosen id makes it safe to try again.
        id: `soak-${name}`,
        kind: 'push',
        account: member.accountId,
        body: pushBody(name),
      }));
      const json = list.length === 1 ? list[0] : list;
      let askedAt = 0;
      const { status, text } = await insist(async () => {
        askedAt = Date.now();
        const given = await publisher('POST', '/events', json);
        if (given.status >= 500 || given.status === 429) throw new Error(given.text);
        return given;
      });
      // The account of one is gone with the old primary: nothing of the list was taken.
      if (status === 422 && /unknown-account/.test(text)) continue;
      assert.equal(status, 202, text);
      for (const each of events) {
        acknowledged.push({ ...each, askedAt, isExpected: each.member.withdrawnAt === null });
      }
      await sleep(random() * 300);
    }
  };
  const withdrawSome = async (random: () => number) => {
    while (Date.now() < end) {
      await sleep(1_000 + random() * 3_000);
      const active = members.filter(({ withdrawnAt, isGone }) => withdrawnAt === null && !isGone);
      if (active.length > 3) {
        const member = active[Math.floor(random() * active.length)] as Member;
        await withdraw(member);
      }
      await join(random).catch(() => {});
    }
  };
  const withdraw = async (member: Member) => {
    await insist(() => withdrawGrant(db, member.grantId ?? '', 'user'));
    member.withdrawnAt = Date.now();
  };
  const counts: Record<string, number> = {};
  const count = (fault: string) => {
    counts[fault] = (counts[fault] ?? 0) + 1;
  };
  /** Each at least once, in an order of the seed's, then at random. */
  const shuffled = <F>(faults: readonly F[], random: () => number) =>
    faults.map((fault) => ({ fault, by: random() })).sort((a, b) => a.by - b.by);
  const strikeNodes = async (random: () => number) => {
    const faults: readonly NodeFault[] = ['kill', 'stop', 'cut', 'freeze'];
    const order = shuffled(faults, random);
    while (Date.now() < end) {
      await sleep(random() * 3_000);
      const fault = order.shift()?.fault ?? (faults[Math.floor(random() * faults.length)] as NodeFault);
      const node = cluster.nodes[
        Math.floor(random() * cluster.nodes.length)
      ] as (typeof cluster.nodes)[number];
      count(fault);
      await cluster.strikeNode(node, fault, random);
    }
  };
  const strikeDatabase = async (random: () => number) => {
    // A disk can be filled before the first failover alone: the standby has none of its own.
    const order: DatabaseFault[] = cluster.canFillDisk ? ['fill disk', 'promote'] : ['promote'];
    while (Date.now() < end) {
      await sleep(2_000 + random() * 6_000);
      const fault = order.shift() ?? 'promote';
      count(fault);
      await cluster.strikeDatabase(fault, random);
      if (fault === 'promote') await reconcile();
    }
  };
  /** What a user does who finds, after a failover, that a withdrawal is undone; and what is not there any more. */
  const reconcile = async () => {
    const ids = members.map(({ subscriptionId }) => subscriptionId);
    const { rows } = await insist(() =>
      sql<{ id: string; is_active: boolean }>`
        select s.id, g.withdrawn_at is null as is_active from subscriptions s join grants g on g.id = s.grant_id
        where s.id = any(${ids}::uuid[])`.execute(db),
    );
    const found = new Map(rows.map(({ id, is_active }) => [id, is_active]));
    for (const member of members) {
      if (!found.has(member.subscriptionId)) member.isGone = true;
      else if (member.withdrawnAt !== null && found.get(member.subscriptionId) === true) {
        member.revivedAt = member.withdrawnAt;
        await withdraw(member);
      }
    }
  };
  /** What its owner does who finds a subscription disabled, or deliveries given up. */
  const tend = async ({ send, subscriptionId }: Member) => {
    const path = `/subscriptions/${subscriptionId}`;
    const { body } = await send('GET', path);
    if (body.state === 'disabled') await send('PATCH', path, { state: 'active' });
    await send('POST', `${path}/recover`, { since: beganAt, status: ['failed', 'held'] });
  };
  const lasting = () => [
    hub,
    ...members.filter(({ withdrawnAt, isGone }) => withdrawnAt === null && !isGone),
  ];
  const tendAll = async () => {
    while (Date.now() < end) {
      await sleep(4_000);
      for (const member of lasting()) await tend(member).catch(() => {});
    }
  };
  await Promise.all([
    publishAll(createRandom(seed + 3)),
    publishAll(createRandom(seed + 4)),
    withdrawSome(createRandom(seed + 5)),
    strikeNodes(createRandom(seed + 6)),
    strikeDatabase(createRandom(seed + 7)),
    tendAll(),
  ]);
  subscriber.calm();
  await cluster.calm();
  t.diagnostic(`${mark} events, ${members.length} subscriptions and one, ${JSON.stringify(counts)}`);

  const { rows: stored } = await insist(() =>
    sql<{ mark: string }>`select substr(id, 6) as mark from events where id like 'soak-%'`.execute(db),
  );
  const survived = new Set(stored.map(({ mark: name }) => name));
  // Only a failover may lose an event: one that came after it was asked for.
  const lost = acknowledged.filter(({ mark: name }) => !survived.has(name));
  const wrongly = lost.filter(({ askedAt }) => !cluster.failovers.some(({ until }) => askedAt <= until));
  assert.deepEqual(
    wrongly.map(({ mark: name }) => name),
    [],
    'acknowledged events that no failover explains are gone',
  );
  t.diagnostic(`${lost.length} acknowledged events were lost with the old primaries`);

  // A failover can lose the grant by which the hub hears of an account, and keep the account: what is published then is not
  // the hub's. Whatever survives, all that was committed before it survives too, so that what is there now decides.
  const { rows: granted } = await insist(() =>
    sql<{ id: string }>`
      select account_id as id from grants where client_id = ${everybody.id} and withdrawn_at is null`.execute(
      db,
    ),
  );
  const hubAccounts = new Set(granted.map(({ id }) => id));
  const isExpectedBy = (member: Member, event: Acknowledged) =>
    member === hub ? hubAccounts.has(event.member.accountId) : event.member === member && event.isExpected;
  const expectedOf = (member: Member) =>
    acknowledged.filter((each) => survived.has(each.mark) && isExpectedBy(member, each));
  const missing = () =>
    lasting().flatMap((member) => {
      const { marks } = subscriber.inboxOf(member.path);
      return expectedOf(member).flatMap(({ mark: name }) =>
        marks.has(name) ? [] : [`${member.path}: ${name} of ${published.get(name)?.path}`],
      );
    });
  let left = Number.POSITIVE_INFINITY;
  for (let patience = patienceMs, now = missing().length; now > 0 && patience > 0; now = missing().length) {
    patience = now < left ? patienceMs : patience - 500;
    left = Math.min(left, now);
    for (const member of lasting()) await tend(member).catch(() => {});
    await sleep(500);
  }
  assert.deepEqual(missing().slice(0, 50), []);

  for (const member of [hub, ...members]) {
    const { arrivals } = subscriber.inboxOf(member.path);
    const contents = new Map<string, string>();
    for (const { id, sequence, mark: name } of arrivals) {
      const content = `${sequence} ${name}`;
      assert.equal(contents.get(id) ?? content, content, `${member.path}: ${id} was two deliveries`);
      contents.set(id, content);
      assert.ok(member === hub || published.get(name) === member, `${member.path} got ${name}`);
    }
    if (member.isOrdered) assert.deepEqual(inversions(arrivals), [], member.path);
    if (member.withdrawnAt !== null) {
      const late = arrivals.filter(({ at }) => !isExcused(member, at));
      assert.deepEqual(
        late,
        [],
        `${member.path} got something after its withdrawal at ${member.withdrawnAt}`,
      );
    }
  }
  /** What comes later than it may, but for a server that stood still as a whole with the attempt already begun. */
  function isExcused({ withdrawnAt, revivedAt }: Member, at: number): boolean {
    if (withdrawnAt === null || at <= withdrawnAt + onItsWayMs) return true;
    const begun = revivedAt ?? withdrawnAt;
    return cluster.stops.some(
      ({ from, until }) => from <= begun + onItsWayMs && until >= begun && at <= until + onItsWayMs,
    );
  }

  for (const member of lasting()) {
    const { rows } = await sql<{ sequence: string }>`
      select d.sequence from deliveries d join subscriptions s on s.lane = d.lane
      where s.id = ${member.subscriptionId} order by d.sequence`.execute(db);
    assert.deepEqual(
      rows.map(({ sequence }) => Number(sequence)),
      rows.map((_row, index) => index + 1),
      member.path,
    );
  }
  const { rows } = await sql<{ left: string }>`select count(*) as left from outbox`.execute(db);
  assert.equal(rows[0]?.left, '0');
  const codes = await cluster.end();
  const outputs = cluster.nodes.map((node, index) =>
    codes[index] === 0 ? '' : node.process.output().slice(-4_000),
  );
  assert.deepEqual(codes, [0, 0, 0], outputs.join('\n'));
});

/** Deliveries of one epoch that first came after a later one. */
function inversions(arrivals: readonly { id: string; sequence: number }[]): string[] {
  const seen = new Set<string>();
  const heads = new Map<string, number>();
  return arrivals.flatMap(({ id, sequence }) => {
    if (seen.has(id)) return [];
    seen.add(id);
    // All but the sequence is the same for a lane and an epoch.
    const epoch = id.slice(0, 23);
    const head = heads.get(epoch) ?? 0;
    heads.set(epoch, Math.max(head, sequence));
    return sequence < head ? [`${sequence} after ${head}`] : [];
  });
}
