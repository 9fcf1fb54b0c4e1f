/** `examples/outbox` and the code blocks of docs/outbox.md. */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { mend, mendOne, openShop, startRelay } from '../../examples/outbox/postgres.ts';
import { openShop as openSqliteShop } from '../../examples/outbox/sqlite.ts';
import { createTestClient } from '../support/clients/oauth.ts';
import { createForeignDatabase } from '../support/database/database.ts';
import { temporaryFolder } from '../support/servers/process.ts';
import { startTestServer } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

const folder = new URL('../../examples/outbox/', import.meta.url);
const server = await startTestServer({ after });
const client = await createTestClient(server, {
  grantTypes: ['client_credentials'],
  scopes: ['write:events'],
  redirectUris: [],
});

async function invoicesOf(customer: string): Promise<string[]> {
  const { rows } = await sql<{ invoice: string }>`
    select body::json -> 'invoice' ->> 'id' as invoice from events join accounts on accounts.id = account_id
    where external_id = ${customer} order by position`.execute(server.db);
  return rows.map(({ invoice }) => invoice);
}

test('orders in PostgreSQL publish their events, also from plain SQL, and a rejected event is retried', async (t) => {
  const database = await createForeignDatabase();
  const { pool, outbox, placeOrder } = await openShop(database.url);
  await pool.query('create table orders (id text primary key, customer text, cents int)');
  const relay = startRelay(outbox, server.baseUrl, client.id, client.secret ?? '');
  t.after(async () => {
    await relay.stop();
    await pool.end();
    await database.drop();
  });
  await placeOrder({ id: 'in_17', customer: 'user-4711', cents: 1_200 });
  await assert.rejects(placeOrder({ id: 'in_17', customer: 'user-4711', cents: 1_200 }));
  await pool.query(readFileSync(new URL('insert.sql', folder), 'utf8'));
  assert.deepEqual(
    await until(
      () => invoicesOf('user-4711'),
      (invoices) => invoices.length === 2,
    ),
    ['in_17', 'in_18'],
  );
  const id = await outbox.append(pool, {
    kind: 'invoice.paid',
    account: { external_id: 'user-4711' },
    body: {},
  });
  const { rejected } = await until(
    () => outbox.stats(),
    (stats) => stats.rejected === 1,
  );
  assert.equal(rejected, 1);
  await mend(outbox);
  await until(
    () => outbox.stats(),
    (stats) => stats.rejected === 1 && stats.waiting === 0,
  );
  await mendOne(outbox, id, { invoice: { id: 'in_19', amount: 1, currency: 'EUR' } });
  await until(
    () => invoicesOf('user-4711'),
    (invoices) => invoices.join() === 'in_17,in_18,in_19',
  );
});

test('orders in SQLite publish their events', async (t) => {
  const file = join(await temporaryFolder(t), 'shop.sqlite');
  const { database, outbox, placeOrder } = await openSqliteShop(file);
  t.after(() => database.close());
  database.exec('create table orders (id text primary key, customer text, cents int)');
  placeOrder({ id: 'in_1', customer: 'user-9', cents: 1 });
  assert.throws(() => placeOrder({ id: 'in_1', customer: 'user-9', cents: 1 }));
  const relay = startRelay(outbox, server.baseUrl, client.id, client.secret ?? '');
  await relay.stop({ drain: true });
  assert.deepEqual(await invoicesOf('user-9'), ['in_1']);
});

test('every code block of docs/outbox.md is part of the example', () => {
  const text = readFileSync(new URL('../../docs/outbox.md', import.meta.url), 'utf8');
  const blocks = [...text.matchAll(/^```(.*)\n([\s\S]*?)^```$/gm)];
  assert.ok(blocks.length >= 7);
  const files = new Map(
    readdirSync(folder).map((name) => [name, readFileSync(new URL(name, folder), 'utf8')]),
  );
  for (const [, info = '', block = ''] of blocks) {
    const name = info.split(' ')[1] ?? '';
    assert.ok(files.get(name)?.includes(block), `${name}:\n${block}`);
  }
});
