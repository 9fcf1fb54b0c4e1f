/** Deliveries to agents: occurrences, expiry, holds of callbacks that fail, and the message that access was revoked. */

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import type { ServerResponse } from 'node:http';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { Webhook } from 'standardwebhooks';
import { withdrawGrant } from '../../../src/grants/grant.ts';
import { policyOf } from '../../../src/webhooks/sending/delivery_policy.ts';
import { AgentCursors } from '../../../src/webhooks/subscriptions/agent_cursor.ts';
import { holdFailingAgents } from '../../../src/webhooks/subscriptions/agent_hold.ts';
import { agentKey } from '../../../src/webhooks/subscriptions/agent_key.ts';
import {
  type AgentSubscription,
  findAgentSubscription,
  unsubscribeAgent,
} from '../../../src/webhooks/subscriptions/agent_subscription.ts';
import { declareKinds, endRemovedKinds } from '../../../src/webhooks/subscriptions/removed_kinds.ts';
import { startTestServer, testSecret } from '../../support/servers/server.ts';
import { addAgentWebhook, agentSecret } from '../../support/webhooks/agents.ts';
import {
  type App,
  createApp,
  createPublisher,
  fannedOut,
  publish,
  until,
} from '../../support/webhooks/apps.ts';
import { accept, answer, type Received, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);
const cursors = new AgentCursors(testSecret);

const verified = ({ headers, body }: Received, secret = agentSecret) =>
  // biome-ignore lint/suspicious/noExplicitAny: tests read what was sent
  new Webhook(secret).verify(body, headers as Record<string, string>) as any;

async function untilSent(app: App): Promise<void> {
  await publish(publisher, app.account, [randomUUID()]);
  await fannedOut(server);
}

/** Another subscriber, whose delivery shows that the engine has come past this event. */
async function witness(t: Parameters<typeof startSubscriber>[0], app: App) {
  const subscriber = await startSubscriber(t);
  await addAgentWebhook(server, app, subscriber.url);
  return subscriber;
}

const readState = async ({ id }: Pick<AgentSubscription, 'id'>) => {
  const { rows } = await sql<{ held: boolean; reason: string | null; untold: boolean; gap: boolean }>`
    select held_at is not null as held, end_reason as reason, last_secret is not null as untold, gap_at is not null as gap
    from agent_subscriptions where id = ${id}`.execute(db);
  return rows[0];
};

test('agents 27, 43: an occurrence is verified by Standard Webhooks and names its event and its subscription', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { key, lane } = await addAgentWebhook(server, app, `${subscriber.url}/mcp?a=1`);
  await untilSent(app);
  const [received] = (await subscriber.waitFor(1)) as [Received];
  const occurrence = verified(received);
  assert.deepEqual(Object.keys(occurrence), ['eventId', 'name', 'timestamp', 'data', 'cursor']);
  assert.equal(occurrence.name, 'push');
  assert.equal(occurrence.data.repository.name, 'example');
  assert.equal(received.headers['webhook-id'], occurrence.eventId);
  assert.equal(received.headers['x-mcp-subscription-id'], key);
  assert.equal(received.headers['content-type'], 'application/json');
  assert.match(String(received.headers['webhook-signature']), /^v1,[A-Za-z0-9+/]{43}=$/);
  assert.ok(Math.abs(Number(received.headers['webhook-timestamp']) - received.at / 1_000) < 300, 'seconds');
  assert.equal(received.path, '/mcp?a=1');
  const binding = { grantId: app.grantId, name: 'push', arguments: '{}' };
  const place = cursors.read(binding, occurrence.cursor);
  assert.deepEqual([place?.lane, place?.sequence], [lane, 1]);
  assert.equal(cursors.read({ ...binding, grantId: randomUUID() }, occurrence.cursor), undefined);
});

test('the log of a delivery to an agent shows the request that was sent', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id, key } = await addAgentWebhook(server, app, subscriber.url);
  await untilSent(app);
  const [received] = (await subscriber.waitFor(1)) as [Received];
  const list = await until(
    async () => (await app.request('GET', `/subscriptions/${id}/deliveries`)).body.items,
    (items) => items[0]?.state === 'succeeded',
  );
  const { body } = await app.request('GET', `/deliveries/${list[0].id}`);
  const { headers } = body.attempts[0].request;
  assert.equal(headers['x-mcp-subscription-id'], key);
  assert.equal(headers['webhook-id'], received.headers['webhook-id']);
  assert.equal(headers['webhook-signature'], 'v1,***');
});

test('agents 80: a subscription of an agent can be read and ended at /subscriptions, and nothing else', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await addAgentWebhook(server, app, subscriber.url);
  const path = `/subscriptions/${id}`;
  const { format, _links: links } = (await app.request('GET', path)).body;
  assert.deepEqual([format, Object.keys(links)], ['agent', ['self', 'deliveries', 'health']]);
  const refused: [method: string, path: string, json?: object][] = [
    ['GET', `${path}/secret`],
    ['POST', `${path}/rotate-secret`, {}],
    ['PATCH', path, { url: `${subscriber.url}/elsewhere` }],
    ['POST', `${path}/test`, {}],
    ['POST', `${path}/recover`, { since: '2026-01-01T00:00:00Z' }],
  ];
  for (const [method, where, json] of refused) {
    const { status, body } = await app.request(method, where, json === undefined ? {} : { json });
    assert.deepEqual([status, body.code], [409, 'subscription-of-an-agent'], where);
  }
  assert.equal((await app.request('DELETE', path)).status, 204);
  // Its user or app ended it, and the agent did not.
  const [message] = (await subscriber.waitFor(1)) as [Received];
  assert.equal(verified(message).type, 'terminated');
});

test('agents 46: 410 and 413 end one delivery, and the next is sent', async (t) => {
  const subscriber = await startSubscriber(t, answer(410));
  const app = await createApp(server);
  const { id } = await addAgentWebhook(server, app, subscriber.url);
  for (const [index, status] of [410, 413].entries()) {
    subscriber.behave(answer(status));
    await untilSent(app);
    await subscriber.waitFor(index + 1);
  }
  subscriber.behave(answer(204));
  await untilSent(app);
  await subscriber.waitFor(3);
  const items = await until(
    async () => (await app.request('GET', `/subscriptions/${id}/deliveries`)).body.items,
    (found) => found.filter(({ state }: { state: string }) => state === 'succeeded').length === 1,
  );
  const states = items.map(({ state, attempt_count: count }: Record<string, unknown>) => [state, count]);
  assert.deepEqual(
    states.toSorted(),
    [
      ['failed', 1],
      ['failed', 1],
      ['succeeded', 1],
    ].toSorted(),
  );
  assert.equal((await app.request('GET', `/subscriptions/${id}`)).body.state, 'active');
});

test('agents 45: only a 2xx succeeds, and redirects are not followed', async (t) => {
  const target = await startSubscriber(t);
  const subscriber = await startSubscriber(t, ({ path }, response) => {
    response.writeHead(Number(path.slice(1)), { location: target.url }).end();
  });
  const app = await createApp(server);
  const statuses = [200, 202, 204, 300, 301, 307, 400, 500];
  const ids: string[] = [];
  for (const status of statuses)
    ids.push((await addAgentWebhook(server, app, `${subscriber.url}/${status}`)).id);
  await untilSent(app);
  await subscriber.waitFor(statuses.length);
  for (const [index, id] of ids.entries()) {
    const [delivery] = await until(
      async () => (await app.request('GET', `/subscriptions/${id}/deliveries`)).body.items,
      (items) => items[0]?.attempt_count === 1,
    );
    const status = statuses[index] as number;
    assert.equal(delivery.state, status < 300 ? 'succeeded' : 'pending', String(status));
  }
  assert.equal(target.received.length, 0);
  assert.equal(policyOf('agent').timeoutMs, 10_000);
});

test('agents 42: an occurrence above 262,144 bytes is not sent, and later ones are', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const { id } = await addAgentWebhook(server, app, subscriber.url);
  // What is added around the body exceeds the limit, which bodies of events have, too.
  const bodyOf = (lengths: number[]) => {
    const commits = lengths.map((length) => ({ id: 'a', message: 'x'.repeat(length) }));
    return { ref: 'refs/heads/main', commits, repository: { name: 'example' } };
  };
  const lengths = Array.from({ length: 53 }, () => 4_800);
  const missing = 262_100 - JSON.stringify(bodyOf([...lengths, 0])).length;
  const body = bodyOf([...lengths, missing]);
  const json = [{ kind: 'push', account: app.account.id, body }];
  const published = await publisher('POST', '/events', { json });
  assert.equal(published.status, 202, published.text);
  await untilSent(app);
  const [received] = (await subscriber.waitFor(1)) as [Received];
  assert.ok(received.body.length < 1_000);
  const items = await until(
    async () => (await app.request('GET', `/subscriptions/${id}/deliveries`)).body.items,
    (found) => found.every(({ state }: { state: string }) => state !== 'pending'),
  );
  const states = items.map(({ state }: { state: string }) => state);
  assert.deepEqual(states.toSorted(), ['failed', 'succeeded']);
  const failed = items.find(({ state }: { state: string }) => state === 'failed');
  const { attempts } = (await app.request('GET', `/deliveries/${failed.id}`)).body;
  assert.deepEqual([attempts.length, attempts[0].error], [1, 'body_too_large']);
});

test('agents 47: nothing is sent after expiry, before and after the sweep', async (t) => {
  const [subscriber, app] = [await startSubscriber(t), await createApp(server)];
  const { id, lane } = await addAgentWebhook(server, app, subscriber.url);
  await untilSent(app);
  await subscriber.waitFor(1);
  await sql`update agent_subscriptions set expires_at = now() + interval '1 second' where id = ${id}`.execute(
    db,
  );
  await sql`select notify_lane_changed(${lane})`.execute(db);
  await until(
    async () =>
      (
        await sql<{
          over: boolean;
        }>`select expires_at < now() as over from agent_subscriptions where id = ${id}`.execute(db)
      ).rows[0]?.over,
    (over) => over === true,
  );
  const other = await witness(t, app);
  await untilSent(app);
  await other.waitFor(1);
  assert.equal(subscriber.received.length, 1);
});

test('agents 55: withdrawal ends a subscription with one signed message, and nothing else is sent', async (t) => {
  const [subscriber, app] = [await startSubscriber(t), await createApp(server)];
  const { id, key } = await addAgentWebhook(server, app, subscriber.url);
  await untilSent(app);
  await subscriber.waitFor(1);
  await withdrawGrant(db, app.grantId, 'user');
  const { rows } = await sql<{ state: string }>`select state from subscriptions where id = ${id}`.execute(db);
  assert.equal(rows[0]?.state, 'ended');
  const [, message] = (await subscriber.waitFor(2)) as [Received, Received];
  assert.deepEqual(verified(message), {
    type: 'terminated',
    error: { code: -32_012, message: 'Forbidden', data: { reason: 'access_revoked' } },
  });
  assert.match(String(message.headers['webhook-id']), /^msg_terminated_[0-9a-f]{24}$/);
  assert.equal(message.headers['x-mcp-subscription-id'], key);
  assert.equal((await readState({ id }))?.untold, false);
  // Of another app of the user: what is sent later shows that nothing else came.
  const other = await createApp(server, { account: app.account });
  const seen = await witness(t, other);
  await untilSent(app);
  await seen.waitFor(1);
  assert.equal(subscriber.received.length, 2);
});

test('agents 55: a callback that fails is told once, and one that unsubscribed is not told', async (t) => {
  const [failing, silent, app] = [
    await startSubscriber(t, answer(500)),
    await startSubscriber(t),
    await createApp(server),
  ];
  const told = await addAgentWebhook(server, app, failing.url);
  const ended = await addAgentWebhook(server, app, silent.url);
  await db.transaction().execute((tx) => unsubscribeAgent(tx, ended.key, 'webhook'));
  await withdrawGrant(db, app.grantId, 'user');
  await failing.waitFor(1);
  const second = await createApp(server);
  const { url, received } = await startSubscriber(t);
  await addAgentWebhook(server, second, url);
  await withdrawGrant(db, second.grantId, 'user');
  await until(
    async () => received.length,
    (count) => count === 1,
  );
  assert.deepEqual([failing.received.length, silent.received.length], [1, 0]);
  assert.deepEqual(
    [(await readState(told))?.reason, (await readState(ended))?.reason],
    ['revoked', 'unsubscribed'],
  );
});

test('agents 55: an account whose callbacks hang does not delay the messages to others', async (t) => {
  const waiting: ServerResponse[] = [];
  const hanging = await startSubscriber(t, (_received, response) => void waiting.push(response));
  const app = await createApp(server);
  for (let index = 0; index < 5; index += 1) await addAgentWebhook(server, app, `${hanging.url}/${index}`);
  await withdrawGrant(db, app.grantId, 'user');
  await hanging.waitFor(2);
  const other = await createApp(server);
  const subscriber = await startSubscriber(t);
  await addAgentWebhook(server, other, subscriber.url);
  await withdrawGrant(db, other.grantId, 'user');
  await subscriber.waitFor(1);
  assert.equal(hanging.received.length, 2);
  hanging.behave(accept);
  for (const response of waiting) response.writeHead(204).end();
  const all = await hanging.waitFor(5);
  assert.equal(new Set(all.map(({ path }) => path)).size, 5);
});

test('agents 26, 55: a kind that no node has declared any more is told once', async (t) => {
  const subscriber = await startSubscriber(t);
  const app = await createApp(server);
  const add = (name: string) => {
    const url = `${subscriber.url}/${name}`;
    const key = agentKey({ principal: app.grantId, url, name, arguments: '{}' });
    return addAgentWebhook(server, app, url, { name, key });
  };
  const seen = (name: string, minutes: number) =>
    sql`insert into declared_kinds values (${name}, now() - make_interval(mins => ${minutes}::int))`.execute(
      db,
    );
  const [removed, missed, kept, unknown, own] = [
    await add('note.removed'),
    await add('note.missed'),
    await add('note.kept'),
    await add('note.unknown'),
    await add('push'),
  ];
  const polled = {
    mode: 'poll' as const,
    url: null,
    name: 'note.removed',
    key: 'sub_polled',
    format: 'json' as const,
  };
  const lane = await addAgentWebhook(server, app, subscriber.url, polled);
  await seen('note.removed', 16);
  await seen('note.missed', 14);
  await seen('note.kept', 16);
  // A node that has the kind was started again.
  await declareKinds(db, ['note.kept']);
  const ended = await Promise.all([endRemovedKinds(db), endRemovedKinds(db)]);
  assert.equal(ended[0] + ended[1], 2);
  const [message] = (await subscriber.waitFor(1)) as [Received];
  assert.equal(message.path, '/note.removed');
  assert.deepEqual(verified(message), {
    type: 'terminated',
    error: { code: -32_011, message: 'NotFound', data: { kind: 'event' } },
  });
  assert.match(String(message.headers['webhook-id']), /^msg_terminated_[0-9a-f]{24}$/);
  for (const each of [removed, lane]) {
    assert.deepEqual((await readState(each))?.reason, 'removed');
    const { rows } = await sql`select from subscriptions where id = ${each.id} and state = 'ended'`.execute(
      db,
    );
    assert.equal(rows.length, 1);
  }
  for (const each of [missed, kept, unknown, own]) assert.equal((await readState(each))?.reason, null);
  // Nothing is left to end, so the name is forgotten.
  assert.equal(await endRemovedKinds(db), 0);
  const { rows } = await sql<{
    name: string;
  }>`select name from declared_kinds where name like 'note.%' order by name`.execute(db);
  assert.deepEqual(
    rows.map(({ name }) => name),
    ['note.kept', 'note.missed'],
  );
  await withdrawGrant(db, app.grantId, 'user');
  const all = await subscriber.waitFor(5);
  assert.equal(all.filter(({ path }) => path === '/note.removed').length, 1);
});

test('agents 55: a node says at its start which kinds it has', async () => {
  const isDeclared = async () =>
    (
      await sql`select from declared_kinds where name = 'push' and seen_at > now() - interval '1 hour'`.execute(
        db,
      )
    ).rows.length;
  assert.equal(await until(isDeclared, (count) => count === 1), 1);
});

const addAttempts = (lane: number, failures: number, successes: number) =>
  sql`
  insert into attempts (day, lane, sequence, started_at, number, trigger, truncated, revision, duration_ms, error)
  select (now() at time zone 'utc')::date, ${lane}, 1000 + number, now() - interval '10 minutes', 1, 's', false, 1, 1,
    case when number <= ${failures} then 'timeout' end
  from generate_series(1, ${failures + successes}::int) as number`.execute(db);

test('agents 48: deliveries are held above 95 % failures of 100 attempts in an hour, not at it', async () => {
  const app = await createApp(server);
  const { id, key, lane } = await addAgentWebhook(server, app, 'http://127.0.0.1:9/');
  await addAttempts(lane, 95, 5);
  assert.equal(await holdFailingAgents(db, [lane]), 0, 'exactly 95 %');
  await addAttempts(lane, 10, 0);
  assert.equal(await holdFailingAgents(db, [lane]), 1);
  assert.equal((await readState({ id }))?.held, true);
  assert.notEqual((await findAgentSubscription(db, key, 'webhook'))?.heldAt, null);
  assert.equal(await holdFailingAgents(db, [lane]), 0);
  const few = await addAgentWebhook(server, app, 'http://127.0.0.1:9/few');
  await addAttempts(few.lane, 99, 0);
  assert.equal(await holdFailingAgents(db, [few.lane]), 0);
});

test('agents 48: the engine holds a callback that keeps failing, and sends nothing more', async (t) => {
  const [subscriber, app] = [await startSubscriber(t, answer(500)), await createApp(server)];
  const { id, lane } = await addAgentWebhook(server, app, subscriber.url);
  await addAttempts(lane, 100, 0);
  await sql`update lane_progress set failures = 19 where lane = ${lane}`.execute(db);
  await untilSent(app);
  await subscriber.waitFor(1);
  await until(
    () => readState({ id }),
    (state) => state?.held === true,
  );
  subscriber.behave(accept);
  const other = await witness(t, app);
  await untilSent(app);
  await other.waitFor(1);
  assert.equal(subscriber.received.length, 1);
});

test('agents 52: an agent whose events were lost is told once it accepts that', async (t) => {
  const [subscriber, app] = [await startSubscriber(t), await createApp(server)];
  const { id, key, lane } = await addAgentWebhook(server, app, subscriber.url);
  await sql`update agent_subscriptions set gap_at = now() where id = ${id}`.execute(db);
  const [message] = (await subscriber.waitFor(1)) as [Received];
  const { type, cursor } = verified(message);
  assert.equal(type, 'gap');
  assert.match(String(message.headers['webhook-id']), /^msg_gap_[0-9a-f]{24}$/);
  assert.equal(message.headers['x-mcp-subscription-id'], key);
  assert.equal(cursors.read({ grantId: app.grantId, name: 'push', arguments: '{}' }, cursor)?.lane, lane);
  await until(
    () => readState({ id }),
    (state) => state?.gap === false,
  );
});

test('a server that stops gives its lanes back while an agent does not respond', async (t) => {
  const stopping = await startTestServer(t);
  const responses: ServerResponse[] = [];
  const subscriber = await startSubscriber(t, (_received, response) => responses.push(response));
  const app = await createApp(stopping);
  await addAgentWebhook(stopping, app, subscriber.url);
  await withdrawGrant(stopping.db, app.grantId, 'user');
  await subscriber.waitFor(1);
  const closed = stopping.running.close();
  const countNodes = async () => (await sql`select from nodes`.execute(stopping.db)).rows.length;
  await until(countNodes, (count) => count === 0);
  assert.equal(responses[0]?.closed, false, 'the agent has not responded');
  for (const response of responses) response.writeHead(204).end();
  await closed;
});
