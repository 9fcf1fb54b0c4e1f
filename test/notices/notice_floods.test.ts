/** A hostile app changes its secrets all the time: the notices of others are mailed as if it did not. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { newId } from '../../src/crypto/ids.ts';
import { openDatabase } from '../../src/database/database.ts';
import { collectNotices } from '../../src/notices/digest.ts';
import { createTestAccount, createTestClient } from '../support/clients/oauth.ts';
// First, so that it sees the server's connections.
import { captureStatements, planModes, rowsOf } from '../support/database/plans.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

/** It sends no mail, so that nothing else collects notices. */
const server = await startTestServer({ after });
const { db } = server;

/** Creates an app with a member. */
async function createMember() {
  const [account, client] = [await createTestAccount(server), await createTestClient(server)];
  await sql`
    insert into app_members (client_id, account_id, role) values (${client.id}, ${account.id}, 'owner')`.execute(
    db,
  );
  return { accountId: account.id, clientId: client.id };
}

type Member = Awaited<ReturnType<typeof createMember>>;

const addNotice = ({ clientId }: Member, subscription: string | null, details = '{}') =>
  sql`select add_notice('secret_rotated', 'client', null, ${clientId}, ${subscription}::uuid, ${details}::jsonb)`.execute(
    db,
  );

/** Stores notices as an earlier version did, a few minutes ago. */
const store = ({ accountId, clientId }: Member, count: number, kind = 'secret_rotated') =>
  sql`
    insert into notices (account_id, kind, client_id, at)
    select ${accountId}, ${kind}, ${clientId}, now() - interval '5 minutes' from generate_series(1, ${count}::int)`.execute(
    db,
  );

async function waiting({ accountId }: Member): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from notices where account_id = ${accountId} and mail_id is null`.execute(db);
  return rows[0]?.count ?? -1;
}

async function mails({ accountId }: Member): Promise<number> {
  const { rows } = await sql<{ count: number }>`
    select count(*)::int from mails where account_id = ${accountId}`.execute(db);
  return rows[0]?.count ?? -1;
}

test('what waits to be told already is not added again, until it is part of a mail', async () => {
  const member = await createMember();
  const subscription = newId();
  for (let count = 0; count < 5; count += 1) await addNotice(member, subscription);
  assert.equal(await waiting(member), 1);
  // Of the app itself, of another subscription, and other news of the same one.
  for (let count = 0; count < 5; count += 1) {
    await addNotice(member, null);
    await addNotice(member, newId());
    await addNotice(member, subscription, '{"reason":"gone"}');
  }
  assert.equal(await waiting(member), 1 + 1 + 5 + 1);
  await collectNotices(db, 0);
  assert.deepEqual([await waiting(member), await mails(member)], [0, 1]);
  await addNotice(member, subscription);
  assert.equal(await waiting(member), 1);
});

test('attack: an app with very many subscriptions has a hundred notices that wait, and others have theirs', async () => {
  const hostile = await createMember();
  const other = await createMember();
  await sql`
    insert into app_members (client_id, account_id, role) values (${other.clientId}, ${hostile.accountId}, 'developer')`.execute(
    db,
  );
  await sql`
    select add_notice('secret_rotated', 'client', null, ${hostile.clientId}, gen_random_uuid(), '{}')
    from generate_series(1, 500)`.execute(db);
  assert.equal(await waiting(hostile), 100);
  await addNotice(hostile, newId());
  assert.equal(await waiting(hostile), 100);
  await addNotice(other, null);
  assert.deepEqual([await waiting(hostile), await waiting(other)], [101, 1]);
});

test('the notices of an account are not read in search of those of others', async () => {
  const [hostile, ...others] = [await createMember(), await createMember(), await createMember()];
  await store(hostile, 20_000);
  for (const other of others) await store(other, 1);
  await sql`analyze notices`.execute(db);
  const watched = openDatabase({ connectionString: server.databaseUrl, connectionsMax: 1 });
  after(() => watched.destroy());
  for (const mode of planModes) {
    const statements = await captureStatements(mode, () => collectNotices(watched, 3_600));
    const rows = rowsOf(statements);
    assert.ok(rows > 0 && rows < 500, `${mode}: ${rows} rows`);
  }
  for (const member of [hostile, ...others]) {
    // A digest whose account is locked at the moment is left to the next call, and a mailed one is not made again.
    const collected = async () => {
      await collectNotices(db);
      return waiting(member);
    };
    await until(collected, (count) => count === 0);
    assert.equal(await mails(member), 1);
  }
});

test('a digest that fails keeps none of the others back', async () => {
  const [failing, other] = [await createMember(), await createMember()];
  await store(failing, 1);
  await sql`update notices set at = at - interval '1 hour' where account_id = ${failing.accountId}`.execute(
    db,
  );
  await store(other, 1);
  await sql`
    create function refuse() returns trigger language plpgsql as $$
    begin
      raise exception 'no mail for this account';
    end $$`.execute(db);
  await sql
    .raw(
      `create trigger refused before insert on mails for each row when (new.account_id = '${failing.accountId}') execute function refuse()`,
    )
    .execute(db);
  await assert.rejects(collectNotices(db), (error) => {
    assert(error instanceof AggregateError);
    assert.match(String(error.errors[0]), /no mail for this account/);
    return true;
  });
  assert.deepEqual([await waiting(failing), await mails(other)], [1, 1]);
  await sql`drop trigger refused on mails`.execute(db);
  await collectNotices(db);
  assert.equal(await mails(failing), 1);
});
