/**
 * Database access for commands: the external database, or the embedded one, which is started if no server runs. The schema is
 * brought up to date. Only the servers and `--init` create a missing database, because a command with a wrong setting must not
 * work on a new, empty one.
 */

import { existsSync } from 'node:fs';
import type { Config } from '../config/config.ts';
import { loadSecret } from '../config/secret.ts';
import { type Database, openDatabase } from '../database/database.ts';
import { startEmbedded } from '../database/embedded/embedded.ts';
import { clusterOf } from '../database/embedded/home.ts';
import { hasSchema, migrate } from '../database/migrate.ts';
import { withSchema } from '../database/schema.ts';
import { CommandError } from './command.ts';
import { findServer, respondsAt } from './running_server.ts';

export interface Storage {
  databaseUrl: string;
  /** Created and stored in the data directory on first use if the environment has none. */
  readonly secret: Buffer;
  /** Describes the embedded PostgreSQL in one line; null for an external database. */
  description: string | null;
  /** Releases the database. The embedded PostgreSQL stops with its last user. */
  close(): Promise<void>;
}

/**
 * @param log called with one line when the embedded PostgreSQL is lost, cannot be restarted, or is back
 * @throws EmbeddedError if another server uses the data directory, or PostgreSQL cannot be started
 * @throws CommandError if a command would create the embedded database
 */
export async function openStorage(
  config: Config,
  role: 'server' | 'command',
  log?: (line: string) => void,
): Promise<Storage> {
  if (config.databaseUrl !== null) {
    // Few commands need the secret, and the others must not create a data directory for it.
    let secret = role === 'server' ? loadSecret(config) : undefined;
    return {
      databaseUrl: withSchema(config.databaseUrl, config.databaseSchema),
      get secret() {
        secret ??= loadSecret(config);
        return secret;
      },
      description: null,
      close: async () => {},
    };
  }
  if (role === 'command') await requireEmbedded(config);
  const secret = loadSecret(config);
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
    await requireSchema(config, storage.databaseUrl);
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

/** Refuses to create the embedded database, and reports a server that uses another one. */
export async function requireEmbedded({ dataDir, baseUrl, mayCreateDatabase }: Config): Promise<void> {
  if (findServer(dataDir) !== undefined) return;
  const isThere = existsSync(clusterOf(dataDir));
  const isElsewhere = await respondsAt(baseUrl);
  if (!isThere && !mayCreateDatabase) {
    const what = isElsewhere
      ? `the server at ${baseUrl} uses another database, and there is none in ${dataDir}`
      : `there is no database in ${dataDir}`;
    throw new CommandError(
      `${what}: set NUNCIO_DATA_DIR or DATABASE_URL as the server has it, or create a new one there with --init`,
    );
  }
  if (isElsewhere) {
    process.stderr.write(
      `nuncio: warning: the server at ${baseUrl} does not use the database in ${dataDir}, which this command uses\n`,
    );
  }
}

/** Refuses to create the schema in an external database. `nuncio migrate` does that. */
async function requireSchema(config: Config, databaseUrl: string): Promise<void> {
  if (config.databaseUrl === null || config.mayCreateDatabase || (await hasSchema(databaseUrl))) return;
  throw new CommandError(
    `the database of DATABASE_URL has no schema "${config.databaseSchema}": set DATABASE_URL and NUNCIO_DATABASE_SCHEMA as the servers have them, or create the schema with nuncio migrate or --init`,
  );
}
