/** The database becomes unavailable under a running server and returns. */

import assert from 'node:assert/strict';
import { connect, createServer, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { pino } from 'pino';
import { loadConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/database/database.ts';
import { loadPlatform } from '../../src/platform.ts';
import { startServer } from '../../src/server.ts';
import { createApiUser, requester } from '../support/clients/api_client.ts';
import { createDatabase } from '../support/database/database.ts';
import { freePort, testSecret } from '../support/servers/server.ts';

/** A proxy between the server and PostgreSQL that the test can close. */
async function startGate(databaseUrl: string) {
  const url = new URL(databaseUrl);
  const target = url.searchParams.get('host') ?? url.hostname;
  const targetPort = Number(url.port || 5432);
  const sockets = new Set<Socket>();
  let isOpen = true;
  const gate = createServer((socket) => {
    if (!isOpen) return void socket.destroy();
    const upstream = target.startsWith('/')
      ? connect(`${target}/.s.PGSQL.${targetPort}`)
      : connect(targetPort, target);
    for (const each of [socket, upstream]) {
      sockets.add(each);
      each.on('error', () => {});
      each.on('close', () => sockets.delete(each));
    }
    socket.pipe(upstream).pipe(socket);
  });
  await new Promise<void>((resolve) => gate.listen(0, '127.0.0.1', resolve));
  const { port } = gate.address() as { port: number };
  url.searchParams.delete('host');
  url.hostname = '127.0.0.1';
  url.port = String(port);
  return {
    url: url.href,
    shut() {
      isOpen = false;
      for (const socket of sockets) socket.destroy();
    },
    open() {
      isOpen = true;
    },
    close() {
      for (const socket of sockets) socket.destroy();
      return new Promise((resolve) => gate.close(resolve));
    },
  };
}

test('requests return 503 while the database is gone, and succeed when it is back', async () => {
  const database = await createDatabase();
  const gate = await startGate(database.url);
  const port = await freePort();
  const config = loadConfig({ PORT: String(port), LOG_LEVEL: 'silent' }, 'dev');
  const running = await startServer({
    config,
    platform: await loadPlatform(null),
    databaseUrl: gate.url,
    secret: testSecret,
    logger: pino({ level: 'silent' }),
  });
  const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  after(async () => {
    await running.close();
    await db.destroy();
    await gate.close();
    await database.drop();
  });
  const server = { baseUrl: config.baseUrl, config, db, databaseUrl: database.url, running };
  const ada = await createApiUser(server);
  const { body } = await ada.request('POST', '/articles', { json: { title: 'Before' } });
  const path = `/articles/${body.id}`;

  gate.shut();
  const gone = await ada.request('GET', path);
  assert.equal(gone.status, 503, JSON.stringify(gone.body));
  assert.equal(gone.headers.get('content-type'), 'application/problem+json');
  assert.ok(Number(gone.headers.get('retry-after')) > 0);
  assert.equal((await ada.request('PATCH', path, { json: { title: 'Meanwhile' } })).status, 503);
  assert.equal((await ada.request('POST', '/articles', { json: { title: 'x' } })).status, 503);
  assert.equal((await requester(server)('GET', '/readyz')).status, 503);
  assert.equal((await requester(server)('GET', '/livez')).status, 200);

  gate.open();
  let back = await ada.request('GET', path);
  while (back.status === 503) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    back = await ada.request('GET', path);
  }
  assert.equal(back.status, 200);
  assert.equal(back.body.title, 'Before');
  assert.equal((await ada.request('PATCH', path, { json: { title: 'After' } })).body.title, 'After');
  assert.equal((await requester(server)('GET', '/readyz')).status, 200);
});
