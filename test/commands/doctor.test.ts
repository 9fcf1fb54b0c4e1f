/** `nuncio doctor`: what it prints, its exit codes, and that it works where nothing else does. */

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { sql } from 'kysely';
import { loadConfig } from '../../src/config/config.ts';
import type { Check, Report } from '../../src/doctor/report.ts';
import { ensureSigningKeys } from '../../src/oauth/signing_keys.ts';
import { createForeignDatabase } from '../support/database/database.ts';
import { createSteppedClock } from '../support/database/stepped_clock.ts';
import {
  prepareProcess,
  runCommandProcess,
  startProcess,
  temporaryFolder,
} from '../support/servers/process.ts';
import { freePort } from '../support/servers/server.ts';

function find(text: string, name: string): Check {
  const { checks } = JSON.parse(text) as Report;
  const found = checks.find((each) => each.name === name);
  assert.ok(found, `${name} is not among ${checks.map((each) => each.name).join(' ')}`);
  return found;
}

test('invalid settings are reported together, as text and as JSON, with exit code 2', async () => {
  const settings = { PORT: 'many', NUNCIO_BASE_URL: 'ftp://x' };
  const text = await runCommandProcess(['doctor'], settings);
  assert.deepEqual([text.code, text.stderr], [2, '']);
  assert.match(
    text.stdout,
    /^error {4}settings: nuncio start refuses 2 settings: PORT is "many": .+; NUNCIO_BASE_URL/,
  );
  const json = await runCommandProcess(['doctor', '--json'], settings);
  assert.equal(json.code, 2);
  assert.equal(find(json.stdout, 'settings').values.problems, 2);
  const usage = await runCommandProcess(['doctor', '--jason'], settings);
  assert.deepEqual([usage.code, usage.stdout], [2, '']);
});

test('where there is no database, the doctor says so and creates nothing', async (t) => {
  const folder = await temporaryFolder(t);
  const settings = { NUNCIO_DATA_DIR: join(folder, 'data'), PORT: String(await freePort()) };
  const { code, stdout } = await runCommandProcess(['doctor', '--json'], settings);
  assert.equal(code, 2);
  assert.match(find(stdout, 'database').summary, /^there is no database in /);
  assert.deepEqual(await readdir(folder), []);
  const down = { ...settings, DATABASE_URL: `postgres://nuncio:pw@127.0.0.1:${await freePort()}/nuncio` };
  const external = await runCommandProcess(['doctor', '--json'], down);
  const found = find(external.stdout, 'database');
  assert.equal(found.state, 'error');
  assert.match(found.summary, /^the database is unreachable: .*ECONNREFUSED/);
  assert.match(found.advice ?? '', /^Start it, or correct DATABASE_URL/);
  assert.doesNotMatch(external.stdout, /:pw@/);
  // What does not need the database is examined as well.
  assert.match(find(external.stdout, 'base_url').summary, /^nothing responds at/);
  const foreign = await createForeignDatabase();
  t.after(() => foreign.drop());
  const empty = await runCommandProcess(['doctor', '--json'], { ...settings, DATABASE_URL: foreign.url });
  assert.match(
    find(empty.stdout, 'database').summary,
    /^the schema "nuncio" of the database is missing or empty$/,
  );
});

test('a different secret and a pending migration are found, and nothing is migrated', async (t) => {
  const { settings, db, config } = await prepareProcess(t);
  await ensureSigningKeys(db, Buffer.from(config.secret ?? ''));
  const good = await runCommandProcess(['doctor', '--json'], settings);
  assert.equal(find(good.stdout, 'secret').state, 'ok');
  assert.equal(find(good.stdout, 'schema').state, 'ok');
  assert.equal(find(good.stdout, 'nodes').state, 'warning');
  const other = { ...settings, NUNCIO_SECRET: 'x'.repeat(40) };
  const found = await runCommandProcess(['doctor', '--json'], other);
  assert.equal(find(found.stdout, 'secret').state, 'error');
  assert.match(find(found.stdout, 'secret').advice ?? '', /^Set NUNCIO_SECRET to the secret of the servers/);
  const { rows } = await sql<{ name: string }>`
    delete from migrations where name = (select max(name) from migrations) returning name`.execute(db);
  const pending = await runCommandProcess(['doctor', '--json'], settings);
  assert.match(find(pending.stdout, 'schema').summary, new RegExp(`lacks ${rows[0]?.name}`));
  assert.match(find(pending.stdout, 'schema').advice ?? '', /^Run nuncio migrate\.$/);
  const { rows: left } = await sql`select from migrations where name = ${rows[0]?.name}`.execute(db);
  assert.deepEqual(left, [], 'the doctor only reads');
});

test('beside a running server the doctor reads its node, and finds the machine’s clock ahead', async (t) => {
  const settings = {
    NUNCIO_DATA_DIR: join(await temporaryFolder(t), 'data'),
    PORT: String(await freePort()),
    LOG_LEVEL: 'error',
  };
  const server = startProcess(t, ['dev'], settings);
  await server.ready();
  const { code, stdout, stderr } = await runCommandProcess(['doctor', '--all'], settings);
  assert.equal(stderr, '');
  assert.match(stdout, /^ok {7}base_url: a server responds at http:\/\/localhost:\d+$/m);
  assert.match(stdout, /^ok {7}node\.open_files: /m);
  assert.match(stdout, /^ok {7}database\.settings: \d+ settings of PostgreSQL are as they should be$/m);
  assert.match(stdout, /^\w+ +disk: the database has [\d.]+ MiB.*; its disk has [\d.]+ \w+ free$/m);
  assert.match(stdout, /\d+ errors?, \d+ warnings?, \d+ notices?; \d+ checks are fine\n$/);
  const [, errors, warnings] = /^(\d+) errors?, (\d+) warnings?/m.exec(stdout) ?? [];
  assert.equal(code, Number(errors) > 0 ? 2 : Number(warnings) > 0 ? 1 : 0, stdout);
  const short = await runCommandProcess(['doctor'], settings);
  assert.doesNotMatch(short.stdout, /^ok /m);
  const clock = createSteppedClock(t);
  if (clock === undefined) return t.diagnostic('no C compiler: the clock was not set');
  clock.set(90);
  const ahead = await runCommandProcess(['doctor', '--json'], { ...settings, ...clock.environment });
  assert.equal(find(ahead.stdout, 'clock').state, 'error');
  assert.match(
    find(ahead.stdout, 'clock').summary,
    /^the clock of this machine is 90 seconds ahead of that of the/,
  );
  await server.end('SIGTERM');
  assert.ok(existsSync(settings.NUNCIO_DATA_DIR));
  assert.equal(loadConfig(settings, 'command').databaseUrl, null);
});
