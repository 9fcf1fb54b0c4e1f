/** The command line, and the life cycle of the server process. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { test } from 'node:test';
import type { Environment } from '../../src/config/environment.ts';
import { clusterOf } from '../../src/database/embedded/home.ts';
import { runCommand, runCommandProcess, startProcess, temporaryFolder } from '../support/servers/process.ts';
import { freePort } from '../support/servers/server.ts';
import { until } from '../support/webhooks/apps.ts';

async function settings(t: Parameters<typeof temporaryFolder>[0]) {
  return { NUNCIO_DATA_DIR: await temporaryFolder(t), PORT: String(await freePort()) };
}

test('an unknown command, option or word is a usage error: exit 2 with a hint', async () => {
  const unknown = await runCommandProcess(['frobnicate'], {});
  assert.equal(unknown.code, 2);
  assert.equal(unknown.stderr, 'nuncio: unknown command "frobnicate"\nsee nuncio --help\n');
  const option = await runCommand(['migrate', '--fast'], {});
  assert.equal(option.code, 2);
  assert.match(option.stderr, /^nuncio migrate: [^\n]*--fast[^\n]*\nsee nuncio migrate --help\n$/);
  assert.equal((await runCommand(['migrate', 'now'], {})).code, 2);
  assert.equal((await runCommand([], {})).code, 2);
});

test('a partial name shows its completions, and a mistyped one suggestions', async () => {
  const half = await runCommand(['client'], {});
  assert.equal(half.code, 2);
  assert.match(half.stderr, /client create[\s\S]*client list[\s\S]*\nnuncio: "client" is incomplete\n$/);
  assert.doesNotMatch(half.stderr, /user create/);
  const help = await runCommand(['keys', '--help'], {});
  assert.equal(help.code, 0);
  assert.match(help.stdout, /^usage: nuncio[\s\S]*keys rotate/);
  const mistyped = await runCommand(['clint', 'lst'], {});
  assert.equal(mistyped.code, 2);
  assert.match(mistyped.stderr, /unknown command "clint lst"; did you mean "client list"\?/);
  assert.equal((await runCommand(['-h'], {})).code, 0);
});

test('a mistake in the arguments is one line without a stack', async (t) => {
  const environment = await settings(t);
  const user = await runCommand(
    ['user', 'create', '--init', '--email', 'x', '--password', 'long enough'],
    environment,
  );
  assert.deepEqual([user.code, user.stderr], [1, 'nuncio: "x" is not an e-mail address\n']);
  const words = ['client', 'create', '--name', 'X', '--redirect-uri', 'http://app.example.com/cb'];
  const client = await runCommand(words, environment);
  assert.equal(client.code, 1);
  assert.match(client.stderr, /^nuncio: the redirect URI [^\n]*\n$/);
  const address = `postgres://user:password@127.0.0.1:${await freePort()}/database`;
  const nowhere = await runCommandProcess(['client', 'list'], { ...environment, DATABASE_URL: address });
  assert.equal(nowhere.code, 1);
  assert.match(
    nowhere.stderr,
    /^nuncio: the database is unreachable: [^\n]*ECONNREFUSED[^\n]*DATABASE_URL \(127[^\n]*\n$/,
  );
});

test('every command has a help text', async () => {
  const overview = await runCommandProcess(['--help'], {});
  assert.equal(overview.code, 0);
  const names = [...overview.stdout.matchAll(/^ {2}([a-z]+(?: [a-z]+)?) {2,}\S/gm)].map(
    ([, name]) => name as string,
  );
  assert.ok(names.length >= 3);
  for (const name of names) {
    const { code, stdout } = await runCommand([...name.split(' '), '--help'], {});
    assert.equal(code, 0, name);
    assert.match(stdout, new RegExp(`^usage: nuncio ${name}`));
  }
});

test('a wrong setting stops the start: exit 1, one line each, no stack', async () => {
  const { code, stderr } = await runCommandProcess(['start'], { PORT: 'http', LOG_LEVEL: 'loud' });
  assert.equal(code, 1);
  assert.match(stderr, /^nuncio: PORT is "http": it must be [^\n]+\nnuncio: LOG_LEVEL is "loud": [^\n]+\n$/);
  const mistyped = { NUNCIO_DATADIR: '/tmp' } as Environment;
  const unknown = await runCommand(['migrate'], mistyped);
  assert.equal(unknown.code, 1);
  assert.equal(unknown.stderr, 'nuncio: NUNCIO_DATADIR is not a setting: did you mean NUNCIO_DATA_DIR?\n');
  const folder = await runCommandProcess(['migrate', '--init'], { NUNCIO_DATA_DIR: '/dev/null/x' });
  assert.equal(folder.code, 1);
  assert.match(folder.stderr, /^nuncio: NUNCIO_DATA_DIR is "\/dev\/null\/x": [^\n]+\n$/);
});

test('start with a public http base URL exits before it opens a port or a data directory', async (t) => {
  const dataDir = join(await temporaryFolder(t), 'data');
  const settings = { NUNCIO_BASE_URL: 'http://api.example.com', NUNCIO_DATA_DIR: dataDir };
  const { code, stdout, stderr } = await runCommand(['start'], settings);
  assert.equal(code, 1);
  assert.equal(stdout, '');
  assert.match(
    stderr,
    /^nuncio: NUNCIO_BASE_URL is "http:\/\/api\.example\.com": it must be an https origin[^\n]+\n$/,
  );
  assert.equal(existsSync(dataDir), false);
});

test('dev serves, prints where to go next, and stops cleanly on SIGTERM', async (t) => {
  const server = startProcess(t, ['dev'], await settings(t));
  await server.ready();
  assert.equal(await server.end('SIGTERM'), 0);
  assert.match(server.output(), /Nuncio runs at +http:\/\/localhost:\d+/);
  assert.match(server.output(), /demo@example\.com/);
  assert.match(server.output(), /curl -u demo:\S{40,} /);
  assert.doesNotMatch(server.output(), /oidc-provider|unsupported runtime/i);
});

test('a second server on the same data directory, or on the same port, says so and exits 1', async (t) => {
  const environment = await settings(t);
  const first = startProcess(t, ['dev'], environment);
  await first.ready();
  const second = await runCommandProcess(['dev'], { ...environment, PORT: String(await freePort()) });
  assert.equal(second.code, 1);
  assert.match(second.stderr, /^nuncio: [^\n]*(another|other) server[^\n]*\n$/i);
  const elsewhere = { ...environment, NUNCIO_DATA_DIR: await temporaryFolder(t) };
  const occupied = await runCommandProcess(['dev'], elsewhere);
  assert.equal(occupied.code, 1);
  assert.match(occupied.stderr, /PORT is "\d+": the port is in use/);
  // The server ends before its directory is removed: hooks run in the order in which they were added.
  assert.equal(await first.end('SIGTERM'), 0);
});

test('the next start adopts PostgreSQL after kill -9 and finds what was stored', async (t) => {
  const environment = await settings(t);
  const first = startProcess(t, ['dev'], environment);
  await first.ready();
  assert.equal(await first.end('SIGKILL'), 'SIGKILL');
  const second = startProcess(t, ['dev'], environment);
  await second.ready();
  const migrated = await runCommand(['migrate'], environment);
  assert.deepEqual([migrated.code, migrated.stdout], [0, 'the schema is up to date\n']);
  assert.equal(await second.end('SIGTERM'), 0);
});

test('the log reports a lost PostgreSQL and its return', async (t) => {
  const environment = await settings(t);
  const server = startProcess(t, ['dev'], environment);
  await server.ready();
  const lock = join(clusterOf(environment.NUNCIO_DATA_DIR), 'postmaster.pid');
  process.kill(Number.parseInt(await readFile(lock, 'utf8'), 10), 'SIGKILL');
  await until(
    async () => server.output(),
    (output) => /PostgreSQL was lost.*PostgreSQL 18.*: started/s.test(output),
  );
  await server.ready();
  assert.equal(await server.end('SIGTERM'), 0);
});

test('an unfinished request does not keep a server from stopping cleanly', async (t) => {
  const environment = await settings(t);
  const server = startProcess(t, ['dev'], environment);
  await server.ready();
  const socket = connect(Number(environment.PORT), '127.0.0.1');
  socket.on('error', () => {});
  socket.write('POST /oauth/token HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n');
  socket.write('Content-Type: application/x-www-form-urlencoded\r\nExpect: 100-continue\r\n\r\n');
  // The request is in progress: the server asks for the body.
  await once(socket, 'data');
  socket.resume();
  assert.equal(await server.end('SIGTERM'), 0);
  assert.match(server.output(), /stopped/);
});

test('start --no-migrate refuses an outdated schema', async (t) => {
  const environment = await settings(t);
  const { code, stderr } = await runCommandProcess(['start', '--no-migrate'], environment);
  assert.equal(code, 1);
  assert.match(stderr, /schema lacks .*run nuncio migrate/);
});
