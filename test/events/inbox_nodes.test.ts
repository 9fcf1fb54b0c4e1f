/** Publishing by SQL with two servers on one database: only one at a time takes events out of the inbox. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { Lease } from '../../src/database/lease.ts';
import { createTestAccount } from '../support/clients/oauth.ts';
import { connectApplication } from '../support/publishing/sql_publisher.ts';
import { startTwoNodes } from '../support/servers/two_nodes.ts';
import { pushBody, until } from '../support/webhooks/apps.ts';

const publish = 'select nuncio.publish($1, $2, $3) as id';
const publishers = 4;
const roundsBeforeCrash = 60;
const roundsAfterCrash = 60;

test('two servers store each event once and in order when one is killed while applications publish', async (t) => {
  const { db, databaseUrl, first, serverB } = await startTwoNodes(t);
  const storedIds = async (account: string) =>
    (
      await sql<{
        id: string;
      }>`select id from events where account_id = ${account} order by position`.execute(db)
    ).rows.map(({ id }) => id);
  const crash = Promise.withResolvers<void>();
  let published = 0;
  await Promise.all(
    Array.from({ length: publishers }, async () => {
      const account = await createTestAccount(serverB);
      const application = await connectApplication(t, databaseUrl);
      const ids: string[] = [];
      for (let round = 0; round < roundsBeforeCrash + roundsAfterCrash; round += 1) {
        if (round === roundsBeforeCrash) await crash.promise;
        const { rows } = await application.query(publish, ['push', account.id, pushBody(String(round))]);
        ids.push(rows[0].id);
        published += 1;
        if (published === (publishers * roundsBeforeCrash) / 2) {
          assert.equal(await first.end('SIGKILL'), 'SIGKILL');
          crash.resolve();
        }
      }
      const stored = await until(
        () => storedIds(account.id),
        ({ length }) => length >= ids.length,
      );
      assert.deepEqual(stored, ids);
    }),
  );
  assert.equal((await sql`select from inbox`.execute(db)).rows.length, 0);
});

test('servers stay ready while another one takes events in', async (t) => {
  const { db, databaseUrl, serverA, serverB } = await startTwoNodes(t);
  const account = await createTestAccount(serverB);
  const application = await connectApplication(t, databaseUrl);
  const statuses = new Set<number>();
  const lease = new Lease({ db, name: 'intake', holder: 'another', onError: assert.fail });
  assert.equal(await lease.acquire(), 'self');
  await application.query(publish, ['push', account.id, pushBody('one')]);
  // Longer than the time without progress after which a server counts as down.
  const end = performance.now() + 13_000;
  while (performance.now() < end) {
    for (const { baseUrl } of [serverA, serverB]) statuses.add((await fetch(`${baseUrl}/readyz`)).status);
    await sleep(250);
  }
  assert.equal((await sql`select from inbox`.execute(db)).rows.length, 1);
  assert.deepEqual([...statuses], [200]);
  await lease.release();
  await until(
    async () => (await sql`select from inbox`.execute(db)).rows.length,
    (rows) => rows === 0,
  );
});
