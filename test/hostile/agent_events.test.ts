/** Attacks on events for agents: polls, streams and cursors. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { withdrawGrant } from '../../src/grants/grant.ts';
import { callMcp, mcpToken, statelessHeaders, statelessMeta } from '../support/clients/mcp_client.ts';
import { openMcpStream } from '../support/clients/mcp_stream.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../support/clients/oauth.ts';
import { timesAsMuch } from '../support/processor_time.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createPublisher, fannedOut, publish } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);
const client = await createTestClient(server);
const scopes = ['read:posts'];

async function createAgent() {
  const account = await createTestAccount(server);
  const { accessToken: token, grantId } = await mcpToken(server, { account, client, scopes });
  return { account, token, grantId: grantId as string };
}

const poll = ({ token }: { token: string }, params: object = {}) =>
  callMcp(server, token, 'events/poll', { name: 'push', ...params });

async function countLanes(): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int as count from agent_subscriptions where ended_at is null`.execute(db);
  return rows[0]?.count ?? 0;
}

test('text in arguments neither widens a filter nor breaks the fan-out of others', async () => {
  const [attacker, other] = [await createAgent(), await createAgent()];
  const texts = [
    `" || true || "`,
    `x") || exists($.ref`,
    `'; drop table events; --`,
    `\\" == "\\`,
    '$.ref',
    '\u2028',
  ];
  const cursors = new Map<string, string>();
  for (const ref of texts) {
    cursors.set(ref, (await poll(attacker, { arguments: { ref } })).body.result.cursor);
  }
  const first = await poll(other);
  await publish(publisher, attacker.account, ['plain']);
  await publish(publisher, other.account, ['plain']);
  await fannedOut(server);
  for (const [ref, cursor] of cursors) {
    const { body } = await poll(attacker, { arguments: { ref }, cursor });
    assert.deepEqual(body.result.events, [], ref);
  }
  const { body } = await poll(other, { cursor: first.body.result.cursor });
  assert.equal(body.result.events.length, 1);
});

test('a flood of kinds and arguments, also concurrent, makes no more lanes than the quota', async () => {
  const agent = await createAgent();
  const before = await countLanes();
  const answers = await Promise.all(
    Array.from({ length: 60 }, (_, index) => poll(agent, { arguments: { ref: `flood ${index}` } })),
  );
  const refused = answers.filter(({ body }) => body.error !== undefined);
  assert.equal(refused.length, 40);
  for (const { body } of refused) assert.equal(body.error.message, 'ResourceExhausted');
  assert.equal((await countLanes()) - before, 20);
});

test('requests that are refused make no lane', async () => {
  const agent = await createAgent();
  const before = await countLanes();
  const refusals = [{ cursor: 'made up' }, { arguments: { no: 1 } }, { name: 'made.up' }, { maxEvents: -1 }];
  for (const params of refusals) assert.ok((await poll(agent, params)).body.error);
  assert.equal(await countLanes(), before);
});

test('another grant gains nothing by a cursor, an id of a subscription or the token of the API', async () => {
  const [victim, thief] = [await createAgent(), await createAgent()];
  const { cursor } = (await poll(victim)).body.result;
  await publish(publisher, victim.account, ['secret']);
  await fannedOut(server);
  for (const method of ['events/poll', 'events/stream']) {
    const { body } = await callMcp(server, thief.token, method, { name: 'push', cursor });
    assert.deepEqual(body.error.data, { field: 'cursor', reason: 'invalid' });
  }
  const { rows } = await sql<{ key: string }>`
    select key from agent_subscriptions where grant_id = ${victim.grantId}`.execute(db);
  const given = { cursor: null, id: rows[0]?.key, subscription: rows[0]?.key, principal: victim.grantId };
  assert.deepEqual((await poll(thief, given)).body.result.events, []);
  const { accessToken } = await mintAccessToken(server, { account: victim.account, client, scopes });
  assert.equal((await poll({ token: accessToken }, { cursor })).status, 401);
});

test('one cursor sent many times at once after an expiry makes one lane and few replays', async () => {
  const agent = await createAgent();
  const { cursor } = (await poll(agent)).body.result;
  await publish(publisher, agent.account, ['a']);
  await fannedOut(server);
  await sql`update agent_subscriptions set expires_at = now() where grant_id = ${agent.grantId}`.execute(db);
  const answers = await Promise.all(Array.from({ length: 20 }, () => poll(agent, { cursor })));
  for (const { body } of answers) {
    // Too many replays at once are refused for a moment.
    assert.ok(body.result !== undefined || body.error.data.limit === 'replays', JSON.stringify(body));
  }
  const { rows } = await sql<{ lanes: number; running: number }>`
    select count(distinct a.id)::int as lanes, count(r.id)::int as running
    from agent_subscriptions a left join recoveries r on r.lane = a.lane
    where a.grant_id = ${agent.grantId} and a.ended_at is null`.execute(db);
  assert.equal(rows[0]?.lanes, 1);
  assert.ok((rows[0]?.running ?? 0) <= 3);
});

test('streams of a withdrawn grant end, and no request of it makes a lane again', async () => {
  const agent = await createAgent();
  const streams = await Promise.all(
    [1, 2, 3].map((ref) =>
      openMcpStream(server, agent.token, 'events/stream', { name: 'push', arguments: { ref: String(ref) } }),
    ),
  );
  const asking = Promise.all(Array.from({ length: 10 }, () => poll(agent)));
  await withdrawGrant(db, agent.grantId, 'user');
  await asking;
  for (const stream of streams) {
    assert.ok(await stream.until('notifications/events/terminated'));
    assert.ok((await stream.next()).result);
  }
  const { rows } = await sql`
    select from agent_subscriptions where grant_id = ${agent.grantId} and ended_at is null`.execute(db);
  assert.equal(rows.length, 0);
});

test('polls that share a statement keep their grants apart, also when some are withdrawn meanwhile', async () => {
  const agents = await Promise.all(Array.from({ length: 12 }, createAgent));
  const cursors = await Promise.all(agents.map(async (agent) => (await poll(agent)).body.result.cursor));
  // Every other one has an event of its own.
  for (const [index, { account }] of agents.entries()) {
    if (index % 2 === 0) await publish(publisher, account, [`own ${index}`]);
  }
  await fannedOut(server);
  const pollAll = () =>
    Promise.all(agents.map((agent, index) => poll(agent, { cursor: cursors[index] as string })));
  for (const [index, { body }] of (await pollAll()).entries()) {
    const refs = body.result.events.map(({ data }: { data: { ref: string } }) => data.ref);
    assert.deepEqual(refs, index % 2 === 0 ? [`refs/heads/own ${index}`] : []);
  }
  const asking = pollAll();
  await Promise.all(agents.slice(0, 4).map(({ grantId }) => withdrawGrant(db, grantId, 'user')));
  await asking;
  for (const [index, { status, body }] of (await pollAll()).entries()) {
    if (index >= 4) assert.equal(body.result.events.length, index % 2 === 0 ? 1 : 0);
    // A node learns of a withdrawal within a second. Until then, there is no lane for the grant.
    else assert.ok(status === 401 || body.error.data.reason === 'access_revoked', JSON.stringify(body));
  }
});

test('a page of events takes about as long, whatever their bodies have', async () => {
  const agent = await createAgent();
  const length = 180_000;
  // To parse objects takes long if each has a name of its own.
  const hard = Array.from({ length: length / 16 }, (_, index) => ({ [`a${index}`]: 1 }));
  const pages: string[] = [];
  for (const more of ['x'.repeat(length), hard]) {
    const { body } = await poll(agent);
    pages.push(body.result.cursor);
    const event = JSON.stringify({
      ref: 'refs/heads/1',
      commits: [{ id: '1', message: '', more }],
      repository: { name: 'x' },
    });
    await sql`
      with event as (
        insert into events (id, account_id, kind, body)
        select 'e' || position || random(), ${agent.account.id}, 'push', replace(${event}, '"a', '"a' || position || '_')
        from generate_series(1, 60) as position
        returning day, position
      )
      insert into outbox (day, turn, positions) select day, ${agent.account.id}::uuid, array[position] from event`.execute(
      db,
    );
    await fannedOut(server);
  }
  const read = async (cursor: string | undefined) => {
    const params = { _meta: statelessMeta, name: 'push', cursor, maxEvents: 5 };
    const response = await fetch(`${server.baseUrl}/mcp`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        authorization: `Bearer ${agent.token}`,
        ...statelessHeaders('events/poll'),
      },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'events/poll', params }),
    });
    return response.text();
  };
  // Another page each time: JSON.parse knows the names that it has seen.
  const readNext = async (index: number) => {
    const text = await read(pages[index]);
    assert.equal(text.match(/"eventId"/g)?.length, 5);
    pages[index] = /"cursor":"([^"]+)","truncated"/.exec(text)?.[1] as string;
  };
  const ratio = await timesAsMuch(
    () => readNext(1),
    () => readNext(0),
  );
  assert.ok(ratio < 4, `${ratio} times as long`);
});
