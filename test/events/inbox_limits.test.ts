/** Limits of the inbox and of rejected events: an account reaches its own, and others publish on. */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { sql } from 'kysely';
import { createTestAccount } from '../support/clients/oauth.ts';
import { createDatabase } from '../support/database/database.ts';
import { connectApplication } from '../support/publishing/sql_publisher.ts';
import { startTestServer } from '../support/servers/server.ts';
import { pushBody, until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;

const publish = 'select nuncio.publish($1, $2, $3) as id';
const ofAccount = (what: string) => (error: unknown) =>
  (error as { code: string }).code === '53400' && String(error).includes(`${what} of this account wait`);

/** A database without a server: nothing is taken in. */
async function openInbox(t: TestContext) {
  const database = await createDatabase();
  const application = await connectApplication(t, database.url);
  t.after(() => database.drop());
  const send = (account: string) => application.query(publish, ['push', account, pushBody()]);
  const reject = (account: string, count: number, size = 2) =>
    application.query(
      `insert into nuncio.rejected_events (id, account, event_id, is_chosen, kind, body, size, reason, errors, published_at)
       select gen_random_uuid(), $1 || case when $4 then '' else n::text end, 'e', false, 'push', '{}', $3, 'wrong', '[]', now()
       from generate_series(1, $2) as n`,
      [account, count, size, !account.endsWith('#')],
    );
  return { application, send, reject };
}

test('an account’s rejected events count against that account alone', async (t) => {
  const { application, send, reject } = await openInbox(t);
  await reject('many', 999);
  await send('many');
  await reject('many', 1);
  await reject('large', 40, 262_144);
  for (const account of ['many', 'large']) await assert.rejects(send(account), ofAccount('rejected events'));
  await send('other');
  // Discarding one makes room for one, however it is discarded.
  await application.query(
    `delete from nuncio.rejected_events where id = (select id from nuncio.rejected_events where account = 'many' limit 1)`,
  );
  await send('many');
});

test('half of the inbox is for accounts with few events in it', async (t) => {
  const { application, send } = await openInbox(t);
  for (const account of ['few', 'many']) await send(account);
  await application.query(`select nuncio.publish('push', 'many', '{}') from generate_series(1, 998)`);
  await application.query(`select setval('nuncio.inbox_ids', 524288)`);
  await send('many');
  await application.query(`select setval('nuncio.inbox_ids', 524289)`);
  await assert.rejects(send('many'), ofAccount('events'));
  await send('few');
  await send('new');
});

test('an account that has many more events rejected than it may stops nobody else', async () => {
  const [hostile, other] = [await createTestAccount(server), await createTestAccount(server)];
  await sql`
    insert into rejected_events (id, account, event_id, is_chosen, kind, body, size, reason, errors, published_at)
    select gen_random_uuid(), ${hostile.id}, 'e', false, 'push', '{}', 2, 'wrong', '[]', now()
    from generate_series(1, 210000)`.execute(db);
  // Its rejection makes the server count.
  await sql`select publish('push', ${other.id}, '{}')`.execute(db);
  const limits = () =>
    sql<{ is_blocked: boolean; is_full: boolean; rejected: number }>`
      select is_blocked, is_full, (select count(*)::int from rejected_events where account = ${other.id}) as rejected
      from intake`.execute(db);
  await until(limits, ({ rows }) => rows[0]?.rejected === 1);
  for (let count = 2; count <= 3; count += 1) {
    await sql`select publish('push', ${other.id}, '{}')`.execute(db);
    const { rows } = await until(limits, ({ rows }) => rows[0]?.rejected === count);
    assert.deepEqual(rows, [{ is_blocked: false, is_full: false, rejected: count }]);
  }
  await assert.rejects(
    sql`select publish('push', ${hostile.id}, '{}')`.execute(db),
    /too many rejected events of this account wait/,
  );
});

test('many accounts with rejected events stop those with one, and then all', async () => {
  await sql`truncate rejected_events`.execute(db);
  const [spoiled, clean] = [await createTestAccount(server), await createTestAccount(server)];
  const fill = (accounts: number, prefix: string) =>
    sql`
      insert into rejected_events (id, account, event_id, is_chosen, kind, body, size, reason, errors, published_at)
      select gen_random_uuid(), ${prefix} || n / 1000, 'e', false, 'push', '{}', 2, 'wrong', '[]', now()
      from generate_series(0, ${accounts}::int * 1000 - 1) as n`.execute(db);
  const count = (account: string) => sql`select publish('push', ${account}, '{}')`.execute(db);
  const limits = () =>
    sql<{ is_blocked: boolean; is_full: boolean }>`select is_blocked, is_full from intake`.execute(db);
  await fill(100, 'a');
  await count(spoiled.id);
  await until(limits, ({ rows }) => rows[0]?.is_blocked === true && rows[0].is_full === false);
  await assert.rejects(count(spoiled.id), /too many rejected events of this account wait/);
  await fill(100, 'b');
  await count(clean.id);
  await until(limits, ({ rows }) => rows[0]?.is_full === true);
  const fresh = await createTestAccount(server);
  await assert.rejects(count(fresh.id), /too many rejected events wait/);
});
