/**
 * Access tokens of a client that was deleted, disabled or registered again. The database's order of events
 * decides, not the nodes' clocks.
 */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { decodeJwt } from 'jose';
import { sql } from 'kysely';
import { createClient, findClient } from '../../src/clients/client.ts';
import { endClient } from '../../src/grants/grant.ts';
import { createPlatform } from '../../src/platform.ts';
import {
  createTestAccount,
  createTestClient,
  mintAccessToken,
  postForm,
  type TestClient,
} from '../support/clients/oauth.ts';
import { startTestServer, type TestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const machine = { grant_type: 'client_credentials' };
const server = await startTestServer({ after });

/** The token response of a node whose clock differs by some seconds. */
async function issueAt(
  t: TestContext,
  node: TestServer,
  client: TestClient,
  offsetSeconds: number,
): Promise<string> {
  t.mock.timers.enable({ apis: ['Date'], now: Date.now() + offsetSeconds * 1_000 });
  const { status, body } = await postForm(node, '/oauth/token', client, machine);
  t.mock.timers.reset();
  assert.equal(status, 200, JSON.stringify(body));
  return body.access_token as string;
}

/** A token of the client's new epoch. Until a notification arrives, the node knows only what it has cached. */
async function issueNew(
  t: TestContext,
  client: TestClient,
  old: string,
  offsetSeconds: number,
): Promise<string> {
  const epochOf = (token: string) => decodeJwt(token).client_epoch;
  return until(
    () => issueAt(t, server, client, offsetSeconds).catch(() => old),
    (token) => epochOf(token) !== epochOf(old),
  );
}

async function statusOf(node: TestServer, token: string): Promise<number> {
  return (await fetch(`${node.baseUrl}/api`, { headers: { authorization: `Bearer ${token}` } })).status;
}

/** The maximum time until every node has read a withdrawal without a notification. */
function untilEveryNodeHasLooked(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 1_000));
}

async function isActive(node: TestServer, token: string): Promise<unknown> {
  const { body } = await postForm(node, '/oauth/introspect', await createTestClient(node), { token });
  return body.active;
}

for (const [format, settings] of [
  ['a JWT', {}],
  ['an opaque token', { oauth: { accessTokenFormat: 'opaque' as const } }],
] as const) {
  test(`${format} of a deleted client is refused when its issuer’s clock ran fast or slow`, async (t) => {
    const node = await startTestServer(t, {}, 'dev', createPlatform(settings));
    for (const offsetSeconds of [3, 600, -600]) {
      const client = await createTestClient(node);
      const token = await issueAt(t, node, client, offsetSeconds);
      assert.equal(await statusOf(node, token), 200, `${offsetSeconds} s`);
      assert.ok(await endClient(node.db, client.id));
      await untilEveryNodeHasLooked();
      assert.equal(await statusOf(node, token), 401, `${offsetSeconds} s`);
      assert.equal(await isActive(node, token), false, `${offsetSeconds} s`);
    }
  });
}

test('a token is refused when its node had not heard of the client’s deletion', async () => {
  const client = await createTestClient(server);
  const { epoch } = (await findClient(server.db, client.id)) ?? {};
  assert.ok(epoch);
  await endClient(server.db, client.id);
  const account = await createTestAccount(server);
  const iat = Math.floor(Date.now() / 1_000) + 600;
  for (const holder of [{}, { account }]) {
    const claims = { client_epoch: epoch, iat, exp: iat + 900 };
    const late = await mintAccessToken(server, { ...holder, client, scopes: [], claims });
    await untilEveryNodeHasLooked();
    assert.equal(await statusOf(server, late.accessToken), 401);
  }
});

test('a client registered again under its id gets working tokens when its node lags', async (t) => {
  const first = await createTestClient(server);
  const old = await issueAt(t, server, first, 600);
  await endClient(server.db, first.id);
  await createClient(server.db, {
    id: first.id,
    name: 'again',
    grantTypes: ['client_credentials'],
    secret: first.secret as string,
  });
  const fresh = await issueNew(t, first, old, -600);
  await untilEveryNodeHasLooked();
  assert.equal(await statusOf(server, old), 401);
  assert.equal(await statusOf(server, fresh), 200);
});

test('a re-enabled client gets working tokens, and its old tokens stay invalid', async (t) => {
  const client = await createTestClient(server);
  const old = await issueAt(t, server, client, 600);
  await sql`update clients set disabled_at = now() where id = ${client.id}`.execute(server.db);
  await sql`update clients set disabled_at = null where id = ${client.id}`.execute(server.db);
  const fresh = await issueNew(t, client, old, 0);
  await untilEveryNodeHasLooked();
  assert.equal(await statusOf(server, old), 401);
  assert.equal(await statusOf(server, fresh), 200);
});

test('a token without an epoch is refused', async () => {
  const client = await createTestClient(server);
  const { accessToken } = await mintAccessToken(server, {
    client,
    scopes: [],
    claims: { client_epoch: undefined },
  });
  assert.equal(decodeJwt(accessToken).client_epoch, undefined);
  assert.equal(await statusOf(server, accessToken), 401);
});

test('a withdrawal ends a token whose issuer’s clock ran fast', async (t) => {
  const client = await createTestClient(server);
  const token = await issueAt(t, server, client, 1_800);
  const { status } = await postForm(server, '/oauth/revoke', client, { token });
  assert.equal(status, 200);
  const { rows } = await sql<{ is_long_enough: boolean }>`
    select until >= to_timestamp(${decodeJwt(token).exp ?? 0}::int) as is_long_enough
    from withdrawals where kind = 'token' and subject = ${decodeJwt(token).jti ?? ''}`.execute(server.db);
  assert.deepEqual(rows, [{ is_long_enough: true }]);
});
