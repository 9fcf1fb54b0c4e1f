/** The thread of the delivery engine: what happens to the server when it fails, stands still, or cannot answer. */

import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { createDatabase } from './support/database.ts';
import { type DatabaseProxy, startDatabaseProxy } from './support/database_proxy.ts';
import { evaluateInThread, inspectable } from './support/inspector.ts';
import { type NuncioProcess, startProcess } from './support/process.ts';
import { freePort, testSecret } from './support/server.ts';

interface Running {
  nuncio: NuncioProcess;
  proxy: DatabaseProxy;
  /** @returns status and text */
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
  };
  const nuncio = startProcess(t, ['start'], settings, inspectable);
  await nuncio.ready();
  const get = async (path: string) => {
    const answer = await fetch(`http://localhost:${port}${path}`);
    return { status: answer.status, text: await answer.text() };
  };
  return { nuncio, proxy, get };
}

/** With all that it said: the last of it comes after its end. */
async function ended({ child }: NuncioProcess): Promise<number | null> {
  const isClosed = () => child.stdout?.closed === true && child.stderr?.closed === true;
  while ((child.exitCode === null && child.signalCode === null) || !isClosed()) await sleep(20);
  return child.exitCode;
}

test('what the engine’s thread throws ends the process', async (t) => {
  const { nuncio } = await start(t);
  await evaluateInThread(nuncio, "setImmediate(() => { throw new Error('the engine broke') })");
  assert.equal(await ended(nuncio), 1);
  assert.match(nuncio.output(), /the engine broke/);
});

test('the end of the engine’s thread ends the process', async (t) => {
  const { nuncio } = await start(t);
  await evaluateInThread(nuncio, 'setImmediate(() => process.exit(0))');
  assert.equal(await ended(nuncio), 1);
  assert.match(nuncio.output(), /thread of the delivery engine has ended/);
});

test('asked for metrics while the database is away, the server answers and goes on', async (t) => {
  const { nuncio, proxy, get } = await start(t);
  assert.match((await get('/metrics')).text, /nuncio_delivery_backlog_age_seconds\{of="outbox"\} 0/);
  proxy.cut();
  while ((await get('/readyz')).status !== 503) await sleep(50);
  const { status, text } = await get('/metrics');
  assert.equal(status, 200);
  assert.match(text, /nuncio_engine_memory_bytes/);
  assert.match(text, /nuncio_http_requests_total/);
  assert.doesNotMatch(text, /nuncio_delivery_backlog_age_seconds\{/);
  proxy.mend();
  while ((await get('/readyz')).status !== 200) await sleep(50);
  assert.match((await get('/metrics')).text, /nuncio_delivery_backlog_age_seconds\{of="outbox"\} 0/);
  assert.equal(await nuncio.end('SIGTERM'), 0);
});

test('SIGTERM while the database is away ends the process', async (t) => {
  const { nuncio, proxy, get } = await start(t);
  proxy.cut();
  while ((await get('/readyz')).status !== 503) await sleep(50);
  const code = await nuncio.end('SIGTERM');
  assert.ok(code === 0 || code === 1, String(code));
});

test('where the engine’s thread stands still, the server says so, answers, and ends by SIGTERM', async (t) => {
  const { nuncio, get } = await start(t);
  await evaluateInThread(nuncio, 'setImmediate(() => { for (;;); })');
  while ((await get('/readyz')).status !== 503) await sleep(50);
  assert.match((await get('/readyz')).text, /fan_out, sending/);
  const { status, text } = await get('/metrics');
  assert.equal(status, 200);
  assert.match(text, /nuncio_http_requests_total/);
  assert.equal(await nuncio.end('SIGTERM'), 1);
  assert.match(nuncio.output(), /not stopped in time/);
});
