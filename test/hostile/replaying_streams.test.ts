/** Each page of a stream needs a place, as a request does: whoever reads history by many streams gets no more of a node than by requests. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { requester } from '../support/clients/api_client.ts';
import { mcpToken } from '../support/clients/mcp_client.ts';
import { openMcpStream } from '../support/clients/mcp_stream.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import {
  createApp,
  createPublisher,
  fannedOut,
  publish,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';

/** 7 places are for the API, of which one account gets 2. */
const metricsToken = 'a-token-for-metrics';
const server = await startTestServer(
  { after },
  { NUNCIO_CONCURRENT_REQUESTS: '8', NUNCIO_METRICS_TOKEN: metricsToken },
);
const publisher = await createPublisher(server);

/** Requests of the API and pages of streams. */
async function pages(state: 'in_progress' | 'waiting'): Promise<number> {
  const headers = { authorization: `Bearer ${metricsToken}` };
  const text = await (await fetch(`${server.baseUrl}/metrics`, { headers })).text();
  const name = `nuncio_requests{class="ordinary",state="${state}"} `;
  const line = text.split('\n').find((each) => each.startsWith(name));
  return Number(line?.slice(name.length));
}

/** No page can be read while this runs. */
async function whilePagesWait(work: () => Promise<void>): Promise<void> {
  await server.db.transaction().execute(async (tx) => {
    await sql`set local idle_in_transaction_session_timeout = 0`.execute(tx);
    await sql`lock table lane_epochs in access exclusive mode`.execute(tx);
    await work();
  });
}

async function assertPlaces(): Promise<void> {
  await until(
    () => pages('waiting'),
    (count) => count === 3,
  );
  assert.equal(await pages('in_progress'), 2);
}

async function openStream(url: string, token: string) {
  const headers = { authorization: `Bearer ${token}`, accept: 'text/event-stream' };
  const ended = new AbortController();
  const response = await fetch(url, { headers, signal: ended.signal });
  assert.equal(response.status, 200);
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  const readUntil = async (wanted: string): Promise<void> => {
    for (let text = ''; !text.includes(wanted); text += (await reader?.read())?.value ?? '');
  };
  return { readUntil, close: () => ended.abort() };
}

test('five streams of an account read two pages at once, and others are served meanwhile', async () => {
  const app = await createApp(server);
  const { id } = await subscribe(app, { url: null });
  const url = `${server.baseUrl}/subscriptions/${id}/events`;
  const streams = await Promise.all(Array.from({ length: 5 }, () => openStream(url, app.accessToken)));
  const gone = streams.pop();
  const other = await createApp(server);
  await publish(publisher, app.account, ['for the streams']);
  await fannedOut(server);
  await Promise.all([...streams, gone].map((stream) => stream?.readUntil('for the streams')));
  await whilePagesWait(async () => {
    await publish(publisher, app.account, ['for the streams that wait']);
    await assertPlaces();
    assert.equal((await requester(server, other.accessToken)('GET', '/api')).status, 200);
    gone?.close();
  });
  await Promise.all(streams.map((stream) => stream.readUntil('for the streams that wait')));
  for (const stream of streams) stream.close();
  await until(
    () => pages('in_progress'),
    (count) => count === 0,
  );
});

test('five streams of an agent read two pages at once', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const { accessToken } = await mcpToken(server, { account, client, scopes: ['read:posts', 'read:profile'] });
  // The token of the first request is not known yet.
  const streams = await Promise.all(
    Array.from({ length: 5 }, (_none, id) =>
      openMcpStream(server, accessToken, 'events/stream', { name: 'push', cursor: null }, { id }),
    ),
  );
  for (const stream of streams) await stream.until('notifications/events/active');
  await whilePagesWait(async () => {
    await publish(publisher, account, ['for the agent']);
    await assertPlaces();
  });
  for (const stream of streams) {
    const { params } = await stream.until('notifications/events/event');
    assert.equal(params.data.ref, 'refs/heads/for the agent');
    stream.close();
  }
  await until(
    () => pages('in_progress'),
    (count) => count === 0,
  );
});
