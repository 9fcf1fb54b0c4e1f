/**
 * The platform of a command. Only `nuncio dev` on its embedded database, and commands beside such a server, fall back to the
 * example. An external database may be that of production, where the example would create its tables.
 */

import type { Config } from '../config/config.ts';
import { ConfigError } from '../config/config.ts';
import { missingConfigFile } from '../config/config_file.ts';
import { loadPlatform, type Platform } from '../platform.ts';
import { findServer } from './running_server.ts';

/** @throws ConfigError if there is no configuration file; PlatformError with its problems */
export async function loadCommandPlatform(config: Config): Promise<Platform> {
  if (config.configFile === null && !mayUseExample(config))
    throw new ConfigError([missingConfigFile(config.folder)]);
  return loadPlatform(config.configFile);
}

function mayUseExample({ mode, databaseUrl, dataDir }: Config): boolean {
  if (databaseUrl !== null) return false;
  return mode === 'dev' || findServer(dataDir)?.example === true;
}
