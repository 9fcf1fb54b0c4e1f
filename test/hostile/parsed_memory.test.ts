/** JSON whose values take 25 times the memory of its text: bodies, streams and apps. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect } from 'node:net';
import { after, test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import Fastify from 'fastify';
import { sql } from 'kysely';
import { Registry } from 'prom-client';
import { ClientCache } from '../../src/clients/client_cache.ts';
import { keySetError } from '../../src/clients/key_set.ts';
import { newId } from '../../src/crypto/ids.ts';
import { Notifications } from '../../src/database/notifications.ts';
import { addBodyParser } from '../../src/http/body_limit.ts';
import { parseJson } from '../../src/http/json.ts';
import { limitLoad } from '../../src/http/overload/overload.ts';
import { parsedBytesOf } from '../../src/shared/parsed_bytes.ts';
import { mcpToken, statelessHeaders, statelessMeta } from '../support/clients/mcp_client.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { createPublisher, pushBody, until } from '../support/webhooks/apps.ts';

const metricsToken = 'a-token-for-metrics';
const server = await startTestServer(
  { after },
  { NUNCIO_METRICS_TOKEN: metricsToken, NUNCIO_CONCURRENT_REQUESTS: '64' },
);
const { db } = server;

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

/** A list with many small values. @param length of its JSON */
const dense = (length: number) => `[${'[{}],'.repeat(length / 5 - 1)}{}]`;

function heapUsed(): number {
  collect();
  return process.memoryUsage().heapUsed;
}

test('the estimate is at least half of what parsed JSON takes, and a few times usual JSON', () => {
  const usual = {
    id: newId(),
    title: 'a title',
    labels: ['one', 'two'],
    author: { name: 'Ada' },
    text: 'x'.repeat(100),
  };
  const texts = [dense(1_000_000), JSON.stringify(Array(3_000).fill(usual)), `[${'"ab",'.repeat(200_000)}1]`];
  for (const text of texts) {
    const before = heapUsed();
    const value = JSON.parse(text);
    const bytes = heapUsed() - before;
    assert.ok(
      parsedBytesOf(text) > bytes / 2,
      `${parsedBytesOf(text)} of ${bytes}: ${JSON.stringify(value).slice(0, 40)}`,
    );
  }
  assert.ok(parsedBytesOf(texts[1] as string) < 4 * (texts[1] as string).length);
  assert.equal(parsedBytesOf(JSON.stringify('[{,"\\')), '"[{,\\"\\\\"'.length + 24);
  assert.equal(parsedBytesOf(Buffer.from('[1,2]')), 5 + 60 + 8);
});

test('attack: a body of very many values reserves the memory that these take', async () => {
  const publish = await createPublisher(server);
  const held = async () => {
    const headers = { authorization: `Bearer ${metricsToken}` };
    const text = await (await fetch(`${server.baseUrl}/metrics`, { headers })).text();
    return Number(/^nuncio_request_body_bytes (\d+)/m.exec(text)?.[1]);
  };
  const account = await createTestAccount(server);
  const events = Array.from({ length: 500 }, () => ({ kind: 'push', account: account.id, body: pushBody() }));
  const { length } = JSON.stringify(events);
  let responded: Promise<{ status: number }> | undefined;
  await db.transaction().execute(async (tx) => {
    await sql`lock table events in access exclusive mode`.execute(tx);
    responded = publish('POST', '/events', { json: events });
    await until(held, (bytes) => bytes > 3 * length);
  });
  assert.equal((await responded)?.status, 202);
  await until(held, (bytes) => bytes === 0);
});

test('attack: streams of agents keep nothing of their requests', async (t) => {
  const client = await createTestClient(server);
  const account = await createTestAccount(server);
  const { accessToken } = await mcpToken(server, { account, client, scopes: ['read:posts'] });
  const body = JSON.stringify({
    jsonrpc: '2.0',
    id: 1,
    method: 'subscriptions/listen',
    params: { _meta: statelessMeta, notifications: {}, x: '' },
  }).replace('"x":""', `"x":[${'{"a":1},'.repeat(125_000)}0]`);
  const before = heapUsed();
  for (let count = 0; count < 5; count += 1) {
    const closed = new AbortController();
    t.after(() => closed.abort());
    const response = await fetch(`${server.baseUrl}/mcp`, {
      method: 'POST',
      signal: closed.signal,
      headers: {
        authorization: `Bearer ${accessToken}`,
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        ...statelessHeaders('subscriptions/listen'),
      },
      body,
    });
    assert.equal(response.status, 200);
  }
  const kept = heapUsed() - before;
  assert.ok(kept < 20_000_000, `${kept} bytes`);
});

test('attack: apps with keys of very many values take no more of the cache than their memory', async () => {
  const ids = Array.from({ length: 60 }, newId);
  const metadata = `{"jwks":{"keys":[{"kty":"none","z":${dense(60_000)}}]}}`;
  await sql`
    insert into clients (id, origin, name, redirect_uris, grant_types, scopes, auth_method, metadata)
    select id, 'registration', 'large', '{}', '{authorization_code}', '{}', 'none', ${metadata}::jsonb
    from unnest(${ids}::text[]) id`.execute(db);
  const cache = new ClientCache(db, new Notifications(server.databaseUrl, () => {}));
  for (const id of ids) assert.ok(await cache.find(id));
  const cached = ids.filter((id) => cache.isCached(id)).length;
  assert.ok(cached > 10 && cached < 55, `${cached} of 60`);
});

test('keys have no members with objects or lists of lists', () => {
  const key = { kty: 'none', x5c: ['a', 'b'], use: 'sig', ext: true };
  assert.equal(keySetError({ keys: [key] }), undefined);
  for (const z of [{}, [[]], [{}]])
    assert.equal(
      keySetError({ keys: [key, { ...key, z }] }),
      'jwks.keys[1] has a member that is an object or a list of lists',
    );
});

test('a body of more than 16 KiB with very many empty values is refused before it is parsed', async () => {
  const publish = await createPublisher(server);
  const { status, body } = await publish('POST', '/events', { json: JSON.parse(dense(20_000)) });
  assert.deepEqual([status, body.code], [413, 'body-too-large']);
  const small = await publish('POST', '/events', { json: JSON.parse(dense(10_000)) });
  assert.equal(small.status, 422);
  const points = await publish('POST', '/events', { json: JSON.parse(`[${'[1,2],'.repeat(5_000)}0]`) });
  assert.equal(points.status, 422);
});

test('attack: whoever does not read the response to a large body holds no memory for bodies', async (t) => {
  const registry = new Registry();
  const app = Fastify();
  const never = () => assert.fail('nothing is refused');
  const stop = limitLoad(app, {
    ...{ db, registry, logger: app.log, requestsMax: 8, trustProxy: [], headers: [] },
    ...{ identify: () => undefined, page: never as never },
  });
  t.after(stop);
  const held = async () =>
    (await registry.getSingleMetric('nuncio_request_body_bytes')?.get())?.values[0]?.value;
  app.removeContentTypeParser('application/json');
  addBodyParser(app, 'application/json', parseJson);
  let during: number | undefined;
  app.post('/large', async (_request, reply) => {
    during = await held();
    return reply.send(Buffer.alloc(33_554_432));
  });
  await app.listen({ port: 0, host: '127.0.0.1' });
  t.after(() => app.close());
  const socket = connect((app.server.address() as AddressInfo).port, '127.0.0.1');
  t.after(() => socket.destroy());
  const body = `[${'"text",'.repeat(5_000)}0]`;
  const head = `POST /large HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: ${body.length}`;
  socket.write(`${head}\r\n\r\n${body}`);
  await once(socket, 'readable');
  assert.equal(during, parsedBytesOf(body));
  assert.equal(await held(), 0);
  assert.equal(socket.readableEnded, false);
});
