/** PostgreSQL for a run of tests: one for all files, in a temporary folder, with a template database to copy. */

import { mkdtemp, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { type EmbeddedPostgres, startEmbedded } from '../../../src/database/embedded/embedded.ts';
import { createTemplate, execute } from '../database/database.ts';
import { dataFolder } from './data_folder.ts';

/**
 * The data does not outlive the run, so a power failure may lose it. `kill -9` loses nothing, even without fsync.
 * Many files run concurrently, and each server opens its own connections.
 */
const settings = [
  'fsync = off',
  'full_page_writes = off',
  'max_connections = 400',
  // The data may be in memory.
  `max_wal_size = '512MB'`,
  // It visits every database in each interval, and each has a thousand tables. No test waits for it.
  `autovacuum_naptime = '5min'`,
];

/** Starts PostgreSQL and creates the template. */
export async function startTestPostgres(): Promise<EmbeddedPostgres> {
  const dataDir = await mkdtemp(join(dataFolder(), 'nuncio-test-'));
  await configure(dataDir);
  const postgres = await startEmbedded({ dataDir, role: 'server' });
  await createTemplate(postgres.connectionString);
  return {
    ...{ connectionString: postgres.connectionString, description: postgres.description },
    stop: async () => {
      await postgres.stop();
      await rm(dataDir, { recursive: true, force: true });
    },
  };
}

/** Most settings take effect at the next start. */
async function configure(dataDir: string): Promise<void> {
  const postgres = await startEmbedded({ dataDir, role: 'server' });
  try {
    for (const setting of settings) await execute(postgres.connectionString, `alter system set ${setting}`);
  } finally {
    await postgres.stop();
  }
}
