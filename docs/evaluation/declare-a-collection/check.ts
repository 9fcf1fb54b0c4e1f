/** A server with this platform, run from the package as an operator does, serves, protects and announces bookmarks. */

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { loadConfig } from '../../../src/config/config.ts';
import { openDatabase } from '../../../src/database/database.ts';
import { createDatabase } from '../../../test/support/database/database.ts';
import { startProcess } from '../../../test/support/servers/process.ts';
import { freePort, testSecret } from '../../../test/support/servers/server.ts';
import { createApp, subscribe } from '../../../test/support/webhooks/apps.ts';
import { startSubscriber } from '../../../test/support/webhooks/subscriber.ts';
import type { Check } from '../check.ts';

export const check: Check = async ({ folder, after }) => {
  const database = await createDatabase();
  const db = openDatabase({ connectionString: database.url, connectionsMax: 2 });
  const settings = {
    DATABASE_URL: database.url,
    PORT: String(await freePort()),
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_CONFIG: join(folder, 'nuncio.config.ts'),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    LOG_LEVEL: 'warn',
  };
  const main = join(folder, 'node_modules/nuncio/dist/main.js');
  const running = startProcess({ after }, ['start'], settings, [], main, folder);
  after(async () => {
    await running.end('SIGKILL');
    await db.destroy();
    await database.drop();
  });
  await running.ready();
  const config = loadConfig(settings, 'start');
  await checkBookmarks({ baseUrl: config.baseUrl, config, db }, after);
};

async function checkBookmarks(
  server: Parameters<typeof createApp>[0],
  after: Parameters<Check>[0]['after'],
): Promise<void> {
  const scopes = ['read:bookmarks', 'write:bookmarks', 'read:webhooks', 'write:webhooks'];
  const [owner, other] = [await createApp(server, { scopes }), await createApp(server, { scopes })];
  const subscriber = await startSubscriber({ after });
  const kinds = ['bookmark.created', 'bookmark.archived'];
  await subscribe(owner, { url: subscriber.url, kinds, ordered: true });

  const refused = await owner.request('POST', '/bookmarks', { json: { title: 'without a URL' } });
  assert.equal(refused.status, 422);
  const created = await owner.request('POST', '/bookmarks', { json: { url: 'https://example.com/' } });
  assert.equal(created.status, 201, created.text);
  assert.equal(created.body.title, '');
  const path = `/bookmarks/${created.body.id}`;
  assert.equal((await other.request('GET', path)).status, 404);
  assert.equal((await owner.request('POST', `${path}/archive`)).body.state, 'archived');
  assert.equal((await owner.request('POST', `${path}/archive`)).status, 409);
  const received = await subscriber.waitFor(2);
  assert.deepEqual(
    received.map(({ headers }) => headers['nuncio-event']),
    kinds,
  );
}
