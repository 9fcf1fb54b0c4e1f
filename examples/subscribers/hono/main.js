/** A subscriber with Hono. `fetch` of the app also runs in workers, with another store. */

import { createServer } from 'node:http';
import { DatabaseSync } from 'node:sqlite';
import { getRequestListener } from '@hono/node-server';
import { Hono } from 'hono';
import { deliveryOf, honoVerifier, once, sqliteStore } from 'nuncio/verify';

const database = new DatabaseSync(process.env.DATABASE_FILE ?? 'handled.sqlite');
database.exec(
  `create table if not exists nuncio_handled (
    key text primary key, position integer not null, token text, until integer not null
  )`,
);
const handle = once(sqliteStore(database));

const app = new Hono();
app.post('/hooks', honoVerifier({ secret: process.env.WEBHOOK_SECRET }), async (c) => {
  const event = await c.req.json();
  const isNew = await handle(deliveryOf(c), ({ id, kind }) => {
    console.log(`handled ${kind} ${id}: ${JSON.stringify(event)}`);
  });
  if (!isNew) console.log('handled before');
  return c.body(null, 204);
});
// `busy` is 503: the server retries.
app.onError((error, c) => c.json({ error: error.code ?? 'internal' }, error.status ?? 500));

createServer(getRequestListener(app.fetch)).listen(process.env.PORT ?? 4000);
