/**
 * Starts Notes, an API with its own database. See README.md.
 */

import { mkdirSync } from 'node:fs';
import { dirname } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { createRelay, sqliteOutbox } from '../../src/outbox/outbox.ts';
import { createPublisher } from '../../src/protect/protect.ts';
import { readOptions } from '../options.ts';
import { createApi } from './api.ts';
import { openStore } from './store.ts';

readOptions(`usage: npm run example:own-api

Starts Notes, an API that accepts tokens of a Nuncio server: see examples/own-api/README.md.
NOTES_CLIENT_ID and NOTES_CLIENT_SECRET must be set. NOTES_PORT is its port (4100), NUNCIO_BASE_URL the server.
`);
const {
  NUNCIO_BASE_URL: issuer = 'http://localhost:3000',
  NOTES_CLIENT_ID: clientId = '',
  NOTES_CLIENT_SECRET: clientSecret = '',
  NOTES_PORT: port = '4100',
  NOTES_URL: url = `http://localhost:${port}`,
  NOTES_FILE: file = './data/notes.sqlite',
} = process.env;

if (clientId === '' || clientSecret === '') {
  process.stderr.write(
    'NOTES_CLIENT_ID and NOTES_CLIENT_SECRET must be set: see examples/own-api/README.md\n',
  );
  process.exit(2);
}

mkdirSync(dirname(file), { recursive: true });
const database = new DatabaseSync(file);
database.exec('pragma journal_mode = wal');
const outbox = sqliteOutbox({ database });
await outbox.setUp();
const store = openStore(database, outbox);
const log = (line: string) => process.stderr.write(`${line}\n`);
const relay = createRelay({
  store: outbox,
  publisher: createPublisher({ issuer, clientId, clientSecret }),
  onRejected: ({ id, reason }) => log(`event ${id} was rejected: ${reason}`),
  onError: (error) => log(`cannot publish events: ${(error as Error).message}`),
});
relay.start();
const api = createApi({
  store,
  onChange: relay.wake,
  protection: { issuer, url, clientId, clientSecret },
});
api.listen(Number(port), 'localhost', () => process.stdout.write(`Notes listens at ${url}\n`));

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.once(signal, async () => {
    api.close();
    api.closeIdleConnections();
    await relay.stop();
    database.close();
  });
}
