/** The public API for running the server inside another Node process (`nuncio/server`). */

import { pino } from 'pino';
import { startNode } from './commands/node.ts';
import { loadConfig } from './config/config.ts';
import { environmentOfProcess, readEnvironment, unknownSettings } from './config/environment.ts';
import {
  createPlatform,
  loadPlatform,
  type Platform,
  type PlatformDeclaration,
  PlatformError,
} from './platform.ts';

export { ConfigError } from './config/config.ts';
export { PlatformError } from './platform.ts';

export interface CreateServerOptions {
  /**
   * The settings, by the names of the environment variables, for example `{ DATABASE_URL: '…', PORT: '4000' }`. Default: the
   * environment of the process.
   */
  settings?: Readonly<Record<string, string | undefined>>;
  /** Whether to bring the schema up to date first (default), or to fail if it is not. */
  migrate?: boolean;
}

/** A server that accepts requests. */
export interface NuncioServer {
  /** The URL it listens on, for example `http://127.0.0.1:3000`. */
  readonly address: string;
  /** Finishes requests and deliveries in flight, then releases everything. Can be called more than once. */
  close(): Promise<void>;
}

/**
 * Starts the server with the rules of `nuncio start`. It has its own port: put it behind the same proxy as your application, or use another
 * origin. It handles no signals: call `close` when your process stops.
 * @param platform the result of `defineConfig`, or the path of a file that exports it. Default: `nuncio.config.ts` of the current
 *   directory. Kinds with earlier versions need a file, because a thread converts their bodies.
 * @throws ConfigError if settings are invalid, or PlatformError if the declaration is, with all problems
 */
export async function createServer(
  platform?: PlatformDeclaration | string,
  { settings = environmentOfProcess(), migrate = true }: CreateServerOptions = {},
): Promise<NuncioServer> {
  const given = { ...settings, ...(typeof platform === 'string' ? { NUNCIO_CONFIG: platform } : {}) };
  const declared = typeof platform === 'object' ? declare(platform) : null;
  const environment = readEnvironment(given);
  const config = loadConfig(environment, 'start', unknownSettings(given), process.cwd(), declared === null);
  const node = await startNode({
    config,
    platform: declared ?? (await loadPlatform(config.configFile)),
    logger: pino({ level: config.logLevel, base: null }),
    migrate,
    collectsGarbage: false,
  });
  return { address: node.address, close: () => node.close() };
}

function declare(declaration: PlatformDeclaration): Platform {
  const platform = createPlatform(declaration);
  const converted = platform.eventKinds.filter(({ versions }) => versions !== undefined);
  const problems = converted.map(
    ({ name }) =>
      `eventKinds.${name}.versions: a kind with versions must be declared in a file, whose path createServer gets`,
  );
  if (problems.length > 0) throw new PlatformError(problems);
  return platform;
}
