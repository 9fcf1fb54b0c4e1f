/** Runs the file twice as a user of the role; there is one order and one event. */

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { sql } from 'kysely';
import pg from 'pg';
import { until } from '../../../test/support/webhooks/apps.ts';
import type { Check, Stage } from '../check.ts';

export const check: Check = async ({ server, folder }) => {
  const text = await readFile(join(folder, 'publish.sql'), 'utf8');
  const role = `shop_${process.pid}`;
  await sql
    .raw(`
    create schema shop;
    create table shop.orders (id text primary key, customer text not null, cents integer not null);
    create role ${role};
    grant nuncio_publisher to ${role};
    grant usage on schema shop to ${role};
    grant insert, select on shop.orders to ${role};`)
    .execute(server.db);
  try {
    assert.equal(await runAs(role, server.databaseUrl, text), true, 'the file runs');
    await runAs(role, server.databaseUrl, text);
    await checkRows(server);
  } finally {
    await sql.raw(`drop owned by ${role}; drop role ${role};`).execute(server.db);
  }
};

/** @returns whether the file ran to its end */
async function runAs(role: string, databaseUrl: string, text: string): Promise<boolean> {
  const client = new pg.Client(databaseUrl);
  await client.connect();
  try {
    await client.query(`set role ${role}`);
    await client.query(text);
    return true;
  } catch {
    return false;
  } finally {
    await client.end();
  }
}

async function checkRows({ db }: Stage['server']): Promise<void> {
  const events = await until(
    async () =>
      (
        await sql<{ body: string }>`
          select e.body from events e join accounts a on a.id = e.account_id
          where e.kind = 'invoice.paid' and a.external_id = 'customer-7'`.execute(db)
      ).rows,
    (rows) => rows.length > 0,
  );
  const body = { invoice: { id: 'order-1', amount: 4_900, currency: 'EUR' } };
  assert.deepEqual(
    events.map((event) => JSON.parse(event.body)),
    [body],
  );
  const { rows } = await sql<{ waiting: string; orders: string }>`
    select (select count(*) from inbox) as waiting, (select count(*) from shop.orders) as orders`.execute(db);
  assert.deepEqual(rows, [{ waiting: '0', orders: '1' }]);
}
