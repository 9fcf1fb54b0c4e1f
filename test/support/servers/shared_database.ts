/** Servers on databases that Nuncio shares with other applications. */

import pg from 'pg';
import { pino } from 'pino';
import { migrateCollections } from '../../../src/collections/migrate.ts';
import { loadConfig } from '../../../src/config/config.ts';
import { openDatabase } from '../../../src/database/database.ts';
import { migrate } from '../../../src/database/migrate.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { startServer } from '../../../src/server.ts';
import { freePort, type TestServer, testSecret } from './server.ts';

interface Scope {
  after: (hook: () => Promise<void>) => void;
}

/** Migrates the database as `nuncio start` does, and serves until the test ends. */
export async function startServerOn(scope: Scope, databaseUrl: string): Promise<TestServer> {
  const platform = await loadPlatform(null);
  await migrate(databaseUrl);
  await migrateCollections(databaseUrl, platform.collections);
  const port = await freePort();
  const config = loadConfig({ PORT: String(port), LOG_LEVEL: 'silent', NUNCIO_RATE_LIMIT: '0' }, 'dev');
  const logger = pino({ level: config.logLevel });
  const running = await startServer({ config, platform, databaseUrl, secret: testSecret, logger });
  const db = openDatabase({ connectionString: databaseUrl, connectionsMax: 4 });
  scope.after(async () => {
    await running.close();
    await db.destroy();
  });
  return { baseUrl: config.baseUrl, config, db, databaseUrl, running };
}

/** Runs statements as another application does, with the default search path of the database. */
export async function asApplication<T extends pg.QueryResultRow>(
  url: string,
  ...statements: string[]
): Promise<T[]> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    let rows: T[] = [];
    for (const statement of statements) ({ rows } = await client.query<T>(statement));
    return rows;
  } finally {
    await client.end();
  }
}
