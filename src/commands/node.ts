/**
 * Starts a node on its storage: the common part of `nuncio dev`, `nuncio start` and `createServer`.
 *
 *   storage → schema → server → (close) → server closed → storage released
 */

import type { Logger } from 'pino';
import { readUpstreamSecrets } from '../accounts/upstream/provider_settings.ts';
import { migrateCollections, requireCollections } from '../collections/migrate.ts';
import { type Config, isPublicHttp } from '../config/config.ts';
import { type Database, openDatabase } from '../database/database.ts';
import { migrate, requireMigrated } from '../database/migrate.ts';
import { explainMissingPublisher, missingPublisherStatements } from '../database/publisher_role.ts';
import { checkSchemaHistory } from '../events/schema_history.ts';
import { type Platform, PlatformError } from '../platform.ts';
import type { RunningServer } from '../server.ts';
import type { Tour } from '../web/start_page.ts';
import { CommandError } from './command.ts';
import { announceServer } from './running_server.ts';
import { openStorage, type Storage } from './storage.ts';

export interface NodeOptions {
  config: Config;
  platform: Platform;
  logger: Logger;
  /** Whether to bring the schema up to date first. */
  migrate: boolean;
  /** Whether the server may collect garbage when it rests, which blocks its threads. */
  collectsGarbage: boolean;
  /** Runs after the schema is up to date and before the server starts. */
  prepare?: (db: Database, storage: Storage, platform: Platform) => Promise<void>;
  /** Content of the start page in development mode; called after `prepare`. */
  tour?: (platform: Platform) => Tour;
}

export interface RunningNode extends Pick<RunningServer, 'address' | 'waitingFor'> {
  /** Stops accepting, finishes what is in flight, then releases the storage. */
  close(): Promise<void>;
}

/**
 * @throws ConfigError, PlatformError or CommandError with what to change; EmbeddedError if PostgreSQL cannot be started. Everything
 *   is released then.
 */
export async function startNode(options: NodeOptions): Promise<RunningNode> {
  const { config, platform, logger } = options;
  if (isPublicHttp(config.baseUrl)) {
    logger.warn({ base_url: config.baseUrl }, 'no TLS: passwords and tokens are sent unencrypted');
  }
  const upstreamSecrets = readUpstreamSecrets(platform.accounts.upstream);
  const storage = await openStorage(config, 'server', (line) => logger.warn(line));
  try {
    if (storage.description !== null) logger.info(storage.description);
    await prepareDatabase(options, storage);
    const { databaseUrl, secret } = storage;
    // Loaded here, because most of what prevents a start is known by now.
    const { startServer } = await import('../server.ts');
    const server = await startServer({
      config,
      platform,
      upstreamSecrets,
      databaseUrl,
      secret,
      logger,
      collectsGarbage: options.collectsGarbage,
      ...(options.tour === undefined ? {} : { tour: options.tour(platform) }),
    }).catch((error) => {
      throw explainListenError(error, config);
    });
    return running(server, storage, config.databaseUrl === null ? announceServer(config) : () => {});
  } catch (error) {
    await storage.close();
    throw error;
  }
}

function running(server: RunningServer, storage: Storage, withdraw: () => void): RunningNode {
  let closing: Promise<void> | undefined;
  const close = async () => {
    withdraw();
    try {
      await server.close();
    } finally {
      await storage.close();
    }
  };
  return {
    address: server.address,
    get waitingFor() {
      return server.waitingFor;
    },
    close: () => {
      closing ??= close();
      return closing;
    },
  };
}

async function prepareDatabase(options: NodeOptions, storage: Storage): Promise<void> {
  const { migrate: wanted, platform, prepare, logger } = options;
  if (wanted) {
    const applied = await migrate(storage.databaseUrl);
    // Before the collections change their tables.
    await checkSchemas(options, storage);
    applied.push(...(await migrateCollections(storage.databaseUrl, platform.collections)));
    if (applied.length > 0) logger.info({ applied }, 'migrated the schema');
  } else {
    await requireMigrated(storage.databaseUrl);
    await checkSchemas(options, storage);
    await requireCollections(storage.databaseUrl, platform.collections);
  }
  const statements = await missingPublisherStatements(storage.databaseUrl);
  if (statements.length > 0) logger.warn(explainMissingPublisher(statements).join('\n'));
  if (prepare === undefined) return;
  const db = openDatabase({ connectionString: storage.databaseUrl, connectionsMax: 2 });
  try {
    await prepare(db, storage, platform);
  } finally {
    await db.destroy();
  }
}

/** @throws PlatformError if a schema changed so that it breaks subscribers */
async function checkSchemas({ logger, platform }: NodeOptions, storage: Storage): Promise<void> {
  const db = openDatabase({ connectionString: storage.databaseUrl, connectionsMax: 1 });
  try {
    const problems = await checkSchemaHistory(db, platform.eventKinds, (message) => logger.warn(message));
    if (problems.length > 0) throw new PlatformError(problems);
  } finally {
    await db.destroy();
  }
}

function explainListenError(error: unknown, config: Config): unknown {
  const { code, syscall, hostname, port } = error as NodeJS.ErrnoException & {
    hostname?: string;
    port?: number;
  };
  const name = port === config.metricsPort ? 'NUNCIO_METRICS_PORT' : 'PORT';
  if (code === 'EADDRINUSE') {
    return new CommandError(`${name} is "${port}": the port is in use; set another ${name}`);
  }
  if (code === 'EACCES')
    return new CommandError(`${name} is "${port}": this user is not allowed to open the port`);
  const isUnknown = syscall === 'getaddrinfo' && hostname === config.host;
  if (isUnknown || (syscall === 'listen' && code !== undefined)) {
    return new CommandError(`HOST is "${config.host}": it must be an address of this machine`);
  }
  return error;
}
