/** Each setting of PostgreSQL that loses data or time is found on a real server, with its reason, and no longer once it is mended. */

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { openDatabase } from '../../src/database/database.ts';
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

test('too few connections for one more node are a warning', async () => {
  assert.equal((await examined()).get('database.connections')?.state, 'ok');
  const short = (await examined(10_000)).get('database.connections');
  assert.equal(short?.state, 'warning');
  assert.match(short.summary, /^one more node would not get its connections: .+10000/);
  assert.match(short.advice ?? '', /Raise max_connections or lower NUNCIO_DATABASE_CONNECTIONS/);
});
