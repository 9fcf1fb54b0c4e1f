/** Whose steps are recorded during a flood: nobody hides the traces of an app by requests with its public id. */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { pruneConnections, readConnections } from '../../src/connections/connection_store.ts';
import type { Observation } from '../../src/connections/step.ts';
import { ConnectionTraces } from '../../src/connections/traces.ts';
import { newId } from '../../src/crypto/ids.ts';
import {
  authorizationUrl,
  createTestAccount,
  createTestClient,
  obtainCodeForm,
  postForm,
} from '../support/clients/oauth.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after }, { NUNCIO_TRUST_PROXY: '127.0.0.1,::1' });

function createTraces(t: TestContext): ConnectionTraces {
  const traces = new ConnectionTraces({
    db: server.db,
    key: Buffer.alloc(32),
    onError: (error) => t.diagnostic(String(error)),
  });
  t.after(() => traces.stop());
  return traces;
}

let addresses = 0;
/** Each in a network of its own. */
function newAddress(): string {
  addresses += 1;
  return `2001:db8:${Math.floor(addresses / 65_536).toString(16)}:${(addresses % 65_536).toString(16)}::1`;
}

/** A step with a connection of its own. */
function step(clientId: string, changes: Partial<Observation> = {}): Observation {
  return {
    name: 'token',
    outcome: 'ok',
    clientId,
    isKnown: true,
    isAuthenticated: true,
    address: newAddress(),
    requestId: newId(),
    keys: [newId()],
    ...changes,
  };
}

/** What anyone can send with the public id of an app. */
const refused = (clientId: string, changes: Partial<Observation> = {}) =>
  step(clientId, {
    name: 'authorize',
    outcome: 'refused',
    error: 'invalid_request',
    isAuthenticated: false,
    ...changes,
  });

const newApp = () => `app-${newId()}`;

async function recorded(clientId: string): Promise<number> {
  return (await readConnections(server.db, { clientId }, 1_000)).length;
}

test('attack: refused requests with the id of an app, from any number of addresses, hide no authenticated step', async (t) => {
  const traces = createTraces(t);
  const app = newApp();
  for (let count = 0; count < 2_000; count += 1) traces.add(refused(app));
  traces.add(step(app));
  traces.add(step(app, { outcome: 'refused', error: 'invalid_grant' }));
  await traces.stop();
  const steps = (await readConnections(server.db, { clientId: app }, 1_000)).flatMap((each) => each.steps);
  assert.deepEqual(
    steps
      .filter(({ name }) => name === 'token')
      .map(({ outcome }) => outcome)
      .sort(),
    ['ok', 'refused'],
  );
  assert.ok(steps.length <= 250, String(steps.length));
});

test('attack: refused requests of one address, with ids of many apps, leave room for those of another address', async (t) => {
  const traces = createTraces(t);
  const address = newAddress();
  for (let count = 0; count < 2_000; count += 1) {
    traces.add(step(newApp(), { name: 'authorize', isAuthenticated: false, address }));
    traces.add(refused(newApp(), { address }));
  }
  const app = newApp();
  for (let count = 0; count < 10; count += 1) {
    traces.add(refused(app, { address: '198.51.100.1' }));
  }
  await traces.stop();
  assert.equal(await recorded(app), 10);
});

test('attack: apps that take as many steps as they can leave room for another one', async (t) => {
  const traces = createTraces(t);
  const apps = Array.from({ length: 300 }, newApp);
  for (let count = 0; count < 10; count += 1) for (const app of apps) traces.add(step(app));
  const other = newApp();
  traces.add(step(other));
  await traces.stop();
  assert.equal(await recorded(other), 1);
  const counts = await Promise.all(apps.map(recorded));
  const total = counts.reduce((sum, count) => sum + count);
  assert.ok(total < 500, String(total));
  assert.ok(Math.min(...counts) >= 1, 'each app has a part');
});

test('attack: one user, with many addresses, takes a part of an app only', async (t) => {
  const traces = createTraces(t);
  const app = newApp();
  const accountId = (await createTestAccount(server)).id;
  for (let count = 0; count < 1_000; count += 1) traces.add(step(app, { name: 'consent', accountId }));
  traces.add(step(app));
  await traces.stop();
  const found = await readConnections(server.db, { clientId: app }, 1_000);
  assert.equal(found.filter((each) => each.accountId === null).length, 1);
  assert.ok(found.length < 120, String(found.length));
});

test('attack: over HTTP, a flood with the id of an app hides neither its tokens nor refusals', async () => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  const url = authorizationUrl(server, client, { redirect_uri: 'https://evil.example/' });
  const flood = () =>
    Promise.all(
      Array.from({ length: 300 }, async () => {
        const response = await fetch(url, { headers: { 'x-forwarded-for': newAddress() } });
        await response.text();
      }),
    );
  await flood();
  const { form } = await obtainCodeForm(server, { account, client, scopes: ['read:posts'] });
  await flood();
  const headers = { 'x-forwarded-for': '198.51.100.77' };
  assert.equal((await postForm(server, '/oauth/token', client, form, headers)).status, 200);
  const again = await postForm(server, '/oauth/token', client, { ...form, code: 'x'.repeat(43) }, headers);
  assert.equal(again.status, 400);
  const requestId = again.headers.get('request-id') ?? '';
  const found = await until(
    async () => (await readConnections(server.db, { requestId }, 1))[0],
    (connection) => connection !== undefined,
  );
  assert.equal(found?.clientId, client.id);
  const own = await readConnections(server.db, { accountId: account.id }, 10);
  const names = own.flatMap(({ steps }) => steps.map(({ name, outcome }) => `${name} ${outcome}`));
  for (const name of ['consent ok', 'code ok', 'token ok']) assert.ok(names.includes(name), names.join());
});

test('attack: requests from any number of addresses prune no trace of a user or of a token', async () => {
  const client = await createTestClient(server);
  const account = await createTestAccount(server);
  const add = (count: number, age: string, outcome: string, accountId: string | null) =>
    sql`
      insert into connections
        (id, started_at, updated_at, client_id, is_known, account_id, outcome, keys, request_ids, source, steps)
      select gen_random_uuid(), now() - ${age}::interval, now(), ${client.id}, true, ${accountId}, ${outcome}, '{}', '{}',
        gen_random_uuid()::text, '[]'
      from generate_series(1, ${count}::int)`.execute(server.db);
  await add(5, '2 days', 'connected', null);
  await add(5, '2 days', 'refused', account.id);
  await add(700, '1 minute', 'refused', null);
  await pruneConnections(server.db);
  const { rows } = await sql<{ kept: number }>`
    select count(*) filter (where outcome = 'connected' or account_id is not null)::int as kept
    from connections where client_id = ${client.id}`.execute(server.db);
  assert.equal(rows[0]?.kept, 10);
  assert.equal(await recorded(client.id), 510);
});
