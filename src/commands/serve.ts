/**
 * Serving: what `nuncio dev` and `nuncio start` share, from the storage to the signal that ends it.
 *
 *   storage → schema → server → (SIGTERM or SIGINT) → server closed → storage left
 */

import type { Logger } from 'pino';
import { migrateCollections, requireCollections } from '../collections/migrate.ts';
import { type Config, isPublicHttp } from '../config/config.ts';
import { type Database, openDatabase } from '../database/database.ts';
import { migrate, requireMigrated } from '../database/migrate.ts';
import { loadPlatform, type Platform } from '../platform.ts';
import { type RunningServer, startServer } from '../server.ts';
import type { Tour } from '../web/start_page.ts';
import { CommandError } from './command.ts';
import { openStorage, type Storage } from './storage.ts';

/** Seconds that a stop may take: more than the longest attempt of a delivery (15) and of a request to the database. */
const stopSecondsMax = 30;

export interface ServeOptions {
  config: Config;
  logger: Logger;
  /** Whether to bring the schema up to date first. */
  migrate: boolean;
  /** Runs between the schema and the server. */
  prepare?: (db: Database, storage: Storage) => Promise<void>;
  /** In development: what the page at the base URL tells, asked for after `prepare`. */
  tour?: () => Tour;
  /** Runs once the server listens. */
  ready: (server: RunningServer, storage: Storage) => void;
}

/** Serves until a signal ends it. */
export async function serve(options: ServeOptions): Promise<void> {
  const { config, logger } = options;
  // Heard from the first moment: whoever stops a server that is still starting gets a clean stop too.
  const stopped = stopSignal(logger);
  if (isPublicHttp(config.baseUrl)) {
    logger.warn({ base_url: config.baseUrl }, 'no TLS: everybody on the way reads passwords and tokens');
  }
  const platform = await loadPlatform(config.configFile);
  const storage = await openStorage(config, 'server', (line) => logger.warn(line));
  try {
    if (storage.description !== null) logger.info(storage.description);
    await bringUpToDate(options, storage, platform);
    const { databaseUrl, secret } = storage;
    const server = await startServer({
      config,
      platform,
      databaseUrl,
      secret,
      logger,
      ...(options.tour === undefined ? {} : { tour: options.tour() }),
    }).catch((error) => {
      throw explained(error, config);
    });
    options.ready(server, storage);
    logger.info({ signal: await stopped }, 'stopping');
    endInTime(logger);
    await server.close();
  } finally {
    await storage.close();
  }
  logger.info('stopped');
}

async function bringUpToDate(options: ServeOptions, storage: Storage, platform: Platform) {
  const { migrate: wanted, prepare, logger } = options;
  if (wanted) {
    const applied = await migrate(storage.databaseUrl);
    applied.push(...(await migrateCollections(storage.databaseUrl, platform.collections)));
    if (applied.length > 0) logger.info({ applied }, 'schema brought up to date');
  } else {
    await requireMigrated(storage.databaseUrl);
    await requireCollections(storage.databaseUrl, platform.collections);
  }
  if (prepare === undefined) return;
  const db = openDatabase({ connectionString: storage.databaseUrl, connectionsMax: 2 });
  try {
    await prepare(db, storage);
  } finally {
    await db.destroy();
  }
}

/**
 * A stop that cannot be finished (the database is gone, say) does not keep the process for ever. What was not written
 * down is repeated by whoever goes on: nothing is lost by it.
 */
function endInTime(logger: Logger): void {
  setTimeout(() => {
    logger.error({ seconds: stopSecondsMax }, 'not stopped in time: ended as it is');
    process.exit(1);
  }, stopSecondsMax * 1_000).unref();
}

/** The first signal asks for a clean stop, a second one ends the process at once. */
function stopSignal(logger: Logger): Promise<NodeJS.Signals> {
  return new Promise((resolve) => {
    for (const signal of ['SIGTERM', 'SIGINT'] as const) {
      process.once(signal, () => {
        resolve(signal);
        process.once(signal, () => {
          logger.warn('stopped at once, by a second signal');
          process.exit(1);
        });
      });
    }
  });
}

function explained(error: unknown, config: Config): unknown {
  const { code, syscall, hostname } = error as NodeJS.ErrnoException & { hostname?: string };
  if (code === 'EADDRINUSE') {
    return new CommandError(`PORT is "${config.port}": something listens there already; set another PORT`);
  }
  if (code === 'EACCES')
    return new CommandError(`PORT is "${config.port}": it may not be opened by this user`);
  const isUnknown = syscall === 'getaddrinfo' && hostname === config.host;
  if (isUnknown || (syscall === 'listen' && code !== undefined)) {
    return new CommandError(`HOST is "${config.host}": it may be an address of this machine`);
  }
  return error;
}
