/** A server process on an embedded database, for tests that back it up and restore it. */

import type { TestContext } from 'node:test';
import { loadConfig } from '../../../src/config/config.ts';
import type { Environment } from '../../../src/config/environment.ts';
import { openDatabase } from '../../../src/database/database.ts';
import { type EmbeddedPostgres, startEmbedded } from '../../../src/database/embedded/embedded.ts';
import { withSchema } from '../../../src/database/schema.ts';
import { atEnd } from '../database/embedded_process.ts';
import { type NuncioProcess, startProcess } from './process.ts';
import { freePort, type ReachableServer, testSecret } from './server.ts';

export interface EmbeddedServer extends ReachableServer {
  process: NuncioProcess;
  settings: Environment;
  /** Stops the server and releases the database. */
  stop: () => Promise<void>;
}

/** Starts `nuncio start` on a data directory and waits until it is ready. */
export async function startEmbeddedServer(
  t: TestContext,
  dataDir: string,
  more: Environment = {},
): Promise<EmbeddedServer> {
  const settings: Environment = {
    PORT: String(await freePort()),
    NUNCIO_DATA_DIR: dataDir,
    NUNCIO_SECRET: testSecret.toString(),
    NUNCIO_INSECURE_SUBSCRIBERS: '1',
    NUNCIO_RATE_LIMIT: '0',
    LOG_LEVEL: 'error',
    ...more,
  };
  const server = startProcess(t, ['start'], settings);
  await server.ready();
  const embedded: EmbeddedPostgres = await startEmbedded({ dataDir, role: 'command' });
  const config = loadConfig(settings, 'start');
  const db = openDatabase({
    connectionString: withSchema(embedded.connectionString, config.databaseSchema),
    connectionsMax: 2,
  });
  let stopped: Promise<void> | undefined;
  const stop = async () => {
    await db.destroy();
    await server.end('SIGTERM');
    await embedded.stop();
  };
  const stopOnce = () => {
    stopped ??= stop();
    return stopped;
  };
  // Before the data directory is removed.
  atEnd(t, stopOnce);
  return { db, config, baseUrl: config.baseUrl, process: server, settings, stop: stopOnce };
}
