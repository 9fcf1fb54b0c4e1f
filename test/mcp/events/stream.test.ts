/** `events/stream`: its messages, what ends it, and its limits. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import pg from 'pg';
import { withdrawGrant } from '../../../src/grants/grant.ts';
import { callMcp, mcpToken, statelessHeaders, statelessMeta } from '../../support/clients/mcp_client.ts';
import { type McpStream, openMcpStream } from '../../support/clients/mcp_stream.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { startTestServer, type TestServer } from '../../support/servers/server.ts';
import { createPublisher, fannedOut, publish, until } from '../../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);
const client = await createTestClient(server);
const scopes = ['read:posts', 'read:profile'];
const subscriptionId = 'io.modelcontextprotocol/subscriptionId';
const prefix = 'notifications/events';

async function createAgent(at: TestServer = server, app = client) {
  const account = await createTestAccount(at);
  const { accessToken: token, grantId } = await mcpToken(at, { account, client: app, scopes });
  return { account, token, grantId: grantId as string };
}

type Agent = Awaited<ReturnType<typeof createAgent>>;

const open = ({ token }: Agent, params: object = {}, options = {}): Promise<McpStream> =>
  openMcpStream(server, token, 'events/stream', { name: 'push', cursor: null, ...params }, options);

test('agents 54: a stream begins with active, then sends events, each under the id of the request', async () => {
  const agent = await createAgent();
  const stream = await open(agent, {}, { id: 17 });
  assert.match(stream.response.headers.get('content-type') ?? '', /^text\/event-stream/);
  assert.equal(stream.response.headers.get('x-accel-buffering'), 'no');
  const { params, ...active } = await stream.next();
  assert.deepEqual(active, { jsonrpc: '2.0', method: `${prefix}/active` });
  const { cursor, ...others } = params;
  assert.equal(typeof cursor, 'string');
  assert.deepEqual(others, { truncated: false, _meta: { [subscriptionId]: 17 } });
  await publish(publisher, agent.account, ['a', 'b']);
  const first = await stream.next();
  assert.equal(first.method, `${prefix}/event`);
  assert.deepEqual(Object.keys(first.params), ['eventId', 'name', 'timestamp', 'data', 'cursor', '_meta']);
  assert.equal(first.params.data.ref, 'refs/heads/a');
  assert.equal((await stream.next()).params.data.ref, 'refs/heads/b');
  stream.close();
  // Its cursors work for polls as well, and the reverse.
  const polled = await callMcp(server, agent.token, 'events/poll', {
    name: 'push',
    cursor: first.params.cursor,
  });
  assert.deepEqual(
    polled.body.result.events.map(({ data }: { data: { ref: string } }) => data.ref),
    ['refs/heads/b'],
  );
  const again = await open(agent, { cursor: first.params.cursor });
  assert.equal((await again.until(`${prefix}/event`)).params.data.ref, 'refs/heads/b');
  again.close();
});

test('agents 54: a stream without events has heartbeats with a cursor to continue from', async () => {
  const agent = await createAgent();
  const stream = await open(agent);
  await stream.until(`${prefix}/active`);
  const { params, ...heartbeat } = await stream.next();
  stream.close();
  assert.deepEqual(heartbeat, { jsonrpc: '2.0', method: `${prefix}/heartbeat` });
  assert.deepEqual(Object.keys(params), ['cursor', '_meta']);
  assert.deepEqual(params._meta, { [subscriptionId]: 'stream-1' });
  await publish(publisher, agent.account, ['after the heartbeat']);
  await fannedOut(server);
  const { body } = await callMcp(server, agent.token, 'events/poll', { name: 'push', cursor: params.cursor });
  assert.equal(body.result.events[0].data.ref, 'refs/heads/after the heartbeat');
});

test('agents 54: an error comes as a response before the stream', async () => {
  const agent = await createAgent();
  const { body } = await callMcp(server, agent.token, 'events/stream', { name: 'made.up' });
  assert.equal(body.error.message, 'NotFound');
  const invalid = await callMcp(server, agent.token, 'events/stream', { name: 'push', cursor: 'made up' });
  assert.deepEqual(invalid.body.error.data, { field: 'cursor', reason: 'invalid' });
});

test('agents 54, 81: a withdrawal terminates a stream, which ends with an empty result', async () => {
  const agent = await createAgent();
  const stream = await open(agent);
  await stream.next();
  await withdrawGrant(db, agent.grantId, 'user');
  const { method, params } = await stream.next();
  assert.equal(method, `${prefix}/terminated`);
  assert.deepEqual(params, {
    error: { code: -32_012, message: 'Forbidden', data: { reason: 'access_revoked' } },
    _meta: { [subscriptionId]: 'stream-1' },
  });
  const last = await stream.next();
  assert.deepEqual([last.id, last.result.resultType], ['stream-1', 'complete']);
  assert.equal(last.result._meta[subscriptionId], 'stream-1');
  assert.equal(await stream.next(), undefined);
});

test('agents 81: events that commit with a withdrawal or after it never reach a stream', async () => {
  for (let round = 0; round < 5; round += 1) {
    const agent = await createAgent();
    const stream = await open(agent);
    await stream.next();
    await withdrawGrant(db, agent.grantId, 'user');
    await publish(publisher, agent.account, ['late']);
    const methods: string[] = [];
    for (let message = await stream.next(); message !== undefined; message = await stream.next()) {
      methods.push(message.method ?? 'result');
    }
    assert.deepEqual(methods, [`${prefix}/terminated`, 'result']);
  }
});

const ends: Record<string, (agent: Agent) => Promise<unknown>> = {
  'the user deletes its subscription': ({ grantId }) =>
    sql`update subscriptions set state = 'ended', ended_at = now() where grant_id = ${grantId}`.execute(db),
  'the grant loses the scope': ({ grantId }) =>
    sql`update grants set scopes = array_remove(scopes, 'read:posts') where id = ${grantId}`.execute(db),
  'the account is disabled': ({ account }) =>
    sql`update accounts set disabled_at = now() where id = ${account.id}`.execute(db),
};

for (const [how, end] of Object.entries(ends)) {
  test(`agents 81: a stream is terminated when ${how}`, async () => {
    const agent = await createAgent();
    const stream = await open(agent);
    await stream.next();
    await end(agent);
    assert.equal((await stream.next()).method, `${prefix}/terminated`);
    assert.equal((await stream.next()).id, 'stream-1');
  });
}

test('agents 54: a stream of a suspended app ends with an error', async () => {
  const agent = await createAgent();
  const stream = await open(agent);
  await stream.next();
  await sql`update subscriptions set state = 'disabled' where grant_id = ${agent.grantId}`.execute(db);
  const { method, params } = await stream.next();
  assert.equal(method, `${prefix}/error`);
  assert.deepEqual(params.error.data, { reason: 'suspended' });
});

test('agents 56: a stream whose token ends has an empty result, and its lane lives on', async () => {
  const agent = await createAgent();
  const { account, grantId } = agent;
  const short = { exp: Math.floor(Date.now() / 1_000) + 2, aud: `${server.baseUrl}/mcp` };
  const { accessToken } = await mintAccessToken(server, { account, client, scopes, grantId, claims: short });
  const stream = await open({ ...agent, token: accessToken });
  const active = await stream.next();
  const last = await stream.next();
  assert.deepEqual([last.id, last.method], ['stream-1', undefined]);
  await publish(publisher, account, ['x']);
  await fannedOut(server);
  const { cursor } = active.params;
  const { body } = await callMcp(server, agent.token, 'events/poll', { name: 'push', cursor });
  assert.equal(body.result.events.length, 1);
});

test('agents 52, 54: a gap is another active that is truncated', async () => {
  const agent = await createAgent();
  const { body } = await callMcp(server, agent.token, 'events/poll', { name: 'push', cursor: null });
  await publish(publisher, agent.account, ['a', 'b']);
  await fannedOut(server);
  await sql`
    delete from deliveries d using agent_subscriptions a
    where a.lane = d.lane and a.grant_id = ${agent.grantId} and d.sequence = 1`.execute(db);
  const stream = await open(agent, { cursor: body.result.cursor });
  const messages = [await stream.next(), await stream.next(), await stream.next()];
  assert.deepEqual(
    messages.map(({ method, params }) => [method, params.truncated]),
    [
      [`${prefix}/active`, false],
      [`${prefix}/active`, true],
      [`${prefix}/event`, undefined],
    ],
  );
  stream.close();
});

test('agents 54: a cursor of an expired lane streams what came since', async () => {
  const agent = await createAgent();
  const { body } = await callMcp(server, agent.token, 'events/poll', { name: 'push', cursor: null });
  await sql`update agent_subscriptions set expires_at = now() where grant_id = ${agent.grantId}`.execute(db);
  await publish(publisher, agent.account, ['since']);
  await fannedOut(server);
  const stream = await open(agent, { cursor: body.result.cursor });
  assert.equal((await stream.until(`${prefix}/event`)).params.data.ref, 'refs/heads/since');
  stream.close();
});

test('agents 63: older clients stream as well, and end with an empty result', async (context) => {
  const stopping = await startTestServer(context);
  const agent = await createAgent(stopping, await createTestClient(stopping));
  const params = { name: 'push', cursor: null };
  const stream = await openMcpStream(stopping, agent.token, 'events/stream', params, {
    isOlder: true,
    id: 9,
  });
  assert.equal((await stream.next()).method, `${prefix}/active`);
  const closed = stopping.running.close();
  assert.deepEqual(await stream.next(), {
    jsonrpc: '2.0',
    id: 9,
    result: { _meta: { [subscriptionId]: 9 } },
  });
  await closed;
});

test('a token can have 20 event streams, and gets the places of closed ones back', async () => {
  const agent = await createAgent();
  const streams = [];
  for (let count = 0; count < 20; count += 1) {
    streams.push(await open(agent, { arguments: { ref: String(count) } }));
  }
  const refused = await open(agent, { arguments: { ref: '1' } });
  assert.equal(refused.response.status, 429);
  assert.ok(Number(refused.response.headers.get('retry-after')) > 0);
  for (const stream of streams) stream.close();
  for (let status = 429; status === 429; ) {
    const again = await open(agent, { arguments: { ref: '1' } });
    status = again.response.status;
    again.close();
  }
});

test('a refused stream gives its place back', async () => {
  const agent = await createAgent();
  for (let count = 0; count < 25; count += 1) {
    const stream = await open(agent, { arguments: { ref: String(count) } });
    if (count >= 20) {
      const { error } = await stream.next();
      assert.equal(error.code, -32_013);
    }
    stream.close();
  }
});

test('events that come later are sent whatever their age, though old ones are left out', async () => {
  const agent = await createAgent();
  const stream = await open(agent, { maxAgeMs: 0 });
  assert.equal((await stream.next()).method, `${prefix}/active`);
  await publish(publisher, agent.account, ['later']);
  assert.equal((await stream.next()).params.data?.ref, 'refs/heads/later');
  stream.close();
});

test('clients that leave while their stream opens leave no stream behind', async (t) => {
  const agent = await createAgent();
  const database = new pg.Client({ connectionString: server.databaseUrl });
  await database.connect();
  t.after(() => database.end());
  // A new lane waits for the account.
  await database.query('begin');
  await database.query('select from accounts where id = $1 for update', [agent.account.id]);
  const left = Array.from({ length: 20 }, async (_, index) => {
    const aborted = new AbortController();
    const request = fetch(`${server.baseUrl}/mcp`, {
      method: 'POST',
      signal: aborted.signal,
      headers: {
        authorization: `Bearer ${agent.token}`,
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        ...statelessHeaders('events/stream'),
      },
      body: JSON.stringify({
        ...{ jsonrpc: '2.0', id: index, method: 'events/stream' },
        params: { _meta: statelessMeta, name: 'push', cursor: null },
      }),
    });
    await until(
      async () =>
        (
          await sql`select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`.execute(
            db,
          )
        ).rows.length,
      (waiting) => waiting > 0,
    );
    aborted.abort();
    await assert.rejects(request);
  });
  await Promise.all(left);
  await database.query('commit');
  // Each token can have 20 streams.
  const stream = await until(
    async () => {
      const opened = await open(agent);
      if (opened.response.status !== 200) opened.close();
      return opened;
    },
    ({ response }) => response.status === 200,
  );
  stream.close();
});
