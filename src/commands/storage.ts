/**
 * Storage for commands: the external database, or the embedded one (started for the command's time where no
 * server runs), with its schema up to date.
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
  /** One line about the embedded PostgreSQL, or null where an external one is used. */
  description: string | null;
  /** Leaves it; the embedded PostgreSQL stops with its last user. */
  close(): Promise<void>;
}

/**
 * @param log told, in one line each, of an embedded PostgreSQL that was lost, why it does not start, and that it is back
 * @throws EmbeddedError when another server runs on the data directory, or PostgreSQL cannot be started
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

/** Runs a command's work on the database, and leaves the database as it was found. */
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
