/** A complete server in this process, with its own database and port. */

import { createServer } from 'node:net';
import { pino } from 'pino';
import { migrateCollections } from '../../../src/collections/migrate.ts';
import { type Config, loadConfig, type Mode } from '../../../src/config/config.ts';
import type { Environment } from '../../../src/config/environment.ts';
import { type Database, openDatabase } from '../../../src/database/database.ts';
import { loadPlatform, type Platform } from '../../../src/platform.ts';
import { type RunningServer, type ServerOptions, startServer } from '../../../src/server.ts';
import { createDatabase } from '../database/database.ts';

export const testSecret = Buffer.from('a secret for tests, 32 bytes or more');

export interface TestServer {
  baseUrl: string;
  config: Config;
  /** The server's database, for inspecting stored rows. */
  db: Database;
  databaseUrl: string;
  running: RunningServer;
}

/** What clients of a server use, also where the server is a separate process. */
export type ReachableServer = Pick<TestServer, 'baseUrl' | 'config' | 'db'>;

/** A scope with `after`: the context of a test, or the `after` of a file or suite. */
interface Scope {
  after: (hook: () => Promise<void>) => void;
}

/**
 * Starts a server and stops it after the test or file.
 * @param environment settings in addition to the defaults
 * @param platform the declared platform. Default: the shipped example
 * @param egress replaces the system's name resolution and certificate authorities for outgoing connections
 * @param enginePlace where the engine runs. A thread loads all sources again, so only tests of the thread use one
 */
export async function startTestServer(
  scope: Scope,
  environment: Environment = {},
  mode: Mode = 'dev',
  platform?: Platform,
  egress?: NonNullable<ServerOptions['egress']>,
  enginePlace: NonNullable<ServerOptions['enginePlace']> = 'here',
  prepare: (databaseUrl: string) => Promise<void> = async () => {},
): Promise<TestServer> {
  const database = await createDatabase();
  await prepare(database.url);
  const port = await freePort();
  const config = loadConfig(
    // The limits of requests are off by default, because tests send many at once on slow machines. Tests of a limit set it.
    {
      PORT: String(port),
      LOG_LEVEL: 'silent',
      NUNCIO_RATE_LIMIT: '0',
      NUNCIO_CONCURRENT_REQUESTS: '0',
      ...environment,
    },
    mode,
  );
  const logger = pino({ level: config.logLevel });
  if (platform !== undefined) await migrateCollections(database.url, platform.collections);
  const running = await startServer({
    config,
    platform: platform ?? (await shippedPlatform()),
    databaseUrl: database.url,
    secret: testSecret,
    logger,
    ...(egress === undefined ? {} : { egress }),
    enginePlace,
  });
  const db = openDatabase({ connectionString: database.url, connectionsMax: 4 });
  scope.after(async () => {
    await running.close();
    await db.destroy();
    await database.drop();
  });
  return { baseUrl: config.baseUrl, config, db, databaseUrl: database.url, running };
}

let shipped: Promise<Platform> | undefined;

/** The shipped example, which no server changes. */
function shippedPlatform(): Promise<Platform> {
  shipped ??= loadPlatform(null);
  return shipped;
}

/** The first port for tests, below the ephemeral ports of the system. */
const firstPort = 20_000;
const portsPerProcess = 1_500;
/** The runner numbers concurrent processes from 1. Each gets a separate range of ports. */
const firstPortOfProcess = firstPort + (Number(process.env.NODE_TEST_WORKER_ID ?? 1) - 1) * portsPerProcess;
/** Ports that subscribers may not use (src/webhooks/subscriptions/subscriber_url.ts). */
const servicePorts = [25_565, 26_257, 26_379, 27_017, 27_018, 27_019, 28_015, 28_017];
/** Successive processes start at different ports. */
let portsTried = process.pid % portsPerProcess;

/** Returns a port that is free and that no other caller gets, in this process or another test process. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = firstPortOfProcess + (portsTried++ % portsPerProcess);
    if (!servicePorts.includes(port) && (await reserve(port)) && (await isFree(port))) return port;
  }
}

/**
 * Reserves a port for the life of this process, by the name of an abstract Unix socket. Otherwise another process could
 * also find the port free before a server listens on it. Systems without such sockets have no reservations.
 */
function reserve(port: number): Promise<boolean> {
  if (process.platform !== 'linux') return Promise.resolve(true);
  const server = createServer();
  return new Promise((resolve) => {
    server.once('error', () => resolve(false));
    server.listen(`\0nuncio-test-port-${port}`, () => {
      server.unref();
      resolve(true);
    });
  });
}

function isFree(port: number): Promise<boolean> {
  const server = createServer();
  return new Promise((resolve) => {
    server.once('error', () => resolve(false));
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
  });
}
