/** A whole server in this process, with its own database and port. */

import { createServer } from 'node:net';
import { pino } from 'pino';
import { migrateCollections } from '../../src/collections/migrate.ts';
import { type Config, loadConfig, type Mode } from '../../src/config/config.ts';
import type { Environment } from '../../src/config/environment.ts';
import { type Database, openDatabase } from '../../src/database/database.ts';
import { loadPlatform, type Platform } from '../../src/platform.ts';
import { type RunningServer, type ServerOptions, startServer } from '../../src/server.ts';
import { createDatabase } from './database.ts';

export const testSecret = Buffer.from('a secret for tests, 32 bytes or more');

export interface TestServer {
  baseUrl: string;
  config: Config;
  /** The server's own database, to look at what was stored. */
  db: Database;
  databaseUrl: string;
  running: RunningServer;
}

/** What has `after`: a test's context, or the `after` of a file or suite. */
interface Scope {
  after: (hook: () => Promise<void>) => void;
}

/**
 * Starts a server and takes it down after the test or file.
 * @param environment settings beside the defaults
 * @param platform what is declared; the shipped example where absent
 * @param egress how others are connected to, where that is not by the system's names and authorities
 * @param enginePlace where deliveries are made, where that is not in a thread of their own
 */
export async function startTestServer(
  scope: Scope,
  environment: Environment = {},
  mode: Mode = 'dev',
  platform?: Platform,
  egress?: NonNullable<ServerOptions['egress']>,
  enginePlace?: NonNullable<ServerOptions['enginePlace']>,
): Promise<TestServer> {
  const database = await createDatabase();
  const port = await freePort();
  const config = loadConfig(
    // A test that asks a lot is not what the limit is for; tests of the limit set it.
    { PORT: String(port), LOG_LEVEL: 'silent', NUNCIO_RATE_LIMIT: '0', ...environment },
    mode,
  );
  const logger = pino({ level: config.logLevel });
  if (platform !== undefined) await migrateCollections(database.url, platform.collections);
  const running = await startServer({
    config,
    platform: platform ?? (await loadPlatform(null)),
    databaseUrl: database.url,
    secret: testSecret,
    logger,
    ...(egress === undefined ? {} : { egress }),
    ...(enginePlace === undefined ? {} : { enginePlace }),
  });
  const db = openDatabase({ connectionString: database.url, connectionsMax: 4 });
  scope.after(async () => {
    await running.close();
    await db.destroy();
    await database.drop();
  });
  return { baseUrl: config.baseUrl, config, db, databaseUrl: database.url, running };
}

/** Where the ports of tests begin: below those that the system gives to outgoing connections. */
const firstPort = 20_000;
const portsPerFile = 500;
/** The runner numbers the files that run at the same time, from 1: each has ports of its own. */
const firstPortOfFile = firstPort + (Number(process.env.NODE_TEST_WORKER_ID ?? 1) - 1) * portsPerFile;
/** Subscribers may not listen on them (src/webhooks/subscriptions/subscriber_url.ts). */
const servicePorts = [25_565, 26_257, 26_379, 27_017, 27_018, 27_019, 28_015, 28_017];
/** Files that follow each other begin at different ports. */
let portsTried = process.pid % portsPerFile;

/** A port that nobody listens on, and that nobody else is told of meanwhile. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = firstPortOfFile + (portsTried++ % portsPerFile);
    if (!servicePorts.includes(port) && (await isFree(port))) return port;
  }
}

function isFree(port: number): Promise<boolean> {
  const server = createServer();
  return new Promise((resolve) => {
    server.once('error', () => resolve(false));
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}
