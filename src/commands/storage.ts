/**
 * Database access for commands: the external database, or the embedded one, which is started if no server runs. The
 * schema is brought up to date.
 */

import type { Config } from '../config/config.ts';
import { loadSecret } from '../config/secret.ts';
import { type Database, openDatabase } from '../database/database.ts';
import { startEmbedded } from '../database/embedded/embedded.ts';
import { migrate } from '../database/migrate.ts';
import { withSchema } from '../database/schema.ts';

export interface Storage {
  databaseUrl: string;
  secret: Buffer;
  /** Describes the embedded PostgreSQL in one line; null for an external database. */
  description: string | null;
  /** Releases the database. The embedded PostgreSQL stops with its last user. */
  close(): Promise<void>;
}

/**
 * @param log called with one line when the embedded PostgreSQL is lost, cannot be restarted, or is back
 * @throws EmbeddedError if another server uses the data directory, or PostgreSQL cannot be started
 */
export async function openStorage(
  config: Config,
  role: 'server' | 'command',
  log?: (line: string) => void,
): Promise<Storage> {
  const secret = loadSecret(config);
  if (config.databaseUrl !== null) {
    return {
      databaseUrl: withSchema(config.databaseUrl, config.databaseSchema),
      secret,
      description: null,
      close: async () => {},
    };
  }
  const embedded = await startEmbedded({
    dataDir: config.dataDir,
    role,
    ...(log === undefined ? {} : { log }),
  });
  return {
    databaseUrl: withSchema(embedded.connectionString, config.databaseSchema),
    secret,
    description: embedded.description,
    close: () => embedded.stop(),
  };
}

/** Runs a command's work with a database, and closes the database afterwards. */
export async function withDatabase<Result>(
  config: Config,
  work: (db: Database, storage: Storage) => Promise<Result>,
): Promise<Result> {
  const storage = await openStorage(config, 'command');
  try {
    await migrate(storage.databaseUrl);
    const db = openDatabase({ connectionString: storage.databaseUrl, connectionsMax: 2 });
    try {
      return await work(db, storage);
    } finally {
      await db.destroy();
    }
  } finally {
    await storage.close();
  }
}
