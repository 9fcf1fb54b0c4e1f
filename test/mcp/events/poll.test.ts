/** `events/poll`: cursors, pages, and what happens to a lane that is not used. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { withdrawGrant } from '../../../src/grants/grant.ts';
import { endExpiredAgents } from '../../../src/webhooks/subscriptions/agent_subscription.ts';
import { callMcp, callOlder, mcpToken } from '../../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { createPublisher, fannedOut, publish, until } from '../../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);
const client = await createTestClient(server);
const scopes = ['read:posts', 'read:profile'];

async function createAgent(account = createTestAccount(server)) {
  const user = await account;
  const { accessToken, grantId } = await mcpToken(server, { account: user, client, scopes });
  return { account: user, token: accessToken, grantId: grantId as string };
}

type Agent = Awaited<ReturnType<typeof createAgent>>;

interface Polled {
  events: { eventId: string; name: string; timestamp: string; data: { ref: string }; cursor: string }[];
  cursor: string;
  truncated: boolean;
  hasMore: boolean;
  nextPollMs: number;
}

async function poll({ token }: Pick<Agent, 'token'>, params: object): Promise<Polled> {
  const { status, body } = await callMcp(server, token, 'events/poll', { name: 'push', ...params });
  assert.equal(status, 200, JSON.stringify(body));
  assert.ok(body.result, JSON.stringify(body.error));
  return body.result;
}

async function refused({ token }: Pick<Agent, 'token'>, params: object) {
  const { body } = await callMcp(server, token, 'events/poll', { name: 'push', ...params });
  assert.ok(body.error, JSON.stringify(body.result));
  return body.error;
}

/** Polls until nothing is left. */
async function drain(agent: Agent, cursor: string, params: object = {}) {
  const refs: string[] = [];
  let isTruncated = false;
  for (;;) {
    const page = await poll(agent, { ...params, cursor });
    refs.push(...page.events.map(({ data }) => data.ref));
    isTruncated ||= page.truncated;
    cursor = page.cursor;
    if (!page.hasMore) return { refs, cursor, isTruncated };
  }
}

const refsOf = (marks: unknown[]) => marks.map((mark) => `refs/heads/${mark}`);

async function add(agent: Agent, ...marks: unknown[]): Promise<void> {
  await publish(publisher, agent.account, marks);
  await fannedOut(server);
}

async function lanesOf({ grantId }: Agent) {
  const { rows } = await sql<{ id: string; ended: string | null; expires_at: Date; lane: string }>`
    select id, end_reason as ended, expires_at, lane from agent_subscriptions where grant_id = ${grantId}
    order by created_at`.execute(db);
  return rows;
}

/** As if the agent had not asked for a day. @param hours since the lane, its events and its deliveries were made */
async function expire(agent: Agent, hours = 0): Promise<void> {
  await sql`
    update agent_subscriptions set expires_at = now() - interval '1 second'
    where grant_id = ${agent.grantId} and ended_at is null`.execute(db);
  await endExpiredAgents(db);
  const back = sql`make_interval(hours => ${hours}::int)`;
  const lanes = (await lanesOf(agent)).map(({ lane }) => lane);
  await sql`update grants set created_at = created_at - ${back} where id = ${agent.grantId}`.execute(db);
  await sql`update events set created_at = created_at - ${back} where account_id = ${agent.account.id}`.execute(
    db,
  );
  await sql`update subscriptions set created_at = created_at - ${back}, ended_at = ended_at - ${back}
    where lane = any(${lanes}::bigint[])`.execute(db);
  await sql`update deliveries set created_at = created_at - ${back} where lane = any(${lanes}::bigint[])`.execute(
    db,
  );
}

test('agents 53: without a cursor a poll has no events and a cursor from now on', async () => {
  const agent = await createAgent();
  await add(agent, 'before');
  const first = await poll(agent, { cursor: null });
  assert.deepEqual(
    { ...first, cursor: '', _meta: null },
    {
      ...{
        resultType: 'complete',
        events: [],
        cursor: '',
        truncated: false,
        hasMore: false,
        nextPollMs: 30_000,
      },
      _meta: null,
    },
  );
  await add(agent, 'a', 'b');
  const second = await poll(agent, { cursor: first.cursor });
  assert.deepEqual(
    second.events.map(({ data }) => data.ref),
    refsOf(['a', 'b']),
  );
  assert.equal(second.hasMore, false);
  const third = await poll(agent, { cursor: second.cursor });
  assert.deepEqual(third.events, []);
  // A lost response: the same cursor has the same events.
  const again = await poll(agent, { cursor: first.cursor });
  assert.deepEqual(again.events, second.events);
});

test('agents 27: an occurrence has the five members, and each cursor continues after it', async () => {
  const agent = await createAgent();
  const { cursor } = await poll(agent, {});
  await add(agent, 'a', 'b', 'c');
  const { events } = await poll(agent, { cursor });
  const [first] = events;
  assert.ok(first);
  assert.deepEqual(Object.keys(first), ['eventId', 'name', 'timestamp', 'data', 'cursor']);
  assert.equal(first.name, 'push');
  assert.equal(new Date(first.timestamp).toISOString(), first.timestamp);
  const { rows } = await sql`select from events where id = ${first.eventId}`.execute(db);
  assert.equal(rows.length, 1);
  assert.deepEqual((await drain(agent, first.cursor)).refs, refsOf(['b', 'c']));
});

test('agents 53: pages have at most maxEvents, and say that there is more', async () => {
  const agent = await createAgent();
  const { cursor } = await poll(agent, {});
  await add(agent, 1, 2, 3, 4, 5);
  const page = await poll(agent, { cursor, maxEvents: 2 });
  assert.equal(page.events.length, 2);
  assert.equal(page.hasMore, true);
  assert.deepEqual((await drain(agent, page.cursor, { maxEvents: 2 })).refs, refsOf([3, 4, 5]));
});

test('agents 63, 64: clients of older versions poll as well, without resultType', async () => {
  const agent = await createAgent();
  const { body } = await callOlder(server, agent.token, 'events/poll', { name: 'push', cursor: null });
  assert.deepEqual(Object.keys(body.result), ['cursor', 'truncated', 'hasMore', 'nextPollMs', 'events']);
});

test('agents 78: arguments choose by value, list and limits', async () => {
  const agent = await createAgent();
  const { account } = agent;
  const wanted: [object, number[]][] = [
    [{ amount: 5 }, [5]],
    [{ amount: [5, 50], currency: 'EUR' }, [5, 50]],
    [{ amount: { $gt: 5, $lte: 500 } }, [50, 500]],
    [{ id: { $gte: 'inv_50' } }, [50, 500]],
    [{ currency: 'USD' }, []],
    [{}, [5, 50, 500]],
  ];
  const given = (index: number) => ({ name: 'invoice.paid', arguments: wanted[index]?.[0] });
  const cursors = await Promise.all(wanted.map(async (_, index) => (await poll(agent, given(index))).cursor));
  const events = [5, 50, 500].map((amount) => {
    const body = { invoice: { id: `inv_${amount}`, amount, currency: 'EUR' } };
    return { kind: 'invoice.paid', account: account.id, body };
  });
  assert.equal((await publisher('POST', '/events', { json: events })).status, 202);
  await fannedOut(server);
  for (const [index, [, amounts]] of wanted.entries()) {
    const page = await poll(agent, { ...given(index), cursor: cursors[index] });
    const found = page.events.map(
      ({ data }) => (data as unknown as { invoice: { amount: number } }).invoice.amount,
    );
    assert.deepEqual(found, amounts, JSON.stringify(wanted[index]?.[0]));
  }
});

test('agents 51, 79: a cursor works for its grant, kind and arguments alone', async () => {
  const [one, other] = [await createAgent(), await createAgent()];
  const { cursor } = await poll(one, { arguments: { ref: 'a' } });
  const sameUser = await createAgent(Promise.resolve(one.account));
  const invalid = { field: 'cursor', reason: 'invalid' };
  assert.deepEqual((await refused(other, { cursor, arguments: { ref: 'a' } })).data, invalid);
  assert.deepEqual((await refused(sameUser, { cursor, arguments: { ref: 'a' } })).data, invalid);
  assert.deepEqual((await refused(one, { cursor })).data, invalid);
  assert.deepEqual((await refused(one, { cursor, arguments: { ref: 'b' } })).data, invalid);
  assert.deepEqual((await refused(one, { cursor, name: 'article.published' })).data, invalid);
  assert.deepEqual((await poll(one, { cursor, arguments: { ref: 'a' } })).events, []);
});

test('agents 38: events of another account never come, nor those after a scope was lost', async () => {
  const [one, other] = [await createAgent(), await createAgent()];
  const { cursor } = await poll(one, {});
  await add(other, 'foreign');
  await add(one, 'own');
  assert.deepEqual((await drain(one, cursor)).refs, refsOf(['own']));
  const narrow = sql`update grants set scopes = array_remove(scopes, 'read:posts') where id = ${one.grantId}`;
  await narrow.execute(db);
  const { status } = await until(
    () => callMcp(server, one.token, 'events/poll', { name: 'push', cursor }),
    (answer) => answer.status !== 200,
  );
  assert.ok(status === 401 || status === 403);
});

test('concurrent first polls of one key share a lane, and miss nothing', async () => {
  const agent = await createAgent();
  const pages = await Promise.all(Array.from({ length: 10 }, () => poll(agent, {})));
  assert.equal((await lanesOf(agent)).length, 1);
  await add(agent, 'x');
  const drained = await Promise.all(pages.map(({ cursor }) => drain(agent, cursor)));
  for (const { refs } of drained) assert.deepEqual(refs, refsOf(['x']));
});

test('agents 82: a cursor of a lane that has expired replays what came since, at least once', async () => {
  const agent = await createAgent();
  const { cursor } = await poll(agent, {});
  await add(agent, 'read');
  const read = await drain(agent, cursor);
  await add(agent, 'unread');
  await expire(agent, 5);
  await add(agent, 'between');
  const resumed = await poll(agent, { cursor: read.cursor });
  assert.equal(resumed.truncated, false);
  const { refs, isTruncated } = await drain(agent, resumed.cursor);
  const all = new Set([...resumed.events.map(({ data }) => data.ref), ...refs]);
  assert.ok(all.has('refs/heads/unread') && all.has('refs/heads/between'), [...all].join());
  assert.equal(isTruncated, false);
  assert.equal((await lanesOf(agent)).filter(({ ended }) => ended === null).length, 1);
});

test('a cursor from before two expiries still misses nothing, and the replay runs once', async () => {
  const agent = await createAgent();
  const { cursor } = await poll(agent, {});
  await add(agent, 'first');
  await expire(agent, 5);
  await poll(agent, {});
  await add(agent, 'second');
  await expire(agent, 5);
  await add(agent, 'third');
  await Promise.all([poll(agent, { cursor }), poll(agent, { cursor }), poll(agent, { cursor })]);
  const { refs } = await drain(agent, cursor);
  for (const ref of refsOf(['first', 'second', 'third'])) assert.ok(refs.includes(ref), `${ref} in ${refs}`);
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from recoveries r join agent_subscriptions a on a.lane = r.lane
    where a.grant_id = ${agent.grantId} and a.ended_at is null`.execute(db);
  assert.ok((rows[0]?.count ?? 0) <= 3);
});

test('agents 51: what retention has dropped, or maxAgeMs leaves out, is told as truncated', async () => {
  const agent = await createAgent();
  const { cursor } = await poll(agent, {});
  await add(agent, 'old');
  await sql`update events set created_at = now() - interval '2 hours' where account_id = ${agent.account.id}`.execute(
    db,
  );
  await add(agent, 'new');
  const young = await drain(agent, cursor, { maxAgeMs: 3_600_000 });
  assert.deepEqual(young, { refs: refsOf(['new']), cursor: young.cursor, isTruncated: true });
  const all = await drain(agent, cursor);
  assert.deepEqual([all.refs, all.isTruncated], [refsOf(['old', 'new']), false]);
  const [{ lane } = { lane: '' }] = await lanesOf(agent);
  await sql`delete from deliveries where lane = ${lane} and sequence = 1`.execute(db);
  const dropped = await drain(agent, cursor);
  assert.deepEqual([dropped.refs, dropped.isTruncated], [refsOf(['new']), true]);
});

test('agents 51: a cursor whose lane was forgotten is truncated, and never an error', async () => {
  const agent = await createAgent();
  const { cursor } = await poll(agent, {});
  await add(agent, 'kept');
  await expire(agent, 5);
  const [{ id } = { id: '' }] = await lanesOf(agent);
  await sql`delete from subscriptions where id = ${id}`.execute(db);
  const { refs, isTruncated } = await drain(agent, cursor);
  assert.equal(isTruncated, true);
  assert.deepEqual(
    refs.filter((ref) => ref !== 'refs/heads/kept'),
    [],
  );
});

test('a lane is used up to the hour without being written, and then lives on', async () => {
  const agent = await createAgent();
  const { cursor } = await poll(agent, {});
  const expiry = async () => (await lanesOf(agent))[0]?.expires_at.getTime() ?? 0;
  const before = await expiry();
  await poll(agent, { cursor });
  assert.equal(await expiry(), before);
  await sql`
    update agent_subscriptions set expires_at = expires_at - interval '2 hours'
    where grant_id = ${agent.grantId}`.execute(db);
  await poll(agent, { cursor });
  assert.ok((await expiry()) >= before);
});

test('agents 36: too many kinds and arguments at once are ResourceExhausted', async () => {
  const agent = await createAgent();
  for (let index = 0; index < 20; index += 1) await poll(agent, { arguments: { ref: String(index) } });
  const error = await refused(agent, { arguments: { ref: 'one more' } });
  assert.equal(error.code, -32_013);
  assert.deepEqual(error.data, { limit: 'grant_subscriptions', max: 20 });
  assert.deepEqual((await poll(agent, { arguments: { ref: '7' } })).events, []);
});

test('agents 81: polls during a withdrawal have what was allowed, or are refused; nothing lives on', async () => {
  const agent = await createAgent();
  const { cursor } = await poll(agent, {});
  await add(agent, 'x');
  const ask = () => callMcp(server, agent.token, 'events/poll', { name: 'push', cursor });
  const fresh = (index: number) =>
    callMcp(server, agent.token, 'events/poll', { name: 'push', arguments: { ref: String(index) } });
  const asking = Array.from({ length: 15 }, (_, index) => (index % 2 === 0 ? ask() : fresh(index)));
  await withdrawGrant(db, agent.grantId, 'user');
  for (const { status, body } of await Promise.all(asking)) {
    if (status === 401) continue;
    assert.ok(body.result !== undefined || body.error.data.reason === 'access_revoked', JSON.stringify(body));
  }
  assert.deepEqual(
    (await lanesOf(agent)).filter(({ ended }) => ended !== 'revoked'),
    [],
  );
  const { status } = await until(ask, (answer) => answer.status !== 200);
  assert.equal(status, 401);
});

test('a suspended app gets Forbidden, and continues where it was', async () => {
  const app = await createTestClient(server);
  const account = await createTestAccount(server);
  const { accessToken: token, grantId } = await mcpToken(server, { account, client: app, scopes });
  const agent = { account, token, grantId: grantId as string };
  const { cursor } = await poll(agent, {});
  await sql`update subscriptions set state = 'disabled' where grant_id = ${grantId}`.execute(db);
  const error = await refused(agent, { cursor });
  assert.deepEqual([error.code, error.message, error.data], [-32_012, 'Forbidden', { reason: 'suspended' }]);
  await sql`update subscriptions set state = 'active' where grant_id = ${grantId}`.execute(db);
  await add(agent, 'x');
  assert.deepEqual((await drain(agent, cursor)).refs, refsOf(['x']));
});

test('a cursor beyond what a failover left is truncated, and continues at the head', async () => {
  const agent = await createAgent();
  const { cursor } = await poll(agent, {});
  await add(agent, 'a', 'b');
  const read = await drain(agent, cursor);
  const lanes = sql`(select lane from agent_subscriptions where grant_id = ${agent.grantId})`;
  await sql`delete from deliveries where lane = any(${lanes}) and sequence > 1`.execute(db);
  await sql`update lanes set next_sequence = 2, day = null where id = any(${lanes})`.execute(db);
  const page = await poll(agent, { cursor: read.cursor });
  assert.deepEqual([page.events, page.truncated], [[], true]);
  assert.equal((await poll(agent, { cursor: page.cursor })).truncated, false);
});

test('attack: cursors of ended lanes, sent many times at once, leave the database to others', async () => {
  const agent = await createAgent();
  const { cursor } = await poll(agent, {});
  await add(agent, 'one');
  await expire(agent);
  await poll(agent, {});
  const { promise: areAsked, resolve: free } = Promise.withResolvers<void>();
  const isLocked = Promise.withResolvers<void>();
  const locking = db.transaction().execute(async (tx) => {
    await sql`lock table retries in access exclusive mode`.execute(tx);
    isLocked.resolve();
    await areAsked;
  });
  await isLocked.promise;
  let refusals = 0;
  const asked = Array.from({ length: 10 }, async () => {
    const { body } = await callMcp(server, agent.token, 'events/poll', { name: 'push', cursor });
    if (body.error?.data.limit === 'replays') refusals += 1;
  });
  // Two look, and four wait for their turn.
  await until(
    async () => refusals,
    (count) => count === 4,
  );
  const { rows } = await sql`
    select from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock' and query like '%unfinished as materialized%'`.execute(
    db,
  );
  free();
  await Promise.all([locking, ...asked]);
  assert.equal(rows.length, 2);
  assert.equal(refusals, 4);
});
