/** `nuncio backup` and `nuncio restore`, with real servers: traffic during the backup, damaged backups, what is sent afterwards. */

import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { cp, mkdir, readdir, readFile, rm, rmdir, stat, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { startEmbedded } from '../../src/database/embedded/embedded.ts';
import { requester } from '../support/clients/api_client.ts';
import { mintAccessToken } from '../support/clients/oauth.ts';
import { newDataDir, newFolder } from '../support/database/embedded_process.ts';
import { startEmbeddedServer } from '../support/servers/embedded_server.ts';
import { runCommand, runCommandProcess, startProcess } from '../support/servers/process.ts';
import { freePort } from '../support/servers/server.ts';
import {
  appScopes,
  createApp,
  createPublisher,
  publish,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../support/webhooks/subscriber.ts';

const idOf = ({ headers }: { headers: Record<string, unknown> }) => String(headers['nuncio-delivery']);
const refOf = ({ body }: { body: string }) => String(JSON.parse(body).ref ?? JSON.parse(body).data?.ref);

const createAnn = ['user', 'create', '--email', 'ann@example.com', '--password', 'a long password'];

/** A database with an account, and a backup of it, for the tests that need no server. */
const stock = await (async () => {
  const scope = { after };
  const [dataDir, parent] = [newDataDir(scope), newFolder(scope)];
  const settings = { NUNCIO_DATA_DIR: dataDir, PORT: String(await freePort()) };
  await runCommand(['migrate', '--init'], settings);
  await runCommand(createAnn, settings);
  const intact = join(parent, 'intact');
  assert.equal((await runCommand(['backup', intact], settings)).code, 0);
  return { dataDir, settings, intact };
})();

test('a restored server sends nothing old and everything new', async (t) => {
  const [dataDir, folder] = [newDataDir(t), join(newFolder(t), 'backup')];
  const good = await startSubscriber(t);
  const bad = await startSubscriber(t, answer(500));
  const first = await startEmbeddedServer(t, dataDir, { NUNCIO_RETRY_SCHEDULE: '1h,1h' });
  const app = await createApp(first);
  await subscribe(app, { url: good.url });
  const failing = await subscribe(app, { url: bad.url });
  const publisher = await createPublisher(first);
  let isPublishing = true;
  const traffic = (async () => {
    for (let count = 0; isPublishing; count += 1) await publish(publisher, app.account, [`old-${count}`]);
  })();
  await bad.waitFor(3);
  const backup = await runCommandProcess(['backup', folder], first.settings);
  isPublishing = false;
  await traffic;
  assert.deepEqual([backup.code, backup.stderr], [0, '']);
  assert.match(backup.stdout, /^wrote \d+ files \(\d+ MiB\) to .+ and verified them\nNUNCIO_SECRET is not/);
  await first.stop();
  const [oldGood, oldBad] = [good.received.length, bad.received.length];
  const oldIds = new Set([...good.received, ...bad.received].map(idOf));

  const second = newDataDir(t);
  const restored = await runCommandProcess(['restore', folder], {
    ...first.settings,
    NUNCIO_DATA_DIR: second,
  });
  assert.deepEqual([restored.code, restored.stderr], [0, '']);
  assert.match(restored.stdout, /^restored the backup of \S+ to .+\nepoch 1 begins\n\d+ deliveries are held/);
  bad.behave(answer(204));
  const again = await startEmbeddedServer(t, second);
  // The grants and clients of the backup still work, with the same secret.
  const publisherAgain = await createPublisher(again);
  await publish(publisherAgain, app.account, ['new-1', 'new-2']);
  await good.waitFor(oldGood + 2);
  await bad.waitFor(oldBad + 2);
  const news = [...good.received.slice(oldGood), ...bad.received.slice(oldBad)];
  assert.deepEqual(new Set(news.map(refOf)), new Set(['refs/heads/new-1', 'refs/heads/new-2']));
  assert.deepEqual(
    news.map(idOf).filter((id) => oldIds.has(id)),
    [],
    'no id is used twice',
  );
  const { rows } = await sql<{ waiting: number }>`
    select count(*)::int as waiting from retries where due_at is not null`.execute(again.db);
  assert.deepEqual(rows, [{ waiting: 0 }]);

  // The owner asks for what is held.
  const { accessToken } = await mintAccessToken(again, {
    account: app.account,
    client: { id: app.clientId },
    scopes: appScopes,
    grantId: app.grantId,
  });
  const since = new Date(Date.now() - 3_600_000).toISOString();
  const recovery = await requester(again, accessToken)('POST', `/subscriptions/${failing.id}/recover`, {
    json: { since, status: ['held'] },
  });
  assert.equal(recovery.status, 202, recovery.text);
  const before = bad.received.length;
  await until(
    async () => bad.received.slice(before).map(refOf),
    (refs) => refs.includes('refs/heads/old-0'),
  );
});

test('with --send-unsent a restored server sends what the backup had not', async (t) => {
  const [dataDir, folder] = [newDataDir(t), join(newFolder(t), 'backup')];
  const bad = await startSubscriber(t, answer(500));
  const first = await startEmbeddedServer(t, dataDir, { NUNCIO_RETRY_SCHEDULE: '1h,1h' });
  const app = await createApp(first);
  await subscribe(app, { url: bad.url });
  await publish(await createPublisher(first), app.account, ['unsent']);
  await until(
    async () =>
      (await sql<{ due: boolean }>`select due_at is not null as due from retries`.execute(first.db)).rows,
    (rows) => rows.length === 1,
  );
  // As after the pause.
  await sql`update retries set due_at = now() + interval '10 s'`.execute(first.db);
  assert.equal((await runCommand(['backup', folder], first.settings)).code, 0);
  await first.process.end('SIGKILL');
  await first.stop();
  const attempts = bad.received.length;
  const second = newDataDir(t);
  const restored = await runCommand(['restore', folder, '--send-unsent'], {
    ...first.settings,
    NUNCIO_DATA_DIR: second,
  });
  assert.match(restored.stdout, /epoch 1 begins\n$/);
  bad.behave(answer(204));
  await startEmbeddedServer(t, second);
  const received = await bad.waitFor(attempts + 1);
  assert.equal(refOf(received[attempts] as (typeof received)[number]), 'refs/heads/unsent');
});

test('events between publishing and their deliveries are set aside by a restore', async (t) => {
  const [dataDir, folder] = [newDataDir(t), join(newFolder(t), 'backup')];
  const subscriber = await startSubscriber(t);
  const first = await startEmbeddedServer(t, dataDir);
  const app = await createApp(first);
  await subscribe(app, { url: subscriber.url });
  await first.process.end('SIGKILL');
  // No server runs, so these wait in the outbox and in the inbox.
  await sql`
    with event as (
      insert into events (id, account_id, kind, body) values ('one', ${app.account.id}, 'push', '{}') returning day, position)
    insert into outbox (day, turn, positions) select day, ${app.account.id}::uuid, array[position] from event`.execute(
    first.db,
  );
  await sql`select publish('push', ${app.account.id}, '{"ref":"refs/heads/two"}'::jsonb)`.execute(first.db);
  assert.equal((await runCommand(['backup', folder], first.settings)).code, 0);
  await first.stop();
  const settings = { ...first.settings, NUNCIO_DATA_DIR: newDataDir(t) };
  const restored = await runCommand(['restore', folder], settings);
  assert.match(restored.stdout, /\n1 events are parked: .+\n1 events published by SQL are rejected: /);
  const parked = await runCommand(['parked', 'list'], settings);
  assert.match(parked.stdout, /restored from a backup/);
  assert.match((await runCommand(['parked', 'retry'], settings)).stdout, /^1 event was/);
  const again = await startEmbeddedServer(t, settings.NUNCIO_DATA_DIR);
  await subscriber.waitFor(1);
  const { rows } = await sql<{ left: number }>`select count(*)::int as left from rejected_events`.execute(
    again.db,
  );
  assert.deepEqual(rows, [{ left: 1 }]);
});

test('neither command overwrites anything', async (t) => {
  const { dataDir, settings } = stock;
  const parent = newFolder(t);
  const full = join(parent, 'full');
  await mkdir(full);
  await writeFile(join(full, 'note'), 'keep');
  const backup = await runCommand(['backup', full], settings);
  assert.deepEqual([backup.code, await readdir(full)], [1, ['note']]);
  assert.match(
    backup.stderr,
    /^nuncio: .+\/full is not empty \(it contains note\): choose a new folder\.\n$/,
  );
  const inside = await runCommand(['backup', join(dataDir, 'postgres', 'base', 'copy')], settings);
  assert.match(inside.stderr, /must not be in the data directory/);
  assert.deepEqual(await readdir(parent), ['full'], 'nothing partial is left');

  const folder = join(parent, 'backup');
  assert.equal((await runCommand(['backup', folder], settings)).code, 0);
  const before = await readFile(join(dataDir, 'postgres', 'global', 'pg_control'));
  const restore = await runCommand(['restore', folder], settings);
  assert.equal(restore.code, 1);
  assert.match(restore.stderr, /is not empty \(it contains postgres\): choose a new folder/);
  assert.deepEqual(await readFile(join(dataDir, 'postgres', 'global', 'pg_control')), before);

  const external = await runCommand(['backup', join(parent, 'no')], {
    ...settings,
    DATABASE_URL: 'postgres://localhost/other',
  });
  assert.match(
    external.stderr,
    /^nuncio: nuncio backup works on the embedded database, .+docs\/backup\.md\)\n$/,
  );
  const nothing = await runCommand(['backup', join(parent, 'no')], {
    ...settings,
    NUNCIO_DATA_DIR: join(parent, 'absent'),
  });
  assert.match(nothing.stderr, /there is no database in/);
  assert.deepEqual((await readdir(parent)).sort(), ['backup', 'full']);
});

test('a generated secret is part of the backup, readable by its owner only', async (t) => {
  const [dataDir, folder, second] = [newDataDir(t), join(newFolder(t), 'backup'), newDataDir(t)];
  const settings = { PORT: String(await freePort()), LOG_LEVEL: 'error' };
  const server = startProcess(t, ['dev'], { ...settings, NUNCIO_DATA_DIR: dataDir });
  await server.ready();
  const backup = await runCommand(['backup', folder], { ...settings, NUNCIO_DATA_DIR: dataDir });
  assert.doesNotMatch(backup.stdout, /NUNCIO_SECRET/);
  await server.end('SIGTERM');
  for (const path of [
    '',
    'secret',
    'nuncio.json',
    'postgres',
    'postgres/backup_manifest',
    'postgres/nuncio.password',
  ])
    assert.equal((await stat(join(folder, path))).mode & 0o077, 0, path);
  assert.equal((await runCommand(['restore', folder], { ...settings, NUNCIO_DATA_DIR: second })).code, 0);
  assert.equal(
    await readFile(join(second, 'secret'), 'utf8'),
    await readFile(join(dataDir, 'secret'), 'utf8'),
  );
  assert.equal((await stat(join(second, 'secret'))).mode & 0o777, 0o600);
  const again = startProcess(t, ['dev'], { ...settings, NUNCIO_DATA_DIR: second });
  await again.ready();
});

test('a damaged backup is refused, and leaves no database', async (t) => {
  const { settings, intact } = stock;
  const parent = newFolder(t);
  const description = JSON.parse(await readFile(join(intact, 'nuncio.json'), 'utf8'));
  const wal: string = description.files.find(({ path }: { path: string }) => path.includes('pg_wal/')).path;
  const manifest = JSON.parse(await readFile(join(intact, 'postgres/backup_manifest'), 'utf8'));
  const table: string = manifest.Files.find(({ Path }: { Path: string }) =>
    /^base\/\d+\/\d+$/.test(Path),
  ).Path;
  const describe = async (folder: string, change: (text: typeof description) => unknown) => {
    const copy = structuredClone(description);
    await writeFile(join(folder, 'nuncio.json'), JSON.stringify(change(copy) ?? copy));
  };
  const damages: Record<string, [(folder: string) => Promise<unknown>, RegExp]> = {
    'a byte of a table': [
      (folder) => flip(join(folder, 'postgres', table)),
      /the content of postgres\/base\/.+ has changed/,
    ],
    'a short file': [
      (folder) => truncate(join(folder, 'postgres', table), 512),
      /has 512 bytes, but had \d+/,
    ],
    'a missing file': [(folder) => rm(join(folder, 'postgres', table)), /is missing/],
    'a byte of the WAL': [
      (folder) => flip(join(folder, wal)),
      /the content of postgres\/pg_wal\/.+ has changed/,
    ],
    'missing WAL': [(folder) => rm(join(folder, wal)), /postgres\/pg_wal\/.+ is missing/],
    'a missing label': [(folder) => rm(join(folder, 'postgres/backup_label')), /backup_label is missing/],
    'the manifest': [(folder) => flip(join(folder, 'postgres/backup_manifest')), /is damaged/],
    'no manifest': [(folder) => rm(join(folder, 'postgres/backup_manifest')), /is damaged/],
    'no description': [
      (folder) => rm(join(folder, 'nuncio.json')),
      /is not a backup: it has no nuncio\.json/,
    ],
    'half a description': [
      (folder) => truncate(join(folder, 'nuncio.json'), 40),
      /nuncio\.json is not readable/,
    ],
    'another version': [
      (folder) => describe(folder, (text) => ({ ...text, postgresql: 12 })),
      /is of PostgreSQL 12, but PostgreSQL \d+ is installed/,
    ],
    'a folder elsewhere': [
      (folder) => describe(folder, (text) => ({ ...text, folders: ['../../../elsewhere'] })),
      /nuncio\.json is not readable/,
    ],
    'a file elsewhere': [
      (folder) =>
        describe(folder, (text) => ({
          ...text,
          files: [{ path: '../intact/nuncio.json', size: 1, sha256: 'a'.repeat(64) }],
        })),
      /nuncio\.json is not readable/,
    ],
    // Somebody who also changes the description cannot make PostgreSQL start without the WAL.
    'WAL that is not listed either': [
      async (folder) => {
        await rm(join(folder, wal));
        await describe(folder, (text) => ({
          ...text,
          files: text.files.filter(({ path }: { path: string }) => path !== wal),
        }));
      },
      /PostgreSQL did not start/,
    ],
  };
  for (const [name, [damage, expected]] of Object.entries(damages)) {
    const [folder, target] = [join(parent, 'damaged'), join(parent, 'target')];
    await cp(intact, folder, { recursive: true });
    await damage(folder);
    const refused = await runCommand(['restore', folder], { ...settings, NUNCIO_DATA_DIR: target });
    assert.equal(refused.code, 1, name);
    assert.match(refused.stderr, expected, name);
    assert.match(refused.stderr, /^nuncio: [^\n]+\n$/, name);
    const left = existsSync(target) ? await readdir(target) : [];
    assert.deepEqual(
      left.filter((entry) => !/^postgres\.(locks|log)$/.test(entry)),
      [],
      name,
    );
    assert.equal(existsSync(join(parent, 'elsewhere')), false);
    await rm(folder, { recursive: true });
  }
  // A folder that failed restores have used can be used again.
  const target = join(parent, 'target');
  const second = await runCommand(['restore', intact], { ...settings, NUNCIO_DATA_DIR: target });
  assert.deepEqual([second.code, second.stderr], [0, '']);
});

test('a backup that lost its empty folders, as object stores do, is restored', async (t) => {
  const { settings, intact } = stock;
  const [folder, second] = [join(newFolder(t), 'backup'), newDataDir(t)];
  await cp(intact, folder, { recursive: true });
  const removed: string[] = [];
  for (const name of await readdir(join(folder, 'postgres'))) {
    if (
      await rmdir(join(folder, 'postgres', name)).then(
        () => true,
        () => false,
      )
    )
      removed.push(name);
  }
  assert.ok(removed.includes('pg_notify'), String(removed));
  const restored = await runCommand(['restore', folder], { ...settings, NUNCIO_DATA_DIR: second });
  assert.deepEqual([restored.code, restored.stderr], [0, '']);
  const again = await runCommand(createAnn, { ...settings, NUNCIO_DATA_DIR: second });
  assert.match(again.stderr, /ann@example\.com/);
});

// The last one, because it changes the database.
test('a database with tablespaces is not backed up in part', async (t) => {
  const { dataDir, settings } = stock;
  const parent = newFolder(t);
  const embedded = await startEmbedded({ dataDir, role: 'command' });
  const { Client } = (await import('pg')).default;
  const client = new Client({ connectionString: embedded.connectionString });
  await client.connect();
  await client.query('set allow_in_place_tablespaces = on');
  await client.query(`create tablespace apart location ''`);
  await client.query('create table kept_apart (id int) tablespace apart');
  await client.end();
  const backup = await runCommand(['backup', join(parent, 'backup')], settings);
  await embedded.stop();
  assert.equal(backup.code, 1);
  assert.match(backup.stderr, /tablespaces, which nuncio backup does not support/);
  assert.deepEqual(await readdir(parent), []);
});

async function flip(path: string): Promise<void> {
  const content = await readFile(path);
  const place = content.length >> 1;
  content[place] = (content[place] as number) ^ 1;
  await writeFile(path, content);
}
