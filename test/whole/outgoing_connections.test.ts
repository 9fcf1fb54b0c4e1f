/** docs/telemetry.md: a server opens no connection that nobody configured. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { prepareProcess, startProcess } from '../support/servers/process.ts';
import {
  createApp,
  createPublisher,
  fannedOut,
  publish,
  subscribe,
  until,
} from '../support/webhooks/apps.ts';
import { answer, startSubscriber } from '../support/webhooks/subscriber.ts';

const hook = pathToFileURL('test/support/network/record_connections.ts').href;

test('a server connects to its database, to subscribers, and to nothing else', async (t) => {
  const host = await prepareProcess(t);
  const server = startProcess(t, ['start'], host.settings, ['--import', hook]);
  await server.ready();
  const { port } = new URL(host.settings.DATABASE_URL);
  const recorded = () =>
    [...server.output().matchAll(/^outgoing (.+)$/gm)].map(([, address = '']) => address);
  const isDatabase = (address: string) =>
    / local$/.test(address) || (port !== '' && address.endsWith(` ${port}`));
  const connections = () => recorded().filter((address) => !isDatabase(address));
  assert.ok(recorded().some(isDatabase), 'the connections to the database are recorded');

  for (const path of [
    '/',
    '/docs',
    '/console',
    '/openapi.json',
    '/asyncapi.json',
    '/.well-known/openid-configuration',
  ])
    assert.ok((await fetch(host.baseUrl + path)).ok, path);
  const app = await createApp(host);
  const publisher = await createPublisher(host);
  await publish(publisher, app.account, ['one']);
  await fannedOut(host);
  assert.deepEqual(connections(), []);

  // The recorder also sees the engine's thread.
  const subscriber = await startSubscriber(t, answer(204));
  await subscribe(app, { url: subscriber.url });
  await publish(publisher, app.account, ['two']);
  await subscriber.waitFor(1);
  // The thread's output arrives later than its delivery.
  await until(
    async () => connections().length,
    (count) => count > 0,
  );
  const others = connections().filter((address) => !address.endsWith(` ${subscriber.port}`));
  assert.deepEqual(others, []);
});
