/**
 * Runs a server until a signal stops it: the common part of `nuncio dev` and `nuncio start`.
 *
 *   storage → schema → server → (SIGTERM or SIGINT) → server closed → storage released
 */

import type { Logger } from 'pino';
import { readUpstreamSecrets } from '../accounts/upstream/provider_settings.ts';
import { migrateCollections, requireCollections } from '../collections/migrate.ts';
import { type Config, isPublicHttp } from '../config/config.ts';
import { type Database, openDatabase } from '../database/database.ts';
import { migrate, requireMigrated } from '../database/migrate.ts';
import { explainMissingPublisher, missingPublisherStatements } from '../database/publisher_role.ts';
import { shortenCollectionPauses } from '../garbage_collection.ts';
import type { Platform } from '../platform.ts';
import type { RunningServer } from '../server.ts';
import type { Tour } from '../web/start_page.ts';
import { CommandError } from './command.ts';
import { loadCommandPlatform } from './command_platform.ts';
import { announceServer } from './running_server.ts';
import { openStorage, type Storage } from './storage.ts';

/** Maximum seconds for a stop. Longer than the timeouts of delivery attempts (15 s) and of database queries. */
const stopSecondsMax = 30;

const stopSignals = ['SIGTERM', 'SIGINT'] as const;

export interface ServeOptions {
  config: Config;
  logger: Logger;
  /** Whether to bring the schema up to date first. */
  migrate: boolean;
  /** Runs after the schema is up to date and before the server starts. */
  prepare?: (db: Database, storage: Storage, platform: Platform) => Promise<void>;
  /** Content of the start page in development mode; called after `prepare`. */
  tour?: (platform: Platform) => Tour;
  /** Runs once the server is listening. */
  ready: (server: RunningServer, platform: Platform) => void;
}

/** Serves until a signal arrives. */
export async function serve(options: ServeOptions): Promise<void> {
  const { logger } = options;
  // First, so that a signal during start-up also causes a clean stop.
  const signals = listenToSignals(logger);
  try {
    await serveUntil(signals.first, options);
  } finally {
    signals.release();
  }
  logger.info('stopped');
}

async function serveUntil(stopped: Promise<NodeJS.Signals>, options: ServeOptions): Promise<void> {
  const { config, logger } = options;
  if (isPublicHttp(config.baseUrl)) {
    logger.warn({ base_url: config.baseUrl }, 'no TLS: passwords and tokens are sent unencrypted');
  }
  const platform = await loadCommandPlatform(config);
  const upstreamSecrets = readUpstreamSecrets(platform.accounts.upstream);
  const storage = await openStorage(config, 'server', (line) => logger.warn(line));
  try {
    if (storage.description !== null) logger.info(storage.description);
    await prepareDatabase(options, storage, platform);
    const { databaseUrl, secret } = storage;
    shortenCollectionPauses();
    // Loaded here, because most of what prevents a start is known by now.
    const { startServer } = await import('../server.ts');
    const server = await startServer({
      config,
      platform,
      upstreamSecrets,
      databaseUrl,
      secret,
      logger,
      collectsStartupGarbage: true,
      ...(options.tour === undefined ? {} : { tour: options.tour(platform) }),
    }).catch((error) => {
      throw explainListenError(error, config);
    });
    const withdraw = config.databaseUrl === null ? announceServer(config) : () => {};
    try {
      options.ready(server, platform);
      logger.info({ signal: await stopped }, 'stopping');
    } finally {
      withdraw();
    }
    exitAfterTimeout(server, logger);
    await server.close();
  } finally {
    await storage.close();
  }
}

async function prepareDatabase(options: ServeOptions, storage: Storage, platform: Platform) {
  const { migrate: wanted, prepare, logger } = options;
  if (wanted) {
    const applied = await migrate(storage.databaseUrl);
    applied.push(...(await migrateCollections(storage.databaseUrl, platform.collections)));
    if (applied.length > 0) logger.info({ applied }, 'migrated the schema');
  } else {
    await requireMigrated(storage.databaseUrl);
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

/**
 * Ends the process if the stop takes too long, for example because of a database outage. Nothing is lost: another node
 * repeats what was not recorded.
 */
function exitAfterTimeout(server: RunningServer, logger: Logger): void {
  setTimeout(() => {
    logger.error({ seconds: stopSecondsMax, waiting_for: server.waitingFor }, 'stop timed out, exiting');
    process.exit(1);
  }, stopSecondsMax * 1_000).unref();
}

/** The first signal requests a clean stop, the second one of the same kind ends the process immediately. */
function listenToSignals(logger: Logger): { first: Promise<NodeJS.Signals>; release: () => void } {
  const { promise: first, resolve } = Promise.withResolvers<NodeJS.Signals>();
  const received = new Set<NodeJS.Signals>();
  const receive = (signal: NodeJS.Signals) => {
    if (received.has(signal)) {
      logger.warn('exiting immediately after a second signal');
      process.exit(1);
    }
    received.add(signal);
    resolve(signal);
  };
  for (const signal of stopSignals) process.on(signal, receive);
  return {
    first,
    release: () => {
      for (const signal of stopSignals) process.removeListener(signal, receive);
    },
  };
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
