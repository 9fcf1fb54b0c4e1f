/**
 * Very many withdrawals at once, and a slow database: each node still refuses a withdrawn token within a second, and serves
 * everybody else.
 */

import assert from 'node:assert/strict';
import { after, type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import pg from 'pg';
import { newId } from '../../src/crypto/ids.ts';
import { openDatabase } from '../../src/database/database.ts';
import { Notifications } from '../../src/database/notifications.ts';
import { endClient } from '../../src/grants/grant.ts';
import { WithdrawalList } from '../../src/grants/withdrawals.ts';
import { createApiUser, requester } from '../support/clients/api_client.ts';
import { createTestAccount, createTestClient, mintAccessToken, postForm } from '../support/clients/oauth.ts';
import { type DatabaseProxy, startDatabaseProxy } from '../support/database/database_proxy.ts';
import { captureStatements, planModes, rowsOf } from '../support/database/plans.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const server = await startTestServer({ after });
const { db } = server;
/** The time within which every node refuses a withdrawn token. */
const promisedMs = 1_000;

/** The list of a node that no notification reaches. */
function deafList(of = db): WithdrawalList {
  return new WithdrawalList(of, new Notifications(server.databaseUrl, () => {}));
}

function withdrawable(tokenId: string) {
  return { tokenId, grantId: null, grantRevision: 0, clientEpoch: newId() };
}

async function addGrants(accountId: string, clientId: string, count: number): Promise<void> {
  await sql`
    insert into grants (id, account_id, client_id, scopes)
    select gen_random_uuid(), ${accountId}, ${clientId}, '{read:posts}' from generate_series(1, ${count}::int)`.execute(
    db,
  );
}

/** Counts notifications of withdrawals until the returned function is called. */
async function countNotifications(t: TestContext): Promise<() => Promise<number>> {
  const client = new pg.Client({ connectionString: server.databaseUrl });
  await client.connect();
  t.after(() => client.end());
  let count = 0;
  const { promise, resolve } = Promise.withResolvers<void>();
  client.on('notification', ({ payload }) => {
    if (payload === 'the end') resolve();
    else count += 1;
  });
  await client.query('listen "nuncio.withdrawal"');
  return async () => {
    await sql`select announce('withdrawal', 'the end')`.execute(db);
    await promise;
    return count;
  };
}

test('the end of an app with many grants is one entry, and ends every token in time', async (t) => {
  const [account, client, bystander] = [
    await createTestAccount(server),
    await createTestClient(server),
    await createApiUser(server),
  ];
  await addGrants(account.id, client.id, 5_000);
  const minted = await mintAccessToken(server, { account, client, scopes: ['read:posts'] });
  const user = requester(server, minted.accessToken);
  const epoch = (await sql<{ epoch: string }>`select epoch from clients where id = ${client.id}`.execute(db))
    .rows[0];
  const claims = {
    ...withdrawable(minted.tokenId),
    grantId: minted.grantId,
    clientEpoch: epoch?.epoch as string,
  };
  const list = deafList();
  await list.fresh();
  const countOf = await countNotifications(t);

  let endedAt = Number.POSITIVE_INFINITY;
  const answers: { at: number; status: number; isListed: boolean; bystander: number }[] = [];
  const use = async () => {
    let at: number;
    do {
      at = performance.now();
      const [{ status }, others] = await Promise.all([
        user('GET', '/articles?limit=1'),
        bystander.request('GET', '/articles?limit=1'),
        list.fresh(),
      ]);
      answers.push({ at, status, isListed: list.has(claims), bystander: others.status });
    } while (at <= endedAt + promisedMs);
  };
  const users = Array.from({ length: 4 }, use);
  await until(
    async () => answers.length,
    (count) => count > 0,
  );
  assert.ok(await endClient(db, client.id));
  endedAt = performance.now();
  await Promise.all(users);

  const late = answers.filter(({ at }) => at > endedAt + promisedMs);
  assert.ok(late.length > 0);
  assert.deepEqual([...new Set(late.map(({ status }) => status))], [401]);
  assert.deepEqual([...new Set(late.map(({ isListed }) => isListed))], [true]);
  assert.deepEqual([...new Set(answers.map((answer) => answer.bystander))], [200]);
  assert.equal(await countOf(), 1);
  const { rows } = await sql<{ kind: string; subject: string }>`
    select w.kind, w.subject from withdrawals w
    where w.subject = ${claims.clientEpoch} or w.subject in (select id::text from grants where client_id = ${client.id})`.execute(
    db,
  );
  assert.deepEqual(rows, [{ kind: 'client_epoch', subject: claims.clientEpoch }]);
  // What does not use the list of a node: introspection, and the log of each grant.
  const reader = await createTestClient(server, { scopes: ['read:tokens'] });
  const { body } = await postForm(server, '/oauth/introspect', reader, { token: minted.accessToken });
  assert.equal(body.active, false);
  const { rows: logged } = await sql<{ count: number }>`
    select count(distinct grant_id)::int as count from audit_entries
    where kind = 'grant.withdrawn' and client_id = ${client.id} and details ->> 'reason' = 'client_deleted'`.execute(
    db,
  );
  assert.deepEqual(logged, [{ count: 5_001 }]);
});

test('a grant is listed whose client remains, whatever the reason says', async () => {
  const user = await createApiUser(server);
  await sql`
    update grants set withdrawn_at = now(), withdrawn_reason = 'client_deleted' where id = ${user.grantId}`.execute(
    db,
  );
  await sleep(promisedMs);
  assert.equal((await user.request('GET', '/articles?limit=1')).status, 401);
});

test('the end of an account with many grants is one notification, and loses none', async (t) => {
  const account = await createTestAccount(server);
  const client = await createTestClient(server);
  await addGrants(account.id, client.id, 3_500);
  const list = deafList();
  await list.fresh();
  const countOf = await countNotifications(t);
  await sql`update accounts set disabled_at = now() where id = ${account.id}`.execute(db);
  assert.equal(await countOf(), 1);
  await sleep(promisedMs);
  await list.fresh();
  const { rows } = await sql<{ id: string }>`select id from grants where account_id = ${account.id}`.execute(
    db,
  );
  assert.equal(rows.length, 3_500);
  assert.deepEqual(
    rows.filter(({ id }) => !list.has({ ...withdrawable(newId()), grantId: id })),
    [],
  );
});

test('a node that reads while transactions commit in any order sees each within a second', async (t) => {
  const list = deafList();
  await list.fresh();
  const session = new pg.Client({ connectionString: server.databaseUrl });
  await session.connect();
  t.after(() => session.end());
  await session.query('set search_path to nuncio');
  const insert = `
    insert into withdrawals (kind, subject, until)
    select 'token', $1 || n, now() + interval '1 hour' from generate_series(1, $2::int) n`;
  for (const [round, size] of [1, 999, 1_000, 1_001, 2_000].entries()) {
    const [early, later] = [`early-${round}-`, `later-${round}-`];
    const sees = async (prefix: string) => {
      await sleep(promisedMs);
      await list.fresh();
      const missing = Array.from({ length: size }, (_, n) => prefix + (n + 1)).filter(
        (id) => !list.has(withdrawable(id)),
      );
      assert.deepEqual(missing, []);
    };
    // Its number is lower, and it commits after the node has read past it.
    await session.query('begin');
    await session.query(insert, [early, size]);
    await sql`
      insert into withdrawals (kind, subject, until)
      select 'token', ${later} || n, now() + interval '1 hour' from generate_series(1, ${size}::int) n`.execute(
      db,
    );
    await sees(later);
    assert.equal(list.has(withdrawable(`${early}1`)), false);
    await session.query('commit');
    await sees(early);
  }
});

test('while a transaction stays open, a read of the list does not look at what it has read', async (t) => {
  const session = new pg.Client({ connectionString: server.databaseUrl });
  await session.connect();
  t.after(() => session.end());
  await session.query('set search_path to nuncio');
  await session.query('begin');
  await session.query('select pg_current_xact_id()');
  await sql`
    insert into withdrawals (kind, subject, until)
    select 'token', 'while-open-' || n, now() + interval '1 hour' from generate_series(1, 5000) n`.execute(
    db,
  );
  for (const mode of planModes) {
    const list = deafList();
    await list.fresh();
    assert.ok(list.has(withdrawable('while-open-5000')));
    await sleep(promisedMs);
    const statements = await captureStatements(mode, async () => list.fresh());
    assert.equal(statements.length, 1);
    const rows = rowsOf(statements);
    assert.ok(rows < 1_000, `${rows} rows (${mode})`);
  }
  const list = deafList();
  await list.fresh();
  await session.query(
    `insert into withdrawals (kind, subject, until) values ('token', 'of-the-open', now() + interval '1 hour')`,
  );
  await session.query('commit');
  await sleep(promisedMs);
  await list.fresh();
  assert.ok(list.has(withdrawable('of-the-open')));
});

/** A list behind a connection of so many bytes per second. */
async function slowList(
  t: TestContext,
  bytesPerSecond: number,
): Promise<{ list: WithdrawalList; proxy: DatabaseProxy }> {
  const proxy = await startDatabaseProxy(server.databaseUrl);
  const slow = openDatabase({ connectionString: proxy.url, connectionsMax: 2, onIdleError: () => {} });
  t.after(async () => {
    await proxy.close();
    await slow.destroy();
  });
  const list = deafList(slow);
  await list.fresh();
  proxy.slow(bytesPerSecond);
  return { list, proxy };
}

test('a list that takes longer than the timeout of a statement is read nevertheless', async (t) => {
  const { list } = await slowList(t, 300_000);
  await sql`
    insert into withdrawals (kind, subject, until)
    select 'token', 'slow-' || n, now() + interval '1 hour' from generate_series(1, 25000) n`.execute(db);
  await sleep(promisedMs);
  await list.fresh();
  assert.ok(list.has(withdrawable('slow-1')) && list.has(withdrawable('slow-25000')));
});

test('a read that is interrupted again and again gets through', async (t) => {
  const { list, proxy } = await slowList(t, 300_000);
  await sql`
    insert into withdrawals (kind, subject, until)
    select 'token', 'cut-' || n, now() + interval '1 hour' from generate_series(1, 12000) n`.execute(db);
  await sleep(promisedMs);
  const ids = Array.from({ length: 12_000 }, (_, n) => `cut-${n + 1}`);
  const known = () => ids.filter((id) => list.has(withdrawable(id))).length;
  let [cuts, before] = [0, 0];
  for (let isComplete = false; !isComplete; ) {
    const read = Promise.resolve(list.fresh()).then(
      () => 'complete',
      () => 'cut',
    );
    // Two pages, then the connection is cut.
    await Promise.race([read, until(async () => known() >= Math.min(before + 2_000, ids.length), Boolean)]);
    if (known() < ids.length) {
      proxy.cut();
      cuts += 1;
    }
    isComplete = (await read) === 'complete';
    assert.ok(isComplete || known() > before, 'each read begins where the last one ended');
    before = known();
    proxy.mend();
  }
  assert.equal(known(), ids.length);
  assert.ok(cuts > 1);
});

test('a request does not trust a read that began long before it', async (t) => {
  await sql`
    insert into withdrawals (kind, subject, until)
    select 'token', 'old-' || n, now() + interval '1 hour' from generate_series(1, 900) n`.execute(db);
  const { list, proxy } = await slowList(t, Number.POSITIVE_INFINITY);
  await sql`update withdrawals set transaction_id = pg_current_xact_id() where subject like 'old-%'`.execute(
    db,
  );
  await sleep(promisedMs);
  proxy.slow(40_000);
  const { rows } = await sql<{ now: string }>`select clock_timestamp()::text as now`.execute(db);
  const first = list.fresh();
  // The statement has read the table, and its result is on the way.
  const isRead = () =>
    sql`
    select from pg_stat_activity where query like '%as left_ms%' and query not like '%pg_stat_activity%'
      and query_start > ${rows[0]?.now}::timestamptz and (state = 'idle' or wait_event = 'ClientWrite')`.execute(
      db,
    );
  await until(isRead, (found) => found.rows.length > 0);
  await sql`
    insert into withdrawals (kind, subject, until) values ('token', 'meanwhile', now() + interval '1 hour')`.execute(
    db,
  );
  await sleep(promisedMs);
  await list.fresh();
  assert.ok(list.has(withdrawable('meanwhile')));
  await first;
});

test('a node that reads very many entries asks the database for the tokens of requests meanwhile', async () => {
  const [one, other] = [withdrawable(newId()), withdrawable(newId())];
  await sql`
    insert into withdrawals (subject, kind, until)
    select gen_random_uuid()::text, 'token', now() + interval '1 hour' from generate_series(1, 60000)`.execute(
    db,
  );
  await sql`
    insert into withdrawals (subject, kind, until) values (${one.tokenId}, 'token', now() + interval '1 hour')`.execute(
    db,
  );
  const list = deafList();
  assert.deepEqual(await Promise.all([one, other].map((token) => list.includes(token))), [true, false]);
  assert.ok(!list.has(one), 'the last page has been read');
  await list.fresh();
  assert.deepEqual(await Promise.all([one, other].map((token) => list.includes(token))), [true, false]);
  assert.ok(list.has(one));
});
