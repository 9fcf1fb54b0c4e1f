/** Which database a command works on: that of the running server, or the one that the operator named; never a new one. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { chown, readdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import { announceServer, findServer, respondsAt } from '../../src/commands/running_server.ts';
import { loadConfig } from '../../src/config/config.ts';
import { loadSecret } from '../../src/config/secret.ts';
import { createForeignDatabase } from '../support/database/database.ts';
import {
  prepareProcess,
  runCommand,
  runCommandProcess,
  startProcess,
  temporaryFolder,
} from '../support/servers/process.ts';
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
  const created = await runCommandProcess([...user, '--init'], settings, folder);
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
  const warned = await runCommandProcess(['client', 'list', '--json'], settings, elsewhere);
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
  for (const [name, none] of [
    ['parked', 'No parked events.'],
    ['rejected', 'No rejected events.'],
    ['logout', 'No logout notices.'],
  ] as const) {
    const empty = await runCommand([name, 'list'], { DATABASE_URL: settings.DATABASE_URL });
    assert.deepEqual([empty.code, empty.stdout, empty.stderr], [0, '', `${none}\n`]);
    const json = await runCommand([name, 'list', '--json'], { DATABASE_URL: settings.DATABASE_URL });
    assert.deepEqual([json.code, json.stdout, json.stderr], [0, '[]\n', '']);
  }
  assert.equal(await server.end('SIGTERM'), 0);
});

test('a forged server.json is ignored', async (t) => {
  const dataDir = await temporaryFolder(t);
  const file = join(dataDir, 'server.json');
  const notice = { pid: process.pid, base_url: 'http://localhost:3000', example: false };
  await writeFile(file, JSON.stringify(notice));
  assert.deepEqual(findServer(dataDir), notice);
  const forged = [{ pid: 0 }, { pid: -1 }, { pid: `${process.pid}` }, { base_url: 'x' }, { example: 'yes' }];
  for (const change of forged) {
    await writeFile(file, JSON.stringify({ ...notice, ...change }));
    assert.equal(findServer(dataDir), undefined, JSON.stringify(change));
  }
  for (const text of ['null', '[]', '"x"', '{']) {
    await writeFile(file, text);
    assert.equal(findServer(dataDir), undefined, text);
  }
});

test('a server.json of another user is ignored', async (t) => {
  if (process.getuid?.() !== 0) return t.skip('only root can give a file away');
  const dataDir = await temporaryFolder(t);
  const file = join(dataDir, 'server.json');
  await writeFile(
    file,
    JSON.stringify({ pid: process.pid, base_url: 'http://localhost:3000', example: true }),
  );
  await chown(file, 65_534, 65_534);
  assert.equal(findServer(dataDir), undefined);
  // The owner of the data directory may be the user of the server.
  await chown(dataDir, 65_534, 65_534);
  assert.equal(findServer(dataDir)?.pid, process.pid);
});

test('files that a server creates are not written through a link that someone else put there', async (t) => {
  const folder = await temporaryFolder(t);
  const victim = join(folder, 'victim');
  await writeFile(victim, 'untouched');
  const config = loadConfig({ NUNCIO_DATA_DIR: folder }, 'dev');
  for (const name of ['server.json', 'secret']) await symlink(victim, join(folder, `${name}.${process.pid}`));
  announceServer(config);
  loadSecret(config);
  assert.equal(await readFile(victim, 'utf8'), 'untouched');
  assert.equal(findServer(folder)?.pid, process.pid);
});

test('a redirect of another program is not taken for the response of a server', async (t) => {
  const other = createServer((request, response) => {
    if (request.url === '/livez') response.writeHead(302, { location: '/elsewhere' }).end();
    else response.writeHead(200, { 'nuncio-version': '1.0.0' }).end();
  }).listen(0, '127.0.0.1');
  t.after(() => other.close());
  await once(other, 'listening');
  assert.equal(await respondsAt(`http://127.0.0.1:${(other.address() as AddressInfo).port}`), false);
});
