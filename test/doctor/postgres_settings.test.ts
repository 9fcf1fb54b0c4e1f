/** Each setting of PostgreSQL that loses data or time is found on a real server, with its reason, and no longer once it is mended. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import pg from 'pg';
import { openDatabase } from '../../src/database/database.ts';
import { databaseLimits, databaseStateProbes } from '../../src/doctor/database_state.ts';
import { postgresSettingsProbes } from '../../src/doctor/postgres_settings.ts';
import { type Check, examine } from '../../src/doctor/report.ts';
import { newDataDir, query, start } from '../support/database/embedded_process.ts';
import { until } from '../support/webhooks/apps.ts';

const scope = { after };
const { connectionString } = await start(newDataDir(scope), 'server');
const db = openDatabase({ connectionString, connectionsMax: 1 });
after(() => db.destroy());

async function examined(connections = 22): Promise<Map<string, Check>> {
  const { checks } = await examine(postgresSettingsProbes(db, connections));
  return new Map(checks.map((each) => [each.name, each]));
}

/** Values that can be changed while the server runs. */
const wrong: Readonly<
  Record<string, [value: string, state: Check['state'], summary: RegExp, advice: RegExp]>
> = {
  fsync: ['off', 'error', /is off: a power failure destroys the database/, /fsync = on/],
  full_page_writes: ['off', 'error', /can destroy pages/, /full_page_writes = on/],
  synchronous_commit: ['off', 'warning', /a crash loses the last moments/, /synchronous_commit = on/],
  autovacuum: ['off', 'error', /dead rows are never removed/, /autovacuum = on/],
  track_counts: ['off', 'error', /autovacuum does not know/, /track_counts = on/],
  default_transaction_isolation: ['serializable', 'warning', /is serializable: /, /'read committed'/],
  max_wal_size: ['256MB', 'notice', /is 256MB: frequent checkpoints/, /2GB/],
  random_page_cost: ['4', 'notice', /avoids indexes/, /random_page_cost = 1\.1/],
};

test('each wrong setting is found with its reason, and not when it is mended', async () => {
  const before = await examined();
  for (const [name, [value]] of Object.entries(wrong)) {
    assert.equal(before.get(`database.${name}`), undefined, name);
    await query(connectionString, `alter system set ${name} = '${value}'`);
  }
  await query(connectionString, 'select pg_reload_conf()');
  const found = await until(examined, (checks) =>
    Object.keys(wrong).every((name) => checks.has(`database.${name}`)),
  );
  for (const [name, [value, state, summary, advice]] of Object.entries(wrong)) {
    const check = found.get(`database.${name}`) as Check;
    assert.deepEqual([check.state, check.values.value], [state, value], name);
    assert.match(check.summary, summary);
    assert.match(check.advice ?? '', advice);
  }
  for (const name of Object.keys(wrong)) await query(connectionString, `alter system reset ${name}`);
  await query(connectionString, 'select pg_reload_conf()');
  await until(examined, (checks) => !Object.keys(wrong).some((name) => checks.has(`database.${name}`)));
});

test('settings that need a restart, prepared transactions and connections that are nearly used up are found', async (t) => {
  const dataDir = newDataDir(t);
  const first = await start(dataDir, 'server');
  const settings = { shared_buffers: '64MB', max_connections: '20', max_prepared_transactions: '2' };
  for (const [name, value] of Object.entries(settings)) {
    await query(first.connectionString, `alter system set ${name} = '${value}'`);
  }
  await first.stop();
  const second = await start(dataDir, 'server');
  const own = openDatabase({ connectionString: second.connectionString, connectionsMax: 1 });
  t.after(() => own.destroy());
  const examined = async () => {
    const limits = { ...databaseLimits, transaction: { warning: 0, error: 3_600 } };
    const probes = [...postgresSettingsProbes(own, 2), ...databaseStateProbes(own, limits)];
    const { checks } = await examine(probes);
    return new Map(checks.map((each) => [each.name, each]));
  };
  const buffers = (await examined()).get('database.shared_buffers');
  assert.deepEqual([buffers?.state, buffers?.values.value], ['notice', '64MB']);
  assert.match(buffers?.summary ?? '', /reads go to the disk/);

  assert.notEqual((await examined()).get('database.transactions')?.values.prepared, 1);
  const connect = async () => {
    const client = new pg.Client({ connectionString: second.connectionString });
    // The server stops before the test ends.
    client.on('error', () => {});
    await client.connect();
    t.after(() => client.end());
    return client;
  };
  const client = await connect();
  await client.query('begin');
  await client.query('create table pending (id int)');
  await client.query(`prepare transaction 'forgotten'`);
  const prepared = (await examined()).get('database.transactions');
  assert.deepEqual([prepared?.state, prepared?.values.prepared], ['warning', 1]);
  assert.match(prepared?.summary ?? '', /^1 prepared transaction of more than/);
  assert.match(prepared?.advice ?? '', /pg_prepared_xacts/);
  await client.query(`rollback prepared 'forgotten'`);
  assert.equal((await examined()).get('database.transactions')?.values.prepared, 0);

  assert.notEqual((await examined()).get('database.connections')?.state, 'error');
  for (let more = 0; more < 17; more += 1) await connect();
  const used = (await examined()).get('database.connections');
  assert.equal(used?.state, 'error');
  assert.match(used.summary, /^\d+ of 20 connections are used: new ones will be refused$/);
  assert.match(used.advice ?? '', /Raise max_connections/);
});

test('too few connections for one more node are a warning', async () => {
  assert.equal((await examined()).get('database.connections')?.state, 'ok');
  const short = (await examined(10_000)).get('database.connections');
  assert.equal(short?.state, 'warning');
  assert.match(short.summary, /^one more node would not get its connections: .+10000/);
  assert.match(short.advice ?? '', /Raise max_connections or lower NUNCIO_DATABASE_CONNECTIONS/);
});
