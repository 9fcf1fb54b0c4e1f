/**
 * Embedded PostgreSQL in real processes: the user that it runs as, processes that join it, and recovery after each kind
 * of crash.
 */
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { EmbeddedError } from '../../../src/database/embedded/error.ts';
import {
  atEnd,
  busyBackend,
  eventually,
  newDataDir,
  newFolder,
  postmasterPid,
  processesOf,
  query,
  start,
  use,
  userScript,
} from '../../support/database/embedded_process.ts';

test('embedded PostgreSQL is durable, reachable by its owner alone, and stops', async (t) => {
  const dataDir = newDataDir(t);
  const embedded = await start(dataDir, 'server');
  t.diagnostic(embedded.description);
  const settings = await query<{ name: string; setting: string }>(
    embedded.connectionString,
    `select name, setting from pg_settings
     where name in ('fsync', 'synchronous_commit', 'full_page_writes', 'listen_addresses', 'server_encoding')`,
  );
  assert.deepEqual(Object.fromEntries(settings.map(({ name, setting }) => [name, setting])), {
    fsync: 'on',
    full_page_writes: 'on',
    listen_addresses: '',
    server_encoding: 'UTF8',
    synchronous_commit: 'on',
  });
  const order = await query<{ word: string }>(
    embedded.connectionString,
    `select word from unnest(array['b', 'a', 'B', 'ä']) as word order by word`,
  );
  assert.deepEqual(
    order.map(({ word }) => word),
    ['B', 'a', 'b', 'ä'],
  );
  const cluster = join(dataDir, 'postgres');
  assert.equal(statSync(cluster).mode & 0o777, 0o700);
  assert.equal(statSync(join(cluster, 'nuncio.password')).mode & 0o777, 0o600);
  assert.equal(statSync(join(cluster, '.s.PGSQL.5432')).mode & 0o777, 0o700);
  const password = readFileSync(join(cluster, 'nuncio.password'), 'utf8');
  assert.ok(password.length >= 32);
  assert.ok(!processesOf(cluster).some(({ line }) => line.includes(password)));
  const wrong = embedded.connectionString.replace(password, 'wrong');
  await assert.rejects(query(wrong, 'select 1'), { code: '28P01' });

  await embedded.stop();
  await embedded.stop();
  assert.deepEqual(processesOf(cluster), []);
  assert.equal(existsSync(join(cluster, 'postmaster.pid')), false);
});

test('data and connection string survive a stop and a start', async (t) => {
  const dataDir = newDataDir(t);
  const first = await start(dataDir, 'server');
  await query(first.connectionString, 'create table kept as select 7 as n');
  await first.stop();
  const second = await start(dataDir, 'server');
  assert.equal(second.connectionString, first.connectionString);
  assert.deepEqual(await query(second.connectionString, 'select n from kept'), [{ n: 7 }]);
  await second.stop();
});

test('PostgreSQL runs with its data below a home directory closed to others', async (t) => {
  const home = newFolder(t, 0o700);
  const dataDir = join(home, 'data');
  const embedded = await start(dataDir, 'server');
  assert.deepEqual(await query(embedded.connectionString, 'select 1 as n'), [{ n: 1 }]);
  await embedded.stop();
});

test('PostgreSQL runs when the data directory’s path is too long for a socket', async (t) => {
  const dataDir = join(newDataDir(t), 'a folder, with a name that is "long"'.repeat(3), "and another's\\one");
  const embedded = await start(dataDir, 'server');
  assert.deepEqual(await query(embedded.connectionString, 'select 1 as n'), [{ n: 1 }]);
  const directory = new URL(embedded.connectionString).searchParams.get('host') as string;
  atEnd(t, () => rmSync(directory, { recursive: true, force: true }));
  assert.equal(statSync(directory).mode & 0o777, 0o700);
  await embedded.stop();

  // Another user could have created the directory first, so its name proves nothing.
  chmodSync(directory, 0o755);
  await assert.rejects(start(dataDir, 'server'), EmbeddedError);
});

test('PostgreSQL runs in a folder whose name needs quoting', async (t) => {
  const dataDir = join(newDataDir(t), `it's, "a\\b" $x %20`);
  const embedded = await start(dataDir, 'server');
  assert.deepEqual(await query(embedded.connectionString, 'select 1 as n'), [{ n: 1 }]);
  await embedded.stop();
});

test('settings for other PostgreSQLs are ignored, and none of our environment is passed on', async (t) => {
  const dataDir = newDataDir(t);
  const env = {
    PGPORT: '1',
    PGDATA: '/nowhere',
    PGSSLMODE: 'require',
    PGUSER: 'x',
    NUNCIO_SECRET: 'a secret',
  };
  const user = await use(t, dataDir, 'server', { env });
  assert.deepEqual(await query(user.connectionString, 'select 1 as n'), [{ n: 1 }]);
  if (process.platform === 'linux') {
    const pid = await postmasterPid(dataDir);
    assert.ok(!readFileSync(`/proc/${pid}/environ`, 'utf8').includes('a secret'));
  }
  await user.leave();
});

test('a second server on the same data directory is refused', async (t) => {
  const dataDir = newDataDir(t);
  const server = await use(t, dataDir, 'server');
  const refused = await use(t, dataDir, 'server', { mayFail: true });
  assert.equal(refused.error, 'EmbeddedError');
  assert.equal(refused.message, `Another server runs on ${dataDir}.`);
  await assert.rejects(start(dataDir, 'server'), /Another server runs on/);
  await server.leave();
  const next = await start(dataDir, 'server');
  await assert.rejects(start(dataDir, 'server'), /Another server runs on/);
  await next.stop();
});

test('a command works without a server, and never stops a running server’s PostgreSQL', async (t) => {
  const dataDir = newDataDir(t);
  const cluster = join(dataDir, 'postgres');
  const command = await use(t, dataDir, 'command');
  const pid = await postmasterPid(dataDir);
  const server = await use(t, dataDir, 'server');
  assert.match(server.description, /joined the running process/);
  await command.leave();
  assert.equal(await postmasterPid(dataDir), pid);
  assert.deepEqual(await query(server.connectionString, 'select 1 as n'), [{ n: 1 }]);

  const beside = await start(dataDir, 'command');
  await beside.stop();
  assert.equal(await postmasterPid(dataDir), pid);
  await server.leave();
  assert.deepEqual(processesOf(cluster), []);
});

test('a server that leaves does not stop PostgreSQL under a command', async (t) => {
  const dataDir = newDataDir(t);
  const server = await start(dataDir, 'server');
  const command = await start(dataDir, 'command');
  await server.stop();
  assert.deepEqual(await query(command.connectionString, 'select 1 as n'), [{ n: 1 }]);
  await command.stop();
  assert.deepEqual(processesOf(join(dataDir, 'postgres')), []);
});

test('concurrent starts on an empty data directory share one PostgreSQL', async (t) => {
  const dataDir = newDataDir(t);
  const users = await Promise.all([
    use(t, dataDir, 'command'),
    use(t, dataDir, 'server'),
    use(t, dataDir, 'command'),
    start(dataDir, 'command'),
  ]);
  assert.equal(new Set(users.map(({ connectionString }) => connectionString)).size, 1);
  assert.equal(users.filter(({ description }) => /: started /.test(description)).length, 1);
  await Promise.all(users.map((user) => ('leave' in user ? user.leave() : user.stop())));
  assert.deepEqual(processesOf(join(dataDir, 'postgres')), []);
});

test('a start killed within initdb leaves nothing half done', async (t) => {
  const dataDir = newDataDir(t);
  const child = spawn(process.execPath, [userScript, dataDir, 'server'], {
    stdio: ['pipe', 'ignore', 'ignore'],
  });
  atEnd(t, () => child.kill('SIGKILL'));
  const isStaging = (name: string) => name.startsWith('postgres.new-') && !name.endsWith('.password');
  while (!(existsSync(dataDir) && readdirSync(dataDir).some(isStaging))) await sleep(2);
  await sleep(100);
  child.kill('SIGKILL');
  await once(child, 'exit');
  assert.equal(existsSync(join(dataDir, 'postgres')), false);

  const embedded = await start(dataDir, 'server');
  assert.deepEqual(await query(embedded.connectionString, 'select 1 as n'), [{ n: 1 }]);
  assert.deepEqual(
    readdirSync(dataDir).filter((name) => name.startsWith('postgres.new-')),
    [],
  );
  await embedded.stop();
});

test('the next server adopts the running PostgreSQL after kill -9 of the first', async (t) => {
  const dataDir = newDataDir(t);
  const server = await use(t, dataDir, 'server');
  await query(server.connectionString, 'create table written as select 1 as n');
  const pid = await postmasterPid(dataDir);
  await server.kill();
  assert.equal(await postmasterPid(dataDir), pid);

  const next = await use(t, dataDir, 'server');
  assert.match(next.description, /joined the running process/);
  assert.equal(await postmasterPid(dataDir), pid);
  assert.deepEqual(await query(next.connectionString, 'select n from written'), [{ n: 1 }]);
  await next.leave();
  assert.deepEqual(processesOf(join(dataDir, 'postgres')), []);
});

test('a start ignores a stale pid file whose number belongs to another process', async (t) => {
  const dataDir = newDataDir(t);
  const cluster = join(dataDir, 'postgres');
  const server = await use(t, dataDir, 'server');
  await query(server.connectionString, 'create table written as select 1 as n');
  const pidFile = readFileSync(join(cluster, 'postmaster.pid'), 'utf8');
  await server.leave();
  const other = spawn('sleep', ['600'], { stdio: 'ignore' });
  atEnd(t, () => other.kill('SIGKILL'));
  const stale = pidFile.replace(/^\d+/, String(other.pid));
  writeFileSync(join(cluster, 'postmaster.pid'), stale, { mode: 0o600 });
  writeFileSync(join(cluster, '.s.PGSQL.5432.lock'), stale, { mode: 0o600 });

  const next = await start(dataDir, 'server');
  assert.deepEqual(await query(next.connectionString, 'select n from written'), [{ n: 1 }]);
  await next.stop();
  assert.equal(other.exitCode ?? other.signalCode, null);
});

test('the next start ends orphaned backends and recovers after kill -9 of server and postmaster', async (t) => {
  const dataDir = newDataDir(t);
  const cluster = join(dataDir, 'postgres');
  const server = await use(t, dataDir, 'server');
  await query(server.connectionString, 'create table written as select 1 as n');
  const backend = await busyBackend(t, server.connectionString);
  const pid = await postmasterPid(dataDir);
  // The backend is stopped, so it cannot detect that its postmaster died.
  process.kill(backend, 'SIGSTOP');
  await server.kill();
  process.kill(pid, 'SIGKILL');
  while (processesOf(cluster).some((found) => found.pid === pid)) await sleep(5);
  assert.ok(processesOf(cluster).some((found) => found.pid === backend));

  const next = await use(t, dataDir, 'server');
  assert.match(next.description, /: started /);
  assert.deepEqual(await query(next.connectionString, 'select n from written'), [{ n: 1 }]);
  assert.ok(!processesOf(cluster).some((found) => found.pid === backend));
  await next.leave();
});

test('a killed PostgreSQL is started again once, in place, under a running server and command', async (t) => {
  const dataDir = newDataDir(t);
  const cluster = join(dataDir, 'postgres');
  const lines: string[] = [];
  const server = await start(dataDir, 'server', (line) => lines.push(line));
  const command = await use(t, dataDir, 'command');
  await query(server.connectionString, 'create table written as select 1 as n');
  await busyBackend(t, server.connectionString);
  for (let round = 0; round < 2; round++) {
    const pid = await postmasterPid(dataDir);
    process.kill(pid, 'SIGKILL');
    assert.deepEqual(await eventually(() => query(server.connectionString, 'select n from written')), [
      { n: 1 },
    ]);
    assert.notEqual(await postmasterPid(dataDir), pid);
  }
  assert.ok(lines.includes('PostgreSQL was lost'));
  // Both processes watch PostgreSQL again and still hold their locks.
  await assert.rejects(start(dataDir, 'server'), /Another server runs on/);
  await server.stop();
  assert.deepEqual(await query(command.connectionString, 'select n from written'), [{ n: 1 }]);
  await command.leave();
  assert.deepEqual(processesOf(cluster), []);
});

test('a server stops while PostgreSQL is lost', async (t) => {
  const dataDir = newDataDir(t);
  const server = await start(dataDir, 'server');
  process.kill(await postmasterPid(dataDir), 'SIGKILL');
  await server.stop();
  assert.deepEqual(processesOf(join(dataDir, 'postgres')), []);
  const next = await start(dataDir, 'server');
  await next.stop();
});

test('^C in the terminal reaches the server and not PostgreSQL', async (t) => {
  const dataDir = newDataDir(t);
  const server = await use(t, dataDir, 'server', { detached: true });
  const pid = await postmasterPid(dataDir);
  process.kill(-(server.child.pid as number), 'SIGINT');
  await once(server.child, 'exit');
  // If it had received the signal, it would be shutting down and refuse connections.
  assert.deepEqual(await query(server.connectionString, 'select 1 as n'), [{ n: 1 }]);
  assert.equal(await postmasterPid(dataDir), pid);
  const { stdout } = spawnSync('ps', ['-o', 'pgid=', '-p', String(pid)], { encoding: 'utf8' });
  assert.equal(Number(stdout), pid, 'a process group of its own');
});

test('data of another major version are left alone, with an explanation', async (t) => {
  const dataDir = newDataDir(t);
  await (await start(dataDir, 'command')).stop();
  writeFileSync(join(dataDir, 'postgres', 'PG_VERSION'), '17\n');
  await assert.rejects(start(dataDir, 'server'), (error) => {
    assert.ok(error instanceof EmbeddedError);
    assert.match(error.message, /was written by PostgreSQL 17, but PostgreSQL 18 is installed/);
    return true;
  });
  // The refused process holds no lock.
  writeFileSync(join(dataDir, 'postgres', 'PG_VERSION'), '18\n');
  await (await start(dataDir, 'server')).stop();
});

test('a failed start reports PostgreSQL’s message', async (t) => {
  const dataDir = newDataDir(t);
  await (await start(dataDir, 'command')).stop();
  writeFileSync(join(dataDir, 'postgres', 'postgresql.conf'), 'no_such_setting = 1\n');
  await assert.rejects(start(dataDir, 'server'), (error) => {
    assert.ok(error instanceof EmbeddedError);
    assert.match(error.message, /^PostgreSQL did not start \(.*postgresql\.conf.*errors.*\); its log is /);
    return true;
  });
});

test('a grown log is truncated at the next start', async (t) => {
  const dataDir = newDataDir(t);
  mkdirSync(dataDir, { recursive: true });
  writeFileSync(join(dataDir, 'postgres.log'), Buffer.alloc(11 * 1024 * 1024, 'x'));
  const embedded = await start(dataDir, 'server');
  const log = readFileSync(join(dataDir, 'postgres.log'), 'utf8');
  assert.ok(log.length < 100_000);
  assert.match(log, /ready to accept connections/);
  await embedded.stop();
});

test('an impossible data directory is reported in one sentence', async (t) => {
  const file = join(newFolder(t), 'file');
  writeFileSync(file, '');
  await assert.rejects(start(join(file, 'data'), 'server'), (error) => {
    assert.ok(error instanceof EmbeddedError);
    assert.match(error.message, /^The data directory .* cannot be used: /);
    return true;
  });
});
