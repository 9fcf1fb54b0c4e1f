/** The endpoint of an app refuses what one user does: the app's own subscription delivers the events of its other users. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { circuitFailures } from '../../../src/webhooks/sending/retry_schedule.ts';
import { createTestAccount, mintAccessToken } from '../../support/clients/oauth.ts';
import { startTestServer } from '../../support/servers/server.ts';
import {
  createPublisher,
  createSubscribingClient,
  publish,
  subscribe,
  until,
} from '../../support/webhooks/apps.ts';
import { accept, answer, type Received, startSubscriber } from '../../support/webhooks/subscriber.ts';

const server = await startTestServer({ after }, { NUNCIO_RETRY_SCHEDULE: Array(10).fill('1s').join(',') });
const publisher = await createPublisher(server);
/** Events that are refused. With the circuit of the lane, each of them was a probe before those of others. */
const refusedCount = 200;

async function createUsers(client: { id: string }) {
  const create = async () => {
    const account = await createTestAccount(server);
    await mintAccessToken(server, { account, client: { id: client.id }, scopes: ['read:posts'] });
    return account;
  };
  return { refused: await create(), other: await create() };
}

const isRefused = ({ body }: Received): boolean => body.includes('refused');
const marks = (name: string, count: number) =>
  Array.from({ length: count }, (_, index) => `${name}-${index}`);

test('attack: events of one user that an app’s endpoint refuses do not keep those of others', async (t) => {
  const subscriber = await startSubscriber(t);
  const { client, request } = await createSubscribingClient(server);
  const { refused, other } = await createUsers(client);
  await subscribe({ request }, { url: subscriber.url, kinds: ['push'] });
  subscriber.behave((received, response) => (isRefused(received) ? answer(413) : accept)(received, response));
  await publish(publisher, other, ['first']);
  await subscriber.waitFor(1);
  await publish(publisher, refused, marks('refused', refusedCount));
  await until(
    async () => subscriber.received.filter(isRefused).length,
    (count) => count >= 3,
  );
  await publish(publisher, other, marks('other', 20));
  await until(
    async () => subscriber.received.filter((each) => !isRefused(each)).length,
    (count) => count === 21,
  );
  // Those of the first user were attempted, too, and are retried.
  subscriber.behave(accept);
  const from = subscriber.received.length;
  const delivered = async () =>
    new Set(
      subscriber.received
        .slice(from)
        .filter(isRefused)
        .map(({ body }) => JSON.parse(body).ref),
    );
  await until(delivered, ({ size }) => size === refusedCount);
});

test('a dead endpoint of an app opens the circuit as before, whoever’s events they are', async (t) => {
  const subscriber = await startSubscriber(t);
  const { client, request } = await createSubscribingClient(server);
  const { refused } = await createUsers(client);
  await subscribe({ request }, { url: subscriber.url, kinds: ['push'] });
  subscriber.behave(answer(503));
  await publish(publisher, refused, marks('refused', refusedCount));
  const { rows } = await until(
    () =>
      sql<{ failures: number }>`
        select p.failures from lane_progress p join subscriptions s on s.lane = p.lane
        where s.client_id = ${client.id} and p.failures >= ${circuitFailures} and p.paused_until > now()`.execute(
        server.db,
      ),
    ({ rows: found }) => found.length === 1,
  );
  assert.ok((rows[0]?.failures ?? 0) < refusedCount / 2);
});
