/**
 * The fault test of several servers, from a seed: three on a PostgreSQL with an asynchronous standby. Servers are
 * killed, suspended and cut off from the database. The standby takes over without the transactions that it has not
 * received. The disk fills up. Other sessions lock lanes and keep transactions open.
 * Afterwards, nothing is lost that was acknowledged and is on the surviving timeline. Sequences have no gap, each
 * delivery id is one delivery, ordered subscriptions have no inversion, nothing arrived after a withdrawal, and nothing
 * waits for longer than any setting allows.
 *
 * A normal test run is short and uses one seed; `npm run soak:nodes` runs it for minutes, `SOAK_SEED` with another
 * seed.
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { loadConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/database/database.ts';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { type ApiResponse, requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { atEnd } from '../support/database/embedded_process.ts';
import { type SessionFault, sessionFaults, strikeSession } from '../support/servers/foreign_sessions.ts';
import { type DatabaseFault, NodeCluster, type NodeFault } from '../support/servers/node_cluster.ts';
import { freePort, testSecret } from '../support/servers/server.ts';
import { createRandom } from '../support/values/random.ts';
import { appScopes, pushBody } from '../support/webhooks/apps.ts';
import { insist, startFaultySubscriber } from '../support/webhooks/faulty_subscriber.ts';

const seconds = Number(process.env.SOAK_SECONDS ?? 25);
const seed = Number(process.env.SOAK_SEED ?? 102);
/** How long an attempt that started before a withdrawal may take to arrive. */
const onItsWayMs = 500;
/** How long to wait without progress before missing deliveries count as lost. */
const patienceMs = 90_000;
/** Timeout of a request to a server that may be suspended. */
const requestMs = 5_000;
/** Seconds that nothing may wait: longer than every pause and retry of the settings and the subscriber. */
const waitSecondsMax = 1_800;

type Send = (method: string, path: string, json?: unknown) => Promise<ApiResponse>;

interface Member {
  path: string;
  send: Send;
  accountId: string;
  /** Null for the client that receives all events. */
  grantId: string | null;
  subscriptionId: string;
  isOrdered: boolean;
  /** Whether a failover lost the subscription. */
  isGone: boolean;
  /** When the withdrawal was acknowledged; null without one. */
  withdrawnAt: number | null;
  /** When the last withdrawal that a failover undid was acknowledged; null without one. */
  revivedAt: number | null;
}

/** An event that a server acknowledged. */
interface Acknowledged {
  mark: string;
  member: Member;
  /** When the acknowledged request was sent. */
  askedAt: number;
  /** Whether the owner's grant was active when the event was acknowledged. */
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
  const db = openDatabase({ connectionString: cluster.proxy.url, connectionsMax: 6, onIdleError: () => {} });
  atEnd(t, () => db.destroy());
  const config = loadConfig({ ...settings, PORT: '1', DATABASE_URL: cluster.proxy.url }, 'start');
  const server = { db, config, baseUrl: config.baseUrl };
  const subscriber = await startFaultySubscriber(t, createRandom(seed + 1));
  const recoverable = {
    since: new Date(Date.now() - 86_400_000).toISOString(),
    until: new Date(Date.now() + 86_400_000).toISOString(),
  };

  const dice = createRandom(seed + 2);
  /** Sends to any server, and abandons one that does not respond. */
  const sender = (accessToken: string): Send => {
    return async (method, path, json) => {
      const node = cluster.nodes[Math.floor(dice() * cluster.nodes.length)] as { baseUrl: string };
      const late = sleep(requestMs, undefined, { ref: false }).then(() => {
        throw new Error('no answer');
      });
      const given = await Promise.race([
        requester(node, accessToken)(method, path, json === undefined ? {} : { json }),
        late,
      ]);
      return given;
    };
  };
  const subscribe = (send: Send, fields: Record<string, unknown>) =>
    insist(async () => {
      const { status, body, text } = await send('POST', '/subscriptions', { kinds: ['push'], ...fields });
      // Its data was lost with an old primary, so a retry does not help.
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
  /** All events sent, acknowledged or not, by mark. */
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
        // A chosen id makes it safe to retry.
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
      // The account of one event was lost with the old primary, so the server rejected the whole list.
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
  /** Each fault at least once, in an order determined by the seed, then at random. */
  const shuffled = <F>(faults: readonly F[], random: () => number) =>
    faults.map((fault) => ({ fault, by: random() })).sort((a, b) => a.by - b.by);
  const strikeSessions = async (random: () => number) => {
    const order = shuffled(sessionFaults, random);
    while (Date.now() < end) {
      await sleep(random() * 2_000);
      const fault =
        order.shift()?.fault ?? (sessionFaults[Math.floor(random() * sessionFaults.length)] as SessionFault);
      count(fault);
      await strikeSession(db, fault, random);
    }
  };
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
    // Only before the first failover: the standby has no disk that can be filled.
    const order: DatabaseFault[] = cluster.canFillDisk ? ['fill disk', 'promote'] : ['promote'];
    while (Date.now() < end) {
      await sleep(2_000 + random() * 6_000);
      const fault = order.shift() ?? 'promote';
      count(fault);
      await cluster.strikeDatabase(fault, random);
      if (fault === 'promote') await reconcile();
    }
  };
  /** Acts as a user who finds a withdrawal undone after a failover. Marks subscriptions that no longer exist. */
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
  /** Acts as an owner who finds a subscription disabled or deliveries failed. */
  const tend = async ({ send, subscriptionId }: Member) => {
    const path = `/subscriptions/${subscriptionId}`;
    const { body } = await send('GET', path);
    if (body.state === 'disabled') await send('PATCH', path, { state: 'active' });
    await send('POST', `${path}/recover`, { ...recoverable, status: ['failed', 'held'] });
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
    strikeSessions(createRandom(seed + 8)),
    tendAll(),
  ]);
  subscriber.calm();
  await cluster.calm();
  t.diagnostic(`${mark} events, ${members.length} subscriptions and one, ${JSON.stringify(counts)}`);

  const { rows: stored } = await insist(() =>
    sql<{ mark: string }>`select substr(id, 6) as mark from events where id like 'soak-%'`.execute(db),
  );
  const survived = new Set(stored.map(({ mark: name }) => name));
  // Only a failover may lose an event, and only if the event was sent before it.
  const lost = acknowledged.filter(({ mark: name }) => !survived.has(name));
  const wrongly = lost.filter(({ askedAt }) => !cluster.failovers.some(({ until }) => askedAt <= until));
  assert.deepEqual(
    wrongly.map(({ mark: name }) => name),
    [],
    'acknowledged events that no failover explains are gone',
  );
  t.diagnostic(`${lost.length} acknowledged events were lost with the old primaries`);

  // A failover can lose the grant that lets the hub receive an account's events, and keep the account. The hub does
  // not receive events published afterwards. If an event survives, so does everything committed before it. The
  // current grants therefore decide.
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
  const absent = missing();
  assert.deepEqual(absent.slice(0, 50), [], absent.length === 0 ? '' : await describeLanes(absent));

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
  /** Describes the stored state of the subscriptions that miss something, to find the cause of a failure. */
  async function describeLanes(lacking: readonly string[]): Promise<string> {
    const paths = new Set(lacking.map((each) => each.slice(0, each.indexOf(':'))));
    const ids = lasting().flatMap(({ path, subscriptionId }) => (paths.has(path) ? [subscriptionId] : []));
    const { rows } = await sql`
      select s.url, s.id, s.lane, s.state, s.disabled_reason, s.created_at, s.created_position, now(),
        g.withdrawn_at, g.scopes, a.disabled_at, to_jsonb(l) as tail, newest_sequence(l) as newest, to_jsonb(p) as progress, n.alive_until,
        (select jsonb_agg(to_jsonb(r)) from retries r where r.lane = s.lane) as retries,
        (select jsonb_agg(distinct d.day) from deliveries d where d.lane = s.lane) as days,
        (select jsonb_agg(jsonb_build_array(a.sequence, a.number, a.started_at, a.error)) from attempts a where a.lane = s.lane) as attempts,
        (select jsonb_agg(to_jsonb(h)) from held_ranges h where h.lane = s.lane) as held,
        (select count(*) from deliveries d where d.lane = s.lane) as deliveries,
        (select jsonb_agg(to_jsonb(c)) from recoveries c where c.lane = s.lane and c.state = 'running') as recoveries,
        (select count(*) from outbox) as outbox
      from subscriptions s
      left join grants g on g.id = s.grant_id left join accounts a on a.id = s.account_id
      left join lanes l on l.id = s.lane left join lane_progress p on p.lane = s.lane
      left join nodes n on n.id = p.owner
      where s.id = any(${ids}::uuid[])`.execute(db);
    const outputs = cluster.nodes.map(({ process: { output } }) => output().slice(-20_000));
    return [`${lacking.length} missing`, ids.join(' '), JSON.stringify(rows, null, 1), ...outputs].join('\n');
  }
  /** Excuses a late arrival from a server that was suspended during the attempt. */
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
  /** What waits for longer than any setting allows. Nothing is sent for subscriptions that have ended. */
  const findPostponed = () => {
    const late = sql`now() + make_interval(secs => ${waitSecondsMax})`;
    return insist(async () => {
      const { rows: postponed } = await sql`
        select 'retry' as what, s.url, to_jsonb(r) as row, now()
        from retries r join subscriptions s on s.lane = r.lane and s.state <> 'ended' where r.due_at > ${late}
        union all
        select 'pause', s.url, to_jsonb(p), now()
        from lane_progress p join subscriptions s on s.lane = p.lane and s.state <> 'ended'
        where greatest(p.paused_until, p.due_at) > ${late}
        union all
        select 'hold', null, to_jsonb(h), now() from delivery_holds h where h.until > ${late}`.execute(db);
      return postponed;
    });
  };
  let postponed = await findPostponed();
  for (let patience = patienceMs; postponed.length > 0 && patience > 0; patience -= 1_000) {
    await sleep(1_000);
    postponed = await findPostponed();
  }
  assert.deepEqual(postponed, [], 'these wait for longer than any setting allows');
  const { rows } = await sql<{ left: string }>`select count(*) as left from outbox`.execute(db);
  assert.equal(rows[0]?.left, '0');
  const codes = await cluster.end();
  const outputs = cluster.nodes.map((node, index) =>
    codes[index] === 0 ? '' : node.process.output().slice(-4_000),
  );
  assert.deepEqual(codes, [0, 0, 0], outputs.join('\n'));
});

/** Returns deliveries of an epoch whose first arrival follows that of a later one. */
function inversions(arrivals: readonly { id: string; sequence: number }[]): string[] {
  const seen = new Set<string>();
  const heads = new Map<string, number>();
  return arrivals.flatMap(({ id, sequence }) => {
    if (seen.has(id)) return [];
    seen.add(id);
    // A lane and an epoch share everything but the sequence.
    const epoch = id.slice(0, 23);
    const head = heads.get(epoch) ?? 0;
    heads.set(epoch, Math.max(head, sequence));
    return sequence < head ? [`${sequence} after ${head}`] : [];
  });
}
