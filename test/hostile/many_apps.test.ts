/**
 * An account may create fifty apps, and more after it has handed them over. Each acts for itself, and has subscriptions of its own: with the
 * share of an account for each app, one developer would leave nothing to others. So all apps that an account created are one tenant.
 */

import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { createSealer } from '../../src/crypto/sealing.ts';
import { holderOf, StreamSlots } from '../../src/http/stream_slots.ts';
import { type LaneState, loadLanes } from '../../src/webhooks/lanes/lane_store.ts';
import { LeasedLanes } from '../../src/webhooks/lanes/leased_lanes.ts';
import { AgentCursors } from '../../src/webhooks/subscriptions/agent_cursor.ts';
import { defaultQuotas } from '../../src/webhooks/subscriptions/quotas.ts';
import { createApiUser, requester } from '../support/clients/api_client.ts';
import { clientToken, createTestClient, type TestClient } from '../support/clients/oauth.ts';
import { type ConsoleUser, createConsoleUser } from '../support/console/console_user.ts';
import { addNode } from '../support/database/other_node.ts';
import { startTestServer, testSecret } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after }, { NUNCIO_CONCURRENT_REQUESTS: '64' });
const scopes = ['read:webhooks', 'write:webhooks'];
let nextNode = 900;

interface OwnApp {
  id: string;
  accessToken: string;
}

/** Creates an app that acts for itself. */
async function createOwnApp(developer: ConsoleUser): Promise<OwnApp> {
  const json = { client_name: 'Robot', grant_types: ['client_credentials'], scope: scopes.join(' ') };
  const { status, body, text } = await developer.request('POST', '/apps', { json });
  assert.equal(status, 201, text);
  const client = { id: body.client_id, secret: body.client_secret, authMethod: 'client_secret_basic' };
  return { id: body.client_id, accessToken: await clientToken(server, client as TestClient, scopes) };
}

/** One after the other, because the account is locked while it creates one. */
async function createOwnApps(developer: ConsoleUser, count: number): Promise<OwnApp[]> {
  const apps: OwnApp[] = [];
  for (let index = 0; index < count; index += 1) apps.push(await createOwnApp(developer));
  return apps;
}

/** Another account becomes the only owner, so that the creator may create more. */
async function handOver({ account }: ConsoleUser, { id }: OwnApp, to: ConsoleUser): Promise<void> {
  const values = sql`(${id}, ${to.account.id}, 'owner')`;
  await sql`insert into app_members (client_id, account_id, role) values ${values}`.execute(server.db);
  const left = await to.request('DELETE', `/apps/${id}/members/${account.id}`);
  assert.equal(left.status, 204, left.text);
}

test('attack: unfinished large bodies of fifty apps of one account leave memory to those of others', async (t) => {
  const developer = await createConsoleUser(server);
  const apps = await createOwnApps(developer, 50);
  const victim = await createApiUser(server);
  const sockets: Socket[] = [];
  t.after(() => {
    for (const socket of sockets) socket.destroy();
  });
  for (const [index, { id, accessToken }] of apps.entries()) {
    // Known to the node before the bodies arrive.
    const known = await requester(server, accessToken)('GET', '/subscriptions');
    assert.equal(known.status, 200, id);
    for (let count = 0; count < 4; count += 1) {
      const socket = connect({
        port: server.config.port,
        host: '127.0.0.1',
        localAddress: `127.0.1.${index + 1}`,
      });
      socket.on('error', () => {});
      const head = `POST /subscriptions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${accessToken}\r\n`;
      socket.write(`${head}content-type: application/json\r\ncontent-length: 1048576\r\n\r\n{`);
      sockets.push(socket);
    }
  }
  await until(
    async () => sockets.filter(({ bytesRead, closed }) => closed || bytesRead > 0).length,
    (refused) => refused > 0,
  );
  for (let round = 0; round < 5; round += 1) {
    const large = await victim.request('POST', '/articles', {
      json: { title: 'a', body: 'b'.repeat(60_000) },
    });
    assert.equal(large.status, 201, large.text);
  }
});

test('attack: two hundred streams of apps that one account created leave some to others', async () => {
  const slots = new StreamSlots({ addHook: () => server as never });
  const take = (clientId: string, creatorId: string | null) =>
    slots.take(holderOf({ tokenId: clientId, accountId: null, creatorId, clientId }));
  const hostile = Array.from({ length: 200 }, (_none, index) => take(`app ${index}`, 'developer'));
  assert.ok(hostile.every(({ signal }) => !signal.aborted));
  const others = [take('operator’s', null), take('other', 'another developer')];
  assert.equal(hostile.filter(({ signal }) => signal.aborted).length, 2);
  assert.ok(others.every(({ signal }) => !signal.aborted));
  assert.throws(() => take('one more', 'developer'), /can have no more streams/);
});

test('apps count for their creator, also after it left, and those of the operator for themselves', async () => {
  const [developer, customer, administrator] = [
    await createConsoleUser(server),
    await createConsoleUser(server),
    await createConsoleUser(server, { isAdmin: true }),
  ];
  const kept = await createOwnApp(developer);
  const given = await createOwnApp(developer);
  await handOver(developer, given, customer);
  const ofAdministrator = await createOwnApp(administrator);
  const ofOperator = await createTestClient(server, { scopes, maySubscribe: true });
  const operatorToken = await clientToken(server, ofOperator, scopes);
  const lanes = new LeasedLanes(defaultQuotas);
  const tenants: string[] = [];
  for (const accessToken of [
    kept.accessToken,
    given.accessToken,
    ofAdministrator.accessToken,
    operatorToken,
  ]) {
    const { subscription, creatorId } = await loadOwnLane(accessToken);
    tenants.push(lanes.tenantOf(subscription, creatorId).key);
  }
  const made = `creator:${developer.account.id}`;
  assert.deepEqual(tenants, [made, made, `client:${ofAdministrator.id}`, `client:${ofOperator.id}`]);
});

async function loadOwnLane(accessToken: string): Promise<LaneState> {
  const json = { url: 'https://hooks.example/', kinds: ['push'] };
  const made = await requester(server, accessToken)('POST', '/subscriptions', { json });
  assert.equal(made.status, 201, made.text);
  const node = String(nextNode++);
  await addNode(server.db, node);
  const { rows } = await sql<{ lane: string }>`
    update lane_progress set owner = ${node}::bigint, due_at = null
    where lane = (select lane from subscriptions where id = ${made.body.id}) returning lane`.execute(
    server.db,
  );
  const rules = {
    sealer: createSealer(testSecret, 'subscription-secret'),
    cursors: new AgentCursors(testSecret),
    webhookId: 'event' as const,
    appSubscriptions: 'all' as const,
  };
  const [state] = await loadLanes(server.db, node, [Number(rows[0]?.lane)], rules, (error) =>
    assert.fail(error),
  );
  assert.ok(state);
  return state;
}
