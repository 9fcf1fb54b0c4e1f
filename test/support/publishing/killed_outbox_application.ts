/**
 * An application with an outbox that tests kill: `PostgreSQL|SQLite <place> <command> …`, where the command is
 *
 *   `append <account> <mark> before|after`: creates an order and appends its event in one transaction; killed before
 *     the commit or immediately after it
 *   `relay <Nuncio's URL> <client id> <client secret>`: publishes until it is killed
 */

import { DatabaseSync } from 'node:sqlite';
import pg from 'pg';
import { createRelay, type NewEvent, postgresOutbox, sqliteOutbox } from '../../../src/outbox/outbox.ts';
import { createPublisher } from '../../../src/protect/protect.ts';

const [database, place = '', what, ...rest] = process.argv.slice(2);
const pool = database === 'SQLite' ? undefined : new pg.Pool({ connectionString: place, max: 3 });
pool?.on('error', () => {});
const file = database === 'SQLite' ? new DatabaseSync(place) : undefined;

if (what === 'append') {
  const [account = '', mark = '', when] = rest;
  // Builds the body without imports from the tests, because tests start this process many times.
  const body = { ref: `refs/heads/${mark}`, commits: [], repository: { name: 'example' } };
  await placeOrder({ kind: 'push', account, body, id: mark }, mark, when === 'after');
  process.kill(process.pid, 'SIGKILL');
} else {
  const [issuer = '', clientId = '', clientSecret = ''] = rest;
  const store =
    pool === undefined ? sqliteOutbox({ database: file as DatabaseSync }) : postgresOutbox({ pool });
  const publisher = createPublisher({ issuer, clientId, clientSecret, attempts: 1 });
  createRelay({ store, publisher, batchEvents: 5, pollMs: 10, pauseMaxMs: 100 }).start();
  process.stdout.write('started\n');
}

async function placeOrder(event: NewEvent, mark: string, isCommitted: boolean): Promise<void> {
  if (file !== undefined) {
    file.exec('begin immediate');
    file.prepare('insert into orders (mark) values (?)').run(mark);
    sqliteOutbox({ database: file }).append(file, event);
    if (isCommitted) file.exec('commit');
    return;
  }
  const client = await (pool as pg.Pool).connect();
  await client.query('begin');
  await client.query('insert into orders (mark) values ($1)', [mark]);
  await postgresOutbox({ pool: client }).append(client, event);
  if (isCommitted) await client.query('commit');
}
