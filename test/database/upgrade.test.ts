/** Upgrading a database while servers of an earlier version run. */

import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { createForeignDatabase } from '../support/database/database.ts';
import { until } from '../support/webhooks/apps.ts';

const migrations = new URL('../../migrations/', import.meta.url);
const leases = '0024_leases.sql';
const read = (name: string) => readFileSync(new URL(name, migrations), 'utf8');

/** Tries to lead as servers before 0024 did: with an advisory lock, and again when its session ends. */
async function runFormerServer(t: TestContext, databaseUrl: string) {
  const server = { leads: false, error: '' };
  let isStopped = false;
  const session = async () => {
    const client = new pg.Client({ connectionString: databaseUrl });
    client.on('error', () => {});
    await client.connect();
    await client.query('set search_path to nuncio');
    try {
      while (!isStopped) {
        const { rows } = await client.query(`select pg_try_advisory_lock(lock_key('fan-out')) as leads`);
        server.leads = rows[0].leads;
        // Until the session ends.
        while (server.leads && !isStopped) {
          await client.query('select 1');
          await sleep(5);
        }
        await sleep(5);
      }
    } catch (error) {
      server.error = (error as Error).message;
    }
    server.leads = false;
    await client.end().catch(() => {});
  };
  const running = (async () => {
    while (!isStopped) await session();
  })();
  t.after(async () => {
    isStopped = true;
    await running;
  });
  return server;
}

test('no server of an earlier version fans out after leases replaced advisory locks', async (t) => {
  const database = await createForeignDatabase();
  const client = new pg.Client({ connectionString: database.url });
  await client.connect();
  await client.query('create schema nuncio');
  await client.query('set search_path to nuncio');
  for (const name of readdirSync(migrations).sort()) if (name < leases) await client.query(read(name));
  const servers = await Promise.all([1, 2].map(() => runFormerServer(t, database.url)));
  t.after(async () => {
    await client.end();
    await database.drop();
  });
  const countLeaders = async () => servers.filter(({ leads }) => leads).length;
  await until(countLeaders, (count) => count === 1);

  await client.query('begin');
  await client.query(read(leases));
  // Migrations after this one may take long.
  for (let count = 0; count < 20; count += 1) {
    await sleep(25);
    assert.equal(await countLeaders(), 0);
  }
  await client.query('commit');
  await until(
    async () => servers.map(({ error }) => error),
    (errors) => errors.every((error) => error.includes('lock_key')),
  );
  assert.equal(await countLeaders(), 0);
});
