/** `events/subscribe`: creation behind a challenge, refreshes, replay by cursor, and what is refused. */

import assert from 'node:assert/strict';
import type { ServerResponse } from 'node:http';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { withdrawGrant } from '../../../src/grants/grant.ts';
import { agentKey } from '../../../src/webhooks/subscriptions/agent_key.ts';
import {
  afterEcho,
  createAgent,
  startCallback,
  subscribeAgent,
  trySubscribe,
  verified,
} from '../../support/clients/agent_callback.ts';
import { callMcp, callOlder } from '../../support/clients/mcp_client.ts';
import { startTestServer } from '../../support/servers/server.ts';
import { agentSecret, otherAgentSecret } from '../../support/webhooks/agents.ts';
import { createApp, createPublisher, fannedOut, publish, until } from '../../support/webhooks/apps.ts';
import { accept, answer, type Received } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after });
const { db } = server;
const publisher = await createPublisher(server);

/** The URL as it is stored. */
const stored = (url: string) => new URL(url).href;
const lifeOf = ({ refreshBefore }: { refreshBefore: string }) =>
  (Date.parse(refreshBefore) - Date.now()) / 1_000;
const refs = (received: Received[]) => received.map(({ body }) => JSON.parse(body).data.ref as string);

async function expire(key: string): Promise<void> {
  const { rows } = await sql`
    update agent_subscriptions set expires_at = now() - interval '1 second' where key = ${key} and ended_at is null returning id`.execute(
    db,
  );
  assert.equal(rows.length, 1);
}

test('agents 28: a subscription has an id, an expiry in whole seconds and a cursor, and receives events', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const result = await subscribeAgent(server, agent, callback.url, { id: 'sub_mine', unknown: 1 });
  const { id, refreshBefore, truncated } = result;
  const identity = { url: stored(callback.url), name: 'push', arguments: '{}' };
  assert.equal(id, agentKey({ principal: agent.grantId, ...identity }));
  assert.match(refreshBefore, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/);
  assert.equal(truncated, false);
  assert.equal('deliveryStatus' in result, false);
  await publish(publisher, agent.account, ['here']);
  const [, sent] = await callback.waitFor(2);
  assert.equal(verified(sent as Received).data.ref, 'refs/heads/here');
  assert.equal(sent?.headers['x-mcp-subscription-id'], id);
});

test('agents 28: arguments choose events by their body', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  await subscribeAgent(server, agent, callback.url, {
    arguments: { ref: ['refs/heads/one', 'refs/heads/two'] },
  });
  await publish(publisher, agent.account, ['zero', 'one', 'three', 'two']);
  await callback.waitFor(3);
  assert.deepEqual(refs(callback.occurrences()).toSorted(), ['refs/heads/one', 'refs/heads/two']);
});

test('agents 30: callbacks that are not on the public internet, or not https, are refused before any request', async () => {
  const agent = await createAgent(server);
  const cases: [url: unknown, reason: string][] = [
    ['https://10.0.0.1/', 'address_not_allowed'],
    ['https://169.254.169.254/latest', 'address_not_allowed'],
    ['https://[fd00::1]/', 'address_not_allowed'],
    ['https://0x7f.1.internal/', 'address_not_allowed'],
    ['ftp://example.com/', 'https_required'],
    ['not a url', 'https_required'],
    ['https://user:password@example.com/', 'invalid_url'],
    ['https://example.com/#fragment', 'invalid_url'],
    ['https://example.com:22/', 'invalid_url'],
    [`https://example.com/${'a'.repeat(2_048)}`, 'too_large'],
    [5, 'invalid_type'],
    [undefined, 'required'],
  ];
  for (const [url, reason] of cases) {
    const { body } = await trySubscribe(server, agent, url);
    assert.deepEqual(
      [body.error?.code, body.error?.message, body.error?.data],
      [-32_602, 'InvalidParams', { field: 'delivery.url', reason }],
      String(url),
    );
  }
});

test('agents 31: secrets have 24 to 64 bytes of base64, and are never shown', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const cases: [secret: unknown, reason: string][] = [
    [undefined, 'required'],
    [7, 'invalid_type'],
    ['whsec_', 'invalid_secret'],
    ['AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=', 'invalid_secret'],
    [`whsec_${Buffer.alloc(23).toString('base64')}`, 'invalid_secret'],
    [`whsec_${Buffer.alloc(65).toString('base64')}`, 'invalid_secret'],
    [`whsec_${Buffer.alloc(32, 255).toString('base64url')}`, 'invalid_secret'],
  ];
  for (const [secret, reason] of cases) {
    const { body } = await trySubscribe(server, agent, callback.url, { delivery: { secret } });
    assert.deepEqual(body.error?.data, { field: 'delivery.secret', reason }, String(secret));
  }
  assert.equal(callback.received.length, 0);
  for (const bytes of [24, 64]) {
    const secret = `whsec_${Buffer.alloc(bytes, 3).toString('base64')}`;
    const { body } = await trySubscribe(server, agent, callback.url, { delivery: { secret } });
    assert.ok(body.result);
    assert.equal(JSON.stringify(body).includes(secret), false);
  }
  const { rows } = await sql<{
    text: string;
  }>`select row_to_json(s)::text as text from subscriptions s`.execute(db);
  assert.equal(
    rows.some(({ text }) => text.includes('whsec_')),
    false,
  );
});

test('agents 59: other modes of delivery are refused by name, and unknown ones are not repeated', async () => {
  const agent = await createAgent(server);
  const ask = async (delivery: object) =>
    (await trySubscribe(server, agent, 'https://hooks.example.com/', { delivery })).body.error;
  const { code, message, data } = await ask({ mode: 'poll' });
  assert.deepEqual([code, message], [-32_014, 'Unsupported']);
  assert.deepEqual(data, { feature: 'deliveryMode', value: 'poll' });
  assert.deepEqual((await ask({ mode: 'carrier pigeon' })).data, { feature: 'deliveryMode' });
  assert.deepEqual((await ask({ mode: undefined })).data, { field: 'delivery.mode', reason: 'required' });
});

test('agents 32: another grant, URL or argument has another id, the order of arguments does not matter', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const other = await createAgent(server, { account: agent.account, client: agent.client });
  const ids = new Set<string>();
  for (const [who, url, given] of [
    [agent, callback.url, {}],
    [other, callback.url, {}],
    [agent, `${callback.url}/other`, {}],
    [agent, callback.url, { arguments: { ref: 'a', 'repository.name': 'b' } }],
    [agent, callback.url, { arguments: { 'repository.name': 'b', ref: 'a' } }],
    [agent, callback.url, { arguments: null }],
  ] as const) {
    ids.add((await subscribeAgent(server, who, url, given)).id);
  }
  assert.equal(ids.size, 4);
});

test('agents 32: concurrent subscriptions with one key make one, with one challenge', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const results = await Promise.all(
    Array.from({ length: 6 }, () => subscribeAgent(server, agent, callback.url)),
  );
  assert.equal(new Set(results.map(({ id }) => id)).size, 1);
  assert.equal(callback.challenges().length, 1);
  const { rows } = await sql`select from agent_subscriptions where key = ${results[0]?.id as string}`.execute(
    db,
  );
  assert.equal(rows.length, 1);
});

test('agents 33: a refresh takes a new secret without a challenge, and both sign for a day', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const first = await subscribeAgent(server, agent, callback.url, { ttlMs: 300_000 });
  callback.behave(accept);
  const delivery = { secret: otherAgentSecret };
  const second = await subscribeAgent(server, agent, callback.url, { delivery, cursor: first.cursor });
  assert.equal(second.id, first.id);
  assert.ok(lifeOf(first) <= 300 && lifeOf(second) > 3_000);
  const { lastDeliveryAt, ...status } = second.deliveryStatus ?? {};
  assert.deepEqual([lastDeliveryAt, status], [null, { active: true, lastError: null }]);
  assert.equal(callback.challenges().length, 1);
  await publish(publisher, agent.account, ['both']);
  const [, sent] = (await callback.waitFor(2)) as [Received, Received];
  assert.deepEqual(verified(sent, otherAgentSecret), verified(sent, agentSecret));
  const [newest, older, ...rest] = String(sent.headers['webhook-signature']).split(' ');
  assert.ok(newest && older && rest.length === 0);
  const only = { ...sent, headers: { ...sent.headers, 'webhook-signature': newest } };
  assert.ok(verified(only, otherAgentSecret));
  assert.throws(() => verified(only, agentSecret));
  const { rows } = await sql<{ hours: number }>`
    select extract(epoch from previous_secret_until - now())::float8 / 3600 as hours
    from subscriptions s join agent_subscriptions a on a.id = s.id where a.key = ${first.id}`.execute(db);
  assert.ok((rows[0]?.hours ?? 0) > 23.9 && (rows[0]?.hours ?? 0) <= 24);
});

test('agents 33: a refresh sends what was held', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const { id } = await subscribeAgent(server, agent, callback.url);
  await sql`update agent_subscriptions set held_at = now() where key = ${id}`.execute(db);
  await sql`select notify_lane_changed(lane) from agent_subscriptions where key = ${id}`.execute(db);
  await publish(publisher, agent.account, ['held']);
  await fannedOut(server);
  // A second subscription receives it, so the first would have.
  const other = await startCallback(t);
  await subscribeAgent(server, agent, other.url);
  await publish(publisher, agent.account, ['later']);
  await until(
    async () => other.occurrences().length,
    (count) => count === 1,
  );
  const { deliveryStatus } = await subscribeAgent(server, agent, callback.url);
  assert.equal(deliveryStatus?.active, true);
  await until(
    async () => callback.occurrences().length,
    (count) => count === 2,
  );
  assert.deepEqual(refs(callback.occurrences()), ['refs/heads/held', 'refs/heads/later']);
});

test('agents 33: after its expiry it is new, starts at its cursor, and has no status', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const first = await subscribeAgent(server, agent, callback.url);
  await publish(publisher, agent.account, ['before']);
  await until(
    async () => callback.occurrences().length,
    (count) => count === 1,
  );
  const { cursor } = verified(callback.occurrences()[0] as Received);
  await expire(first.id);
  await publish(publisher, agent.account, ['while it was expired']);
  const second = await subscribeAgent(server, agent, callback.url, { cursor });
  assert.deepEqual([second.id, second.truncated, 'deliveryStatus' in second], [first.id, false, false]);
  const missed = 'refs/heads/while it was expired';
  await until(
    async () => refs(callback.occurrences()).includes(missed),
    (found) => found,
  );
  assert.equal(callback.challenges().length, 1, 'the URL is remembered for a day');
});

test('agents 34: lifetimes are an hour, at least five minutes and at most a day', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  for (const [ttlMs, seconds] of [
    [undefined, 3_600],
    [1, 300],
    [600_500, 600.5],
    [90_000_000, 86_400],
    [null, 86_400],
  ] as const) {
    const life = lifeOf(await subscribeAgent(server, agent, callback.url, { ttlMs }));
    assert.ok(life <= seconds && life > seconds - 60, `${ttlMs}: ${life}`);
  }
  const { body } = await trySubscribe(server, agent, callback.url, { ttlMs: '60000' });
  assert.deepEqual(body.error.data, { field: 'ttlMs', reason: 'invalid_type' });
});

test('agents 37: the status has the last error by name, and nothing of the response', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const text = 'internal details';
  for (const [status, name] of [
    [301, 'http_4xx'],
    [410, 'http_4xx'],
    [500, 'http_5xx'],
  ] as const) {
    callback.behave(afterEcho((_received, response) => void response.writeHead(status).end(text)));
    const url = `${callback.url}/${status}`;
    await subscribeAgent(server, agent, url);
    await publish(publisher, agent.account, [status]);
    const { deliveryStatus } = await until(
      () => subscribeAgent(server, agent, url),
      ({ deliveryStatus: found }) => found?.lastError !== null,
    );
    const { active, lastDeliveryAt, lastError } = deliveryStatus ?? {};
    assert.deepEqual([active, lastDeliveryAt, lastError], [true, null, name]);
    assert.equal(JSON.stringify(deliveryStatus).includes(text), false);
    assert.ok(Date.parse(String(deliveryStatus?.failedSince)) <= Date.now());
  }
});

test('agents 37: a callback that asks to wait is throttled', async (t) => {
  const [callback, agent] = [
    await startCallback(t, afterEcho(answer(429, { 'retry-after': '120' }))),
    await createAgent(server),
  ];
  await subscribeAgent(server, agent, callback.url);
  await publish(publisher, agent.account, ['later']);
  const { deliveryStatus } = await until(
    () => subscribeAgent(server, agent, callback.url),
    ({ deliveryStatus: found }) => found?.throttled === true,
  );
  assert.ok(Number(deliveryStatus?.retryAfterMs) > 60_000 && Number(deliveryStatus?.retryAfterMs) <= 120_000);
});

test('agents 39: the challenge is a signed message that names the subscription', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const { id } = await subscribeAgent(server, agent, `${callback.url}/hooks?key=1`);
  const [challenge] = callback.received as [Received];
  const { type, challenge: nonce, ...rest } = verified(challenge);
  assert.deepEqual([type, rest], ['verification', {}]);
  assert.ok(nonce.length >= 40);
  assert.match(String(challenge.headers['webhook-id']), /^msg_verification_[0-9a-f]{24}$/);
  assert.equal(challenge.headers['x-mcp-subscription-id'], id);
  assert.equal(challenge.headers['content-type'], 'application/json');
  assert.equal(challenge.path, '/hooks?key=1');
});

test('agents 40, 59: a callback that does not echo gets nothing, and an existing subscription stays', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const target = await startCallback(t);
  const behaviours = [
    accept,
    answer(307, { location: target.url }),
    (({ body }, response) => response.end(body)) satisfies Parameters<typeof callback.behave>[0],
    ((_received, response) => response.end('{"challenge":"another"}')) satisfies Parameters<
      typeof callback.behave
    >[0],
    ((_received, response) => response.destroy()) satisfies Parameters<typeof callback.behave>[0],
  ];
  for (const behave of behaviours) {
    callback.behave(behave);
    const { body } = await trySubscribe(server, agent, callback.url);
    const { code, message, data } = body.error;
    assert.deepEqual(
      [code, message, data],
      [-32_015, 'CallbackEndpointError', { reason: 'challenge_failed' }],
    );
  }
  assert.equal(target.received.length, 0);
  const { rows } = await sql`select from agent_subscriptions where grant_id = ${agent.grantId}`.execute(db);
  assert.equal(rows.length, 0);
});

test('agents 40: the response to a challenge may have 65,536 bytes', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const echo =
    (bytes: number) =>
    ({ body }: Received, response: ServerResponse): void => {
      const { challenge } = JSON.parse(body) as { challenge: string };
      const json = JSON.stringify({ challenge });
      response.end(json.padEnd(bytes));
    };
  callback.behave(echo(65_537));
  const { body: refused } = await trySubscribe(server, agent, callback.url);
  assert.deepEqual(refused.error.data, { reason: 'challenge_failed' });
  callback.behave(echo(65_536));
  await subscribeAgent(server, agent, callback.url);
});

test('agents 41: a grant has ten challenges a minute, and a URL that echoed needs no other', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  await subscribeAgent(server, agent, callback.url);
  await subscribeAgent(server, agent, callback.url, { arguments: { ref: 'another subscription' } });
  assert.equal(callback.challenges().length, 1);
  const answers = [];
  for (let index = 0; index < 12; index += 1)
    answers.push((await trySubscribe(server, agent, `${callback.url}/${index}`)).body);
  const refused = answers.filter(({ error }) => error !== undefined);
  assert.ok(refused.length >= 2);
  for (const { error } of refused) {
    assert.deepEqual([error.code, error.data.limit], [-32_013, 'challenges']);
    assert.ok(error.data.retryAfterMs > 0);
  }
  assert.equal(callback.challenges().length, 13 - refused.length);
  // Of another grant, which has its own.
  await subscribeAgent(server, await createAgent(server), callback.url);
});

test('agents 55, 57: an unsubscribed callback gets nothing more, and no message', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  await subscribeAgent(server, agent, callback.url);
  const delivery = { url: callback.url };
  const { body } = await callMcp(server, agent.token, 'events/unsubscribe', { name: 'push', delivery });
  assert.equal(body.result.resultType, 'complete');
  const other = await startCallback(t);
  await subscribeAgent(server, agent, other.url);
  await publish(publisher, agent.account, ['after']);
  await other.waitFor(2);
  assert.equal(callback.received.length, 1);
});

test('agents 51: a refused cursor, and one of another grant, subscribe to nothing', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const other = await createAgent(server, { account: agent.account, client: agent.client });
  const { cursor } = await subscribeAgent(server, other, callback.url);
  for (const given of [cursor, `${cursor.slice(0, -1)}A`, 'fresh', '']) {
    const { body } = await trySubscribe(server, agent, callback.url, { cursor: given });
    assert.deepEqual(body.error.data, { field: 'cursor', reason: 'invalid' });
  }
  assert.deepEqual((await trySubscribe(server, agent, callback.url, { cursor: 5 })).body.error.data, {
    field: 'cursor',
    reason: 'invalid_type',
  });
});

test('agents 51: a cursor of polling continues in a webhook, from the event after it', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const poll = async (cursor: string | null) =>
    (await callMcp(server, agent.token, 'events/poll', { name: 'push', cursor })).body.result;
  const { cursor } = await poll(null);
  await publish(publisher, agent.account, ['polled later']);
  const { truncated } = await subscribeAgent(server, agent, callback.url, { cursor });
  assert.equal(truncated, false);
  await until(
    async () => callback.occurrences().length,
    (count) => count >= 1,
  );
  assert.equal(refs(callback.occurrences())[0], 'refs/heads/polled later');
});

test('agents 63: clients that begin with initialize subscribe, too', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const delivery = { mode: 'webhook', url: callback.url, secret: agentSecret };
  const { body } = await callOlder(server, agent.token, 'events/subscribe', { name: 'push', delivery });
  assert.match(body.result.id, /^sub_/);
  assert.equal('resultType' in body.result, false);
});

test('agents 36, 59: the quota of a grant holds without a further subscription', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  for (let index = 0; index < 20; index += 1)
    await subscribeAgent(server, agent, callback.url, { arguments: { ref: `r${index}` } });
  const { body } = await trySubscribe(server, agent, callback.url);
  assert.deepEqual([body.error.code, body.error.data], [-32_013, { limit: 'grant_subscriptions', max: 20 }]);
  const again = await subscribeAgent(server, agent, callback.url, { arguments: { ref: 'r0' } });
  assert.ok(again.deliveryStatus, 'a refresh needs no quota');
});

test('agents 56, 59: a withdrawn grant subscribes no more, also while its challenge is under way', async (t) => {
  const agent = await createAgent(server);
  const callback = await startCallback(t, (received, response) => {
    void withdrawGrant(db, agent.grantId, 'user').then(() => {
      const { challenge } = JSON.parse(received.body);
      response.end(JSON.stringify({ challenge }));
    });
  });
  const { body } = await trySubscribe(server, agent, callback.url);
  assert.deepEqual([body.error?.code, body.error?.data], [-32_012, { reason: 'access_revoked' }]);
  const { rows } = await sql`select from subscriptions where grant_id = ${agent.grantId}`.execute(db);
  assert.equal(rows.length, 0);
});

test('attack: places of cursors are looked for in turns, and lock nothing meanwhile', async (t) => {
  const [callback, agent] = [await startCallback(t), await createAgent(server)];
  const { id, cursor } = await subscribeAgent(server, agent, callback.url);
  await expire(id);
  const other = await createApp(server, { account: agent.account });
  const [isLocked, areAsked] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const locking = db.transaction().execute(async (tx) => {
    await sql`lock table retries in access exclusive mode`.execute(tx);
    isLocked.resolve();
    await areAsked.promise;
  });
  await isLocked.promise;
  const answers: unknown[] = [];
  const asked = Array.from({ length: 10 }, async () => {
    const { body } = await trySubscribe(server, agent, callback.url, { cursor });
    answers.push(body.error?.data.limit ?? body.result.id);
  });
  try {
    // Two look, and four wait for their turn.
    await until(
      async () => answers.length,
      (count) => count === 4,
    );
    assert.deepEqual(answers, Array(4).fill('replays'));
    // Another app of the account.
    const json = { url: 'https://example.com/hooks', kinds: ['push'] };
    assert.equal((await other.request('POST', '/subscriptions', { json })).status, 201);
  } finally {
    areAsked.resolve();
    await Promise.all([locking, ...asked]);
  }
  assert.deepEqual(answers.slice(4), Array(6).fill(id));
});
