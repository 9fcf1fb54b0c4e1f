/** A subscriber with Express. */

import { DatabaseSync } from 'node:sqlite';
import express from 'express';
import { deliveryOf, expressVerifier, once, sqliteStore } from 'nuncio/verify';

const database = new DatabaseSync(process.env.DATABASE_FILE ?? 'handled.sqlite');
database.exec(
  `create table if not exists nuncio_handled (
    key text primary key, position integer not null, token text, until integer not null
  )`,
);
const handle = once(sqliteStore(database));

const app = express();
app.post(
  '/hooks',
  // Before express.json(): the signature covers the bytes of the body.
  expressVerifier({ secret: process.env.WEBHOOK_SECRET }),
  async (request, response) => {
    const isNew = await handle(deliveryOf(request), ({ id, kind }) => {
      console.log(`handled ${kind} ${id}: ${JSON.stringify(request.body)}`);
    });
    if (!isNew) console.log('handled before');
    response.status(204).end();
  },
);
app.use(express.json());
app.listen(process.env.PORT ?? 4000);
