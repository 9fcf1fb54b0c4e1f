/**
 * A client that disconnects ends no work: its request continues until its handler returns. Until then its caller has a share of connections,
 * places and memory like any other.
 */

import assert from 'node:assert/strict';
import { connect } from 'node:net';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { createApiUser } from '../support/clients/api_client.ts';
import { authorizationUrl, createTestClient } from '../support/clients/oauth.ts';
import { siteEgress, startSite } from '../support/network/site.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const site = await startSite({ after });
const metricsToken = 'a-token-for-metrics';
const limits = {
  NUNCIO_CONCURRENT_REQUESTS: '64',
  NUNCIO_TRUST_PROXY: '127.0.0.1',
  NUNCIO_METRICS_TOKEN: metricsToken,
};
const server = await startTestServer({ after }, limits, 'dev', undefined, siteEgress);
/** Of 56 places for the API, an account gets more than these. */
const count = 20;
/** Of 8 connections for changes, what one app of an account gets. */
const share = 3;

/** Sends a request and disconnects. If the client has left before its turn, the request is not handled. */
function sendAndLeave(
  method: string,
  url: string,
  headers: Record<string, string>,
  body = '',
): Promise<void> {
  const { port, host, pathname, search } = new URL(url);
  const lines = Object.entries({ host, 'content-length': `${body.length}`, ...headers });
  const head = lines.map(([name, value]) => `${name}: ${value}\r\n`).join('');
  return new Promise((resolve) => {
    const socket = connect({ port: Number(port), host: '127.0.0.1' });
    socket.on('error', () => {}).on('close', () => resolve());
    socket.write(`${method} ${pathname}${search} HTTP/1.1\r\n${head}\r\n${body}`, () => socket.destroy());
  });
}

async function metric(name: string): Promise<number> {
  const headers = { authorization: `Bearer ${metricsToken}` };
  const text = await (await fetch(`${server.baseUrl}/metrics`, { headers })).text();
  return Number(
    text
      .split('\n')
      .find((line) => line.startsWith(`${name} `))
      ?.split(' ')[1],
  );
}

async function waitingForLocks(): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'`.execute(server.db);
  return rows[0]?.count ?? 0;
}

test('attack: changes of a locked article by clients that disconnect', async () => {
  const attacker = await createApiUser(server);
  const victim = await createApiUser(server);
  const article = { json: { title: 'a', body: 'b' } };
  const { body: own } = await attacker.request('POST', '/articles', article);
  // Long enough to wait for its turn, in which the client leaves.
  const change = JSON.stringify({ body: 'c'.repeat(20_000) });
  const headers = {
    authorization: `Bearer ${attacker.accessToken}`,
    'content-type': 'application/merge-patch+json',
  };
  await server.db.transaction().execute(async (tx) => {
    await sql`select from articles where id = ${own.id} for update`.execute(tx);
    // On a slow machine the first ones have waited for three seconds, and ended, when the last ones arrive.
    await until(
      async () => {
        while ((await metric('nuncio_request_body_bytes')) < count * change.length)
          await sendAndLeave('PATCH', `${server.baseUrl}/articles/${own.id}`, headers, change);
        return waitingForLocks();
      },
      (waiting) => waiting >= share,
    );
    assert.equal((await victim.request('GET', '/articles')).status, 200);
    assert.equal(await waitingForLocks(), share);
  });
  await until(
    () => metric('nuncio_request_body_bytes'),
    (bytes) => bytes === 0,
  );
});

test('attack: metadata documents of apps whose servers hang, by clients that disconnect', async () => {
  let asked = 0;
  site.serve('/app', () => {
    asked += 1;
  });
  const client = await createTestClient(server);
  // More than all places of the class. Each begins when the one before waits.
  for (let index = 0; index < 50; index += 1) {
    const url = authorizationUrl(server, client, { client_id: site.url('/app', `app${index}`) });
    await until(
      async () => {
        await sendAndLeave('GET', url, { 'x-forwarded-for': `203.0.113.${index}` });
        return asked;
      },
      (number) => number === index + 1,
    );
  }
  assert.equal((await fetch(`${server.baseUrl}/account`)).status, 200);
});
