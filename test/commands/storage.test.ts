/** Which database a command works on: that of the running server, or the one that the operator named; never a new one. */

import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { findServer } from '../../src/commands/running_server.ts';
import { createForeignDatabase } from '../support/database/database.ts';
import { prepareProcess, runCommand, startProcess, temporaryFolder } from '../support/servers/process.ts';
import { freePort } from '../support/servers/server.ts';

const user = ['user', 'create', '--email', 'ann@example.com', '--password', 'a long password'];

test('a command without a database says what it would create, and creates it with --init', async (t) => {
  const folder = await temporaryFolder(t);
  const settings = { PORT: String(await freePort()) };
  for (const words of [user, ['client', 'list'], ['audit']]) {
    const failed = await runCommand(words, settings, folder);
    assert.equal(failed.code, 1);
    assert.match(failed.stderr, /^nuncio: there is no database in [^\n]+\/data: [^\n]+--init\n$/);
    assert.ok(failed.stderr.includes(join(folder, 'data')));
    assert.deepEqual(await readdir(folder), []);
  }
  const created = await runCommand([...user, '--init'], settings, folder);
  assert.deepEqual([created.code, created.stderr], [0, '']);
  const again = await runCommand(user, settings, folder);
  assert.match(again.stderr, /ann@example\.com/);
});

test('a command in another folder than the server’s refuses to create a database and names the server', async (t) => {
  const [dataDir, elsewhere] = [await temporaryFolder(t), await temporaryFolder(t)];
  const settings = { PORT: String(await freePort()) };
  const server = startProcess(t, ['dev'], { ...settings, NUNCIO_DATA_DIR: dataDir });
  await server.ready();
  const failed = await runCommand(user, settings, elsewhere);
  assert.equal(failed.code, 1);
  assert.match(
    failed.stderr,
    /^nuncio: the server at http:\/\/localhost:\d+ uses another database, [^\n]+\n$/,
  );
  assert.deepEqual(await readdir(elsewhere), []);
  // A database that is there, from an earlier trial, may be meant.
  await runCommand([...user, '--init'], settings, elsewhere);
  const warned = await runCommand(['client', 'list'], settings, elsewhere);
  assert.equal(warned.code, 0);
  assert.match(
    warned.stderr,
    /^nuncio: warning: the server at [^\n]+ does not use the database in [^\n]+\n$/,
  );
  const beside = await runCommand(['client', 'list'], { ...settings, NUNCIO_DATA_DIR: dataDir }, elsewhere);
  assert.deepEqual([beside.code, beside.stderr], [0, '']);
  assert.equal(findServer(dataDir)?.base_url, `http://localhost:${settings.PORT}`);
  assert.equal(await server.end('SIGTERM'), 0);
  assert.equal(findServer(dataDir), undefined);
});

test('a killed server is not taken for a running one', async (t) => {
  const settings = { NUNCIO_DATA_DIR: await temporaryFolder(t), PORT: String(await freePort()) };
  const server = startProcess(t, ['dev'], settings);
  await server.ready();
  await server.end('SIGKILL');
  assert.equal(findServer(settings.NUNCIO_DATA_DIR), undefined);
  assert.equal((await runCommand(['client', 'list'], settings)).code, 0);
});

test('a command does not create the schema in a database of another application, but migrate does', async (t) => {
  const folder = await temporaryFolder(t);
  const database = await createForeignDatabase();
  t.after(() => database.drop());
  const settings = { DATABASE_URL: database.url, NUNCIO_DATA_DIR: join(folder, 'data') };
  const failed = await runCommand(user, settings);
  assert.equal(failed.code, 1);
  assert.match(failed.stderr, /^nuncio: the database of DATABASE_URL has no schema "nuncio": [^\n]+\n$/);
  assert.equal((await runCommand(['migrate'], settings)).code, 0);
  assert.equal((await runCommand(user, settings)).code, 0);
  assert.deepEqual(await readdir(folder), [], 'no data directory is needed');
});

test('a command beside a server with an external database needs nothing else', async (t) => {
  const { settings } = await prepareProcess(t);
  const server = startProcess(t, ['start'], settings);
  await server.ready();
  const listed = await runCommand(['client', 'list'], { DATABASE_URL: settings.DATABASE_URL });
  assert.deepEqual([listed.code, listed.stderr], [0, '']);
  assert.equal(await server.end('SIGTERM'), 0);
});
