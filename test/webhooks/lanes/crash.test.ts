/** No accepted event is lost, however the server ends. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { requester } from '../../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken } from '../../support/clients/oauth.ts';
import { prepareProcess, startProcess } from '../../support/servers/process.ts';
import { appScopes, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { accept, startSubscriber } from '../../support/webhooks/subscriber.ts';

test('webhooks 17, 62: a thousand accepted events are delivered after kill -9 and a restart, one id each', async (t) => {
  const server = await prepareProcess(t, { NUNCIO_RATE_LIMIT: '0' });
  const { settings } = server;
  // The first process gets only a few responses, so that most events are undelivered when it dies.
  let responsesLeft = 100;
  const subscriber = await startSubscriber(t, (_received, response) => {
    responsesLeft -= 1;
    if (responsesLeft >= 0) response.writeHead(204).end();
  });

  const first = startProcess(t, ['start'], settings);
  await first.ready();
  const client = await createTestClient(server, { scopes: [...appScopes, 'write:events'] });
  const account = await createTestAccount(server);
  const forUser = await mintAccessToken(server, { account, client, scopes: appScopes });
  const forMachine = await mintAccessToken(server, { client, scopes: ['write:events'] });
  const { id } = await subscribe(
    { request: requester(server, forUser.accessToken) },
    { url: subscriber.url },
  );
  const marks = Array.from({ length: 1_000 }, (_, index) => index);
  await publish(requester(server, forMachine.accessToken), account, marks);
  assert.equal(await first.end('SIGKILL'), 'SIGKILL');
  assert.ok(subscriber.received.length < 1_000, 'the server died too late');

  subscriber.behave(accept);
  const second = startProcess(t, ['start'], settings);
  await second.ready();
  const distinct = () => new Set(subscriber.received.map(({ headers }) => headers['nuncio-delivery'])).size;
  await until(
    async () => distinct(),
    (count) => count >= 1_000,
  );
  assert.equal(distinct(), 1_000);
  const bySequence = new Map(
    subscriber.received.map(({ headers, body }) => [
      Number(headers['nuncio-sequence']),
      JSON.parse(body).ref,
    ]),
  );
  assert.deepEqual(
    [...bySequence.keys()].sort((a, b) => a - b),
    marks.map((mark) => mark + 1),
  );
  assert.equal(new Set(bySequence.values()).size, 1_000);
  // SIGTERM drains what is in flight, so the next process sends nothing twice.
  assert.equal(await second.end('SIGTERM'), 0);
  const again = requester(server, forUser.accessToken);
  const third = startProcess(t, ['start'], settings);
  await third.ready();
  const { body } = await again('GET', `/subscriptions/${id}/deliveries?status=succeeded&limit=200`);
  assert.equal(body.items.length, 200);
});

test('webhooks 64: SIGTERM finishes attempts in flight, records them, releases the lanes and exits 0', async (t) => {
  const server = await prepareProcess(t);
  const { settings, db } = server;
  const subscriber = await startSubscriber(t, (_received, response) => {
    setTimeout(() => response.writeHead(204).end(), 1_000);
  });
  const running = startProcess(t, ['start'], settings);
  await running.ready();
  const client = await createTestClient(server, { scopes: [...appScopes, 'write:events'] });
  const account = await createTestAccount(server);
  const forUser = await mintAccessToken(server, { account, client, scopes: appScopes });
  const forMachine = await mintAccessToken(server, { client, scopes: ['write:events'] });
  await subscribe({ request: requester(server, forUser.accessToken) }, { url: subscriber.url });
  await publish(requester(server, forMachine.accessToken), account, [...Array(100).keys()]);
  await subscriber.waitFor(1);
  assert.equal(await running.end('SIGTERM'), 0);
  const started = subscriber.received.length;
  assert.ok(started < 100, 'everything was sent before');
  const { rows } = await sql<{ attempts: string; cursor: string; owner: string | null; nodes: string }>`
    select (select count(*) from attempts) as attempts, cursor, owner, (select count(*) from nodes) as nodes
    from lane_progress`.execute(db);
  assert.deepEqual(rows, [{ attempts: String(started), cursor: String(started), owner: null, nodes: '0' }]);
});
