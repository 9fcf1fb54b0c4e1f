/** Failures that the operator can mend are one line that names the setting, without a stack. */

import assert from 'node:assert/strict';
import { chmod, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import { sql } from 'kysely';
import type { Environment } from '../../src/config/environment.ts';
import { execute } from '../support/database/database.ts';
import {
  prepareProcess,
  runCommand,
  runCommandProcess,
  startProcess,
  temporaryFolder,
} from '../support/servers/process.ts';
import { freePort } from '../support/servers/server.ts';

const commands = [['start'], ['dev'], ['migrate'], ['client', 'list']];

/** Asserts that each command fails with one line. @param run runs a command, as a process or in this one */
async function failsInOneLine(
  settings: Environment,
  line: RegExp,
  words = commands,
  run = runCommand,
): Promise<void> {
  for (const command of words) {
    const { code, stdout, stderr } = await run(command, { LOG_LEVEL: 'fatal', ...settings });
    assert.deepEqual([code, stdout], [1, ''], command.join(' '));
    assert.match(stderr, /^nuncio: [^\n]+\n$/, command.join(' '));
    assert.match(stderr, line, command.join(' '));
  }
}

test('a wrong NUNCIO_SECRET is one line, with the stack at LOG_LEVEL=debug', async (t) => {
  const { settings } = await prepareProcess(t);
  const server = startProcess(t, ['start'], settings);
  await server.ready();
  assert.equal(await server.end('SIGTERM'), 0);
  const wrong = { ...settings, NUNCIO_SECRET: 'x'.repeat(40) };
  const line = /sealed with a different NUNCIO_SECRET: set NUNCIO_SECRET to the secret of the servers/;
  const words = [['start'], ['start', '--no-migrate'], ['dev'], ['keys', 'rotate']];
  await failsInOneLine(wrong, line, words, runCommandProcess);
  const verbose = await runCommand(['keys', 'rotate'], { ...wrong, LOG_LEVEL: 'debug' });
  assert.match(verbose.stderr, /^nuncio: [^\n]+\n[\s\S]+\n {4}at /);
});

test('another secret in the data directory is one line that names its file', async (t) => {
  const dataDir = await temporaryFolder(t);
  const settings = { NUNCIO_DATA_DIR: dataDir, PORT: String(await freePort()) };
  const server = startProcess(t, ['dev'], settings);
  await server.ready();
  assert.equal(await server.end('SIGTERM'), 0);
  await writeFile(join(dataDir, 'secret'), 'y'.repeat(40));
  await failsInOneLine(settings, /than the one in [^\n]+\/secret: restore that file/, [['dev'], ['start']]);
});

test('a wrong password, user, database or address of the database is one line', async (t) => {
  const { settings, db } = await prepareProcess(t);
  const address = new URL(settings.DATABASE_URL);
  const { rows } = await sql<{ role: string }>`select 'stranger_' || pg_backend_pid() as role`.execute(db);
  const role = (rows[0] as { role: string }).role;
  const change = (part: 'username' | 'password' | 'pathname', value: string) => {
    const url = new URL(address);
    url[part] = value;
    return { ...settings, DATABASE_URL: url.href };
  };
  await failsInOneLine(
    change('password', 'wrong'),
    /DATABASE_URL: [^\n]+ rejects the password of the user "/,
  );
  await failsInOneLine(change('password', ''), /DATABASE_URL: [^\n]+ asks for the password of the user "/);
  await failsInOneLine(change('username', role), /DATABASE_URL: [^\n]+ the user "stranger_/);
  await failsInOneLine(
    change('pathname', '/nowhere'),
    /DATABASE_URL: [^\n]+ has no database "nowhere": create it/,
  );
  const nowhere = `postgres://user:hidden@127.0.0.1:${await freePort()}/database`;
  await failsInOneLine(
    { ...settings, DATABASE_URL: nowhere },
    /the database is unreachable: [^\n]+DATABASE_URL \(127/,
  );
  const both = nowhere.replace('127.0.0.1', 'localhost');
  await failsInOneLine(
    { ...settings, DATABASE_URL: both },
    /the database is unreachable: \S[^\n]+ECONNREFUSED/,
    [['migrate']],
  );
  const { stderr } = await runCommand(['migrate'], { ...settings, DATABASE_URL: nowhere });
  assert.doesNotMatch(stderr, /hidden/);
});

test('a user without privileges is one line', async (t) => {
  const { settings, db } = await prepareProcess(t);
  const { rows } = await sql<{ role: string }>`select 'reader_' || pg_backend_pid() as role`.execute(db);
  const role = (rows[0] as { role: string }).role;
  await execute(settings.DATABASE_URL, `create role ${role} login password 'secret'`);
  // By then the test's database is dropped, and with it what depends on the role.
  t.after(() => execute(String(process.env.TEST_DATABASE_URL), `drop role ${role}`));
  const url = new URL(settings.DATABASE_URL);
  [url.username, url.password] = [role, 'secret'];
  await failsInOneLine({ ...settings, DATABASE_URL: url.href }, /privilege|permission/);
});

test('the schema of a newer version is one line, and is not changed', async (t) => {
  const { settings, db } = await prepareProcess(t);
  await sql`insert into migrations (name) values ('9999_future.sql')`.execute(db);
  const all = [...commands, ['start', '--no-migrate']];
  await failsInOneLine(settings, /newer version of Nuncio \(9999_future\.sql\)/, all);
});

test('unreadable TLS files are one line that names the setting', async (t) => {
  const { settings } = await prepareProcess(t);
  const folder = await temporaryFolder(t);
  const [cert, key] = [join(folder, 'cert.pem'), join(folder, 'key.pem')];
  const tls = { ...settings, NUNCIO_TLS_CERT_FILE: cert, NUNCIO_TLS_KEY_FILE: key };
  await failsInOneLine(tls, /NUNCIO_TLS_CERT_FILE is "[^\n]+cert\.pem"/, [['start'], ['dev']]);
  await writeFile(cert, 'no certificate');
  await writeFile(key, 'no key');
  await chmod(key, 0o600);
  await failsInOneLine(tls, /NUNCIO_TLS_CERT_FILE is "[^\n]+cert\.pem": it must be a PEM file/, [['start']]);
});
