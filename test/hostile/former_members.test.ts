/** What a former member of an app keeps: nothing. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { deleteAccount } from '../../src/accounts/external_account.ts';
import { suspendAbandonedApps } from '../../src/apps/abandoned.ts';
import { inTransaction } from '../../src/database/database.ts';
import { type ConsoleUser, createConsoleUser } from '../support/console/console_user.ts';
import { startTestServer } from '../support/servers/server.ts';

const server = await startTestServer({ after });
const { db } = server;
const json = { client_name: 'Reader', redirect_uris: ['https://reader.example/callback'] };

async function createAppOf(owner: ConsoleUser): Promise<string> {
  const { status, body, text } = await owner.request('POST', '/apps', { json });
  assert.equal(status, 201, text);
  return `/apps/${body.client_id}`;
}

/** Invites a user and accepts. */
async function join(owner: ConsoleUser, path: string, user: ConsoleUser, role: string): Promise<void> {
  const put = await owner.request('PUT', `${path}/members/${user.account.email}`, { json: { role } });
  assert.equal(put.status, 201, put.text);
  const accepted = await accept(user);
  assert.equal(accepted, 200);
}

/** Accepts the only invitation of a user. @returns the status; 404 if there is none */
async function accept(user: ConsoleUser): Promise<number> {
  const { body } = await user.request('GET', '/app-invitations');
  const [invitation] = body.items;
  if (invitation === undefined) return 404;
  return (await user.request('POST', `/app-invitations/${invitation.id}/accept`)).status;
}

const users = async (count: number) =>
  Promise.all(Array.from({ length: count }, () => createConsoleUser(server)));

type End = (path: string, former: ConsoleUser, owner: ConsoleUser) => Promise<unknown>;

const ends: Readonly<Record<string, End>> = {
  'is removed': (path, former, owner) => owner.request('DELETE', `${path}/members/${former.account.id}`),
  leaves: (path, former) => former.request('DELETE', `${path}/members/${former.account.id}`),
  'is demoted': (path, former, owner) =>
    owner.request('PUT', `${path}/members/${former.account.id}`, { json: { role: 'developer' } }),
  'is disabled': (_path, { account }) =>
    sql`update accounts set disabled_at = now() where id = ${account.id}`.execute(db),
  'is deleted': (_path, { account }) =>
    inTransaction(db, (tx) => deleteAccount(tx, account.id, () => suspendAbandonedApps(tx, account.id))),
};

for (const [how, end] of Object.entries(ends)) {
  test(`attack: an owner who ${how} does not return by an invitation to another account of theirs`, async () => {
    const [owner, former, second] = (await users(3)) as [ConsoleUser, ConsoleUser, ConsoleUser];
    const path = await createAppOf(owner);
    await join(owner, path, former, 'owner');
    const invitation = `${path}/members/${second.account.email}`;
    const put = await former.request('PUT', invitation, { json: { role: 'owner' } });
    assert.equal(put.status, 201, put.text);
    const { body } = await second.request('GET', '/app-invitations');
    const [{ id }] = body.items;
    await end(path, former, owner);
    assert.deepEqual((await second.request('GET', '/app-invitations')).body.items, []);
    assert.equal((await second.request('POST', `/app-invitations/${id}/accept`)).status, 404);
    assert.equal((await second.request('GET', path)).status, 404);
    assert.equal((await owner.request('GET', invitation)).status, 404);
    assert.doesNotMatch((await owner.request('GET', `${path}/members`)).text, /invited/);
    // Another owner may invite the same person.
    const again = await owner.request('PUT', invitation, { json: { role: 'developer' } });
    assert.equal(again.status, 201, again.text);
    assert.equal(await accept(second), 200);
  });
}

test('an administrator’s invitation lasts while they are one', async () => {
  const [owner, first, second] = (await users(3)) as [ConsoleUser, ConsoleUser, ConsoleUser];
  const admin = await createConsoleUser(server, { isAdmin: true });
  const path = await createAppOf(owner);
  for (const { account } of [first, second]) {
    const put = await admin.request('PUT', `${path}/members/${account.email}`, { json: { role: 'owner' } });
    assert.equal(put.status, 201, put.text);
  }
  assert.equal(await accept(first), 200);
  await sql`update accounts set is_admin = false where id = ${admin.account.id}`.execute(db);
  assert.equal(await accept(second), 404);
});

test('attack: a former member’s idempotency key does not return a webhook secret again', async () => {
  const [owner, former] = (await users(2)) as [ConsoleUser, ConsoleUser];
  const path = await createAppOf(owner);
  await join(owner, path, former, 'developer');
  const keyed = { headers: { 'idempotency-key': 'mine' } };
  const subscription = { url: 'https://a.example/h', kinds: ['push'] };
  const made = await former.request('POST', `${path}/subscriptions`, { ...keyed, json: subscription });
  assert.equal(made.status, 201, made.text);
  const rotate = `/subscriptions/${made.body.id}/rotate-secret`;
  const rotated = await former.request('POST', rotate, { headers: { 'idempotency-key': 'rotate' } });
  assert.equal(rotated.status, 200, rotated.text);
  await owner.request('DELETE', `${path}/members/${former.account.id}`);
  assert.equal(
    (await former.request('POST', rotate, { headers: { 'idempotency-key': 'rotate' } })).status,
    404,
  );
  assert.equal(
    (await former.request('POST', `${path}/subscriptions`, { ...keyed, json: subscription })).status,
    404,
  );
});

test('a former member’s live log ends', async () => {
  const [owner, former] = (await users(2)) as [ConsoleUser, ConsoleUser];
  const path = await createAppOf(owner);
  await join(owner, path, former, 'developer');
  const made = await former.request('POST', `${path}/subscriptions`, {
    json: { url: 'https://a.example/h', kinds: ['push'] },
  });
  const stream = await fetch(`${server.baseUrl}/subscriptions/${made.body.id}/deliveries`, {
    headers: { authorization: `Bearer ${former.accessToken}`, accept: 'text/event-stream' },
  });
  assert.equal(stream.status, 200);
  await owner.request('DELETE', `${path}/members/${former.account.id}`);
  assert.match(await stream.text(), /"reason":"gone"/);
});
