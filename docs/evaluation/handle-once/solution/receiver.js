import express from 'express';
import { deliveryOf, expressVerifier, once, postgresStore } from 'nuncio/verify';
import pg from 'pg';

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
await pool.query(`create table if not exists nuncio_handled (
  key text primary key, position bigint not null, token text, until timestamptz not null)`);

const app = express();
app.post('/hooks', expressVerifier({ secret: process.env.WEBHOOK_SECRET }), async (request, response) => {
  const client = await pool.connect();
  try {
    await client.query('begin');
    await once(postgresStore(client))(deliveryOf(request), () =>
      client.query('insert into handled (ref) values ($1)', [request.body.ref]),
    );
    await client.query('commit');
  } catch (error) {
    await client.query('rollback');
    throw error;
  } finally {
    client.release();
  }
  response.status(204).end();
});
app.listen(process.env.PORT);
