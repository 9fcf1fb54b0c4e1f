/** A delivery is sent twice, with a restart of the receiver in between. */

import assert from 'node:assert/strict';
import pg from 'pg';
import { createDatabase } from '../../../test/support/database/database.ts';
import { freePort } from '../../../test/support/servers/server.ts';
import {
  createApp,
  createPublisher,
  publish,
  subscribe,
  until,
} from '../../../test/support/webhooks/apps.ts';
import type { Check } from '../check.ts';

export const check: Check = async ({ server, start, after }) => {
  const port = String(await freePort());
  const database = await createDatabase();
  const db = new pg.Client(database.url);
  await db.connect();
  after(async () => {
    await db.end();
    await database.drop();
  });
  await db.query('create table handled (ref text)');
  const app = await createApp(server);
  const publisher = await createPublisher(server);
  const { id, secret } = await subscribe(app, { url: `http://127.0.0.1:${port}/hooks`, kinds: ['push'] });
  const env = { PORT: port, WEBHOOK_SECRET: secret, DATABASE_URL: database.url };
  const first = await start('receiver.js', env);
  const refs = async () =>
    (await db.query('select ref from handled order by ref')).rows.map(({ ref }) => ref);

  await publish(publisher, app.account, ['one']);
  await until(refs, (found) => found.length > 0);
  await first.stop();
  await start('receiver.js', env);
  const list = await app.request('GET', `/subscriptions/${id}/deliveries`);
  const path = `/deliveries/${list.body.items[0].id}`;
  assert.equal((await app.request('POST', `${path}/resend`, { json: {} })).status, 202);
  await until(
    async () => (await app.request('GET', path)).body.attempts,
    (attempts) => attempts.length >= 2 && attempts[1].status >= 200 && attempts[1].status < 300,
  );
  await publish(publisher, app.account, ['two']);
  await until(refs, (found) => found.length > 1);
  assert.deepEqual(await refs(), ['refs/heads/one', 'refs/heads/two']);
};
