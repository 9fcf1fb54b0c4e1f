/** The thread of the delivery engine: what the server does when the engine fails, stalls or cannot respond. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { sql } from 'kysely';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { restartsMax } from '../../../src/webhooks/engine/restarts.ts';
import { createDatabase } from '../../support/database/database.ts';
import { type DatabaseProxy, startDatabaseProxy } from '../../support/database/database_proxy.ts';
import { evaluateInThread, inspectable } from '../../support/servers/inspector.ts';
import { type NuncioProcess, startProcess } from '../../support/servers/process.ts';
import { freePort, type TestServer, testSecret } from '../../support/servers/server.ts';
import { createApp, createPublisher, publish, subscribe, until } from '../../support/webhooks/apps.ts';
import { type Received, startSubscriber } from '../../support/webhooks/subscriber.ts';

interface Running {
  nuncio: NuncioProcess;
  baseUrl: string;
  db: Database;
  proxy: DatabaseProxy;
  /** @returns the status and the text of the response */
  get: (path: string) => Promise<{ status: number; text: string }>;
}

async function start(t: TestContext): Promise<Running> {
  const database = await createDatabase();
  t.after(() => database.drop());
  const proxy = await startDatabaseProxy(database.url);
  t.after(() => proxy.close());
  const port = String(await freePort());
  const settings = {
    PORT: port,
    DATABASE_URL: proxy.url,
    NUNCIO_SECRET: testSecret.toString(),
    LOG_LEVEL: 'error',
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
  };
  const nuncio = startProcess(t, ['start'], settings, inspectable);
  await nuncio.ready();
  const get = async (path: string) => {
    const answer = await fetch(`http://localhost:${port}${path}`);
    return { status: answer.status, text: await answer.text() };
  };
  const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  t.after(() => db.destroy());
  return { nuncio, baseUrl: `http://localhost:${port}`, db, proxy, get };
}

/** Waits for the exit and for the end of the output, whose last lines arrive after the exit. */
async function ended({ child }: NuncioProcess): Promise<number | null> {
  const isClosed = () => child.stdout?.closed === true && child.stderr?.closed === true;
  while ((child.exitCode === null && child.signalCode === null) || !isClosed()) await sleep(20);
  return child.exitCode;
}

/** Waits until `/readyz` responds with the status. */
function answersReadiness(get: Running['get'], status: number) {
  return until(
    () => get('/readyz'),
    (answer) => answer.status === status,
  );
}

/** Kills the engine and waits until its replacement is ready. */
async function killEngine({ nuncio, get }: Running, expression: string, restarts: number): Promise<void> {
  await evaluateInThread(nuncio, expression);
  const counted = new RegExp(`nuncio_engine_restarts_total ${restarts}\\b`);
  await until(
    () => get('/metrics'),
    ({ text }) => counted.test(text),
  );
  await answersReadiness(get, 200);
}

test('the engine restarts when its thread throws or exits, and the server continues', async (t) => {
  const running = await start(t);
  const { nuncio, get } = running;
  assert.match((await get('/metrics')).text, /nuncio_engine_restarts_total 0\b/);
  await killEngine(running, "setImmediate(() => { throw new Error('the engine broke') })", 1);
  assert.match(nuncio.output(), /delivery engine died: the engine broke/);
  await killEngine(running, 'setImmediate(() => process.exit(0))', 2);
  assert.match(nuncio.output(), /the thread of the delivery engine has ended/);
  assert.equal(await nuncio.end('SIGTERM'), 0);
});

test('the engine restarts when it runs out of memory, and the server continues', async (t) => {
  const running = await start(t);
  await killEngine(
    running,
    'setImmediate(() => { const all = []; for (;;) all.push(Array(1e5).fill({})); })',
    1,
  );
  assert.match(running.nuncio.output(), /ERR_WORKER_OUT_OF_MEMORY/);
  assert.equal(await running.nuncio.end('SIGTERM'), 0);
});

test('an engine that keeps dying ends the process', async (t) => {
  const running = await start(t);
  const broken = "setImmediate(() => { throw new Error('the engine broke') })";
  for (let restarts = 1; restarts <= restartsMax; restarts += 1) await killEngine(running, broken, restarts);
  await evaluateInThread(running.nuncio, broken);
  assert.equal(await ended(running.nuncio), 1);
  assert.match(running.nuncio.output(), /the engine broke/);
});

test('attempts in flight when the engine died are repeated at once', async (t) => {
  const running = await start(t);
  const { db, proxy } = running;
  const { baseUrl } = running;
  const server = { db, baseUrl, config: { baseUrl }, databaseUrl: proxy.url } as TestServer;
  let isHeld = true;
  const subscriber = await startSubscriber(t, (_received, response) => {
    if (!isHeld) response.writeHead(204).end();
  });
  const app = await createApp(server);
  const publisher = await createPublisher(server);
  await subscribe(app, { url: subscriber.url });
  // Few enough to be in flight together at a host that has accepted nothing.
  await publish(publisher, app.account, ['one', 'two']);
  const held = [...(await subscriber.waitFor(2))];
  isHeld = false;
  await killEngine(running, 'setImmediate(() => process.exit(0))', 1);
  const received = await subscriber.waitFor(4);
  const idsOf = (all: Received[]) => all.map(({ headers }) => headers['nuncio-delivery']).sort();
  assert.deepEqual(idsOf(received.slice(2)), idsOf(held));
  const { rows } = await sql`select from nodes`.execute(db);
  assert.equal(rows.length, 1, 'the dead engine is still among the nodes');
});

test('the server answers /metrics while the database is away, and continues', async (t) => {
  const { nuncio, proxy, get } = await start(t);
  // The node that fans out reports it, and this one may still be about to.
  const reportsAge = () =>
    until(
      async () => (await get('/metrics')).text,
      (text) => /nuncio_delivery_backlog_age_seconds\{of="outbox"\} 0/.test(text),
    );
  await reportsAge();
  proxy.cut();
  await answersReadiness(get, 503);
  const { status, text } = await get('/metrics');
  assert.equal(status, 200);
  assert.match(text, /nuncio_engine_memory_bytes/);
  assert.match(text, /nuncio_http_requests_total/);
  assert.doesNotMatch(text, /nuncio_delivery_backlog_age_seconds\{/);
  proxy.mend();
  await answersReadiness(get, 200);
  await reportsAge();
  assert.equal(await nuncio.end('SIGTERM'), 0);
});

test('SIGTERM ends the process while the database is away', async (t) => {
  const { nuncio, proxy, get } = await start(t);
  proxy.cut();
  await answersReadiness(get, 503);
  const code = await nuncio.end('SIGTERM');
  assert.ok(code === 0 || code === 1, String(code));
});

test('the server reports a stuck engine thread, responds, and ends on SIGTERM', async (t) => {
  const { nuncio, get } = await start(t);
  // The thread blocks. An endless loop would do the same, and take a processor from other tests.
  await evaluateInThread(
    nuncio,
    'setImmediate(() => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0))',
  );
  await answersReadiness(get, 503);
  assert.match((await get('/readyz')).text, /fan_out, sending/);
  const { status, text } = await get('/metrics');
  assert.equal(status, 200);
  assert.match(text, /nuncio_http_requests_total/);
  assert.equal(await nuncio.end('SIGTERM'), 1);
  assert.match(nuncio.output(), /"waiting_for":"deliveries".*stop timed out/);
});
