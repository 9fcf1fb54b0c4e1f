/** `nuncio backup`: writes a backup of the embedded database, also while its server runs. */

import { resolve } from 'node:path';
import type { Config } from '../config/config.ts';
import { takeBackup } from '../database/embedded/backup.ts';
import { startEmbedded } from '../database/embedded/embedded.ts';
import { version } from '../version.ts';
import { type Command, CommandError } from './command.ts';
import { requireEmbedded } from './storage.ts';

export const backup: Command = {
  positionals: ['folder'],
  mayCreateDatabase: false,
  async run({ positionals }, { config, print }) {
    requireNoExternal(config, 'nuncio backup');
    await requireEmbedded(config);
    const embedded = await startEmbedded({ dataDir: config.dataDir, role: 'command' });
    try {
      const { folder, files, size } = await takeBackup({
        connectionString: embedded.connectionString,
        dataDir: config.dataDir,
        folder: resolve(config.folder, positionals[0] as string),
        version,
      });
      print(`wrote ${files} files (${Math.ceil(size / 1_048_576)} MiB) to ${folder} and verified them`);
      if (config.secret !== null) print('NUNCIO_SECRET is not in the backup: keep it as well');
    } finally {
      await embedded.stop();
    }
  },
};

/** @throws CommandError if the database is not the embedded one */
export function requireNoExternal({ databaseUrl }: Config, command: string): void {
  if (databaseUrl === null) return;
  throw new CommandError(
    `${command} works on the embedded database, and DATABASE_URL names another: use PostgreSQL's own tools there (docs/backup.md)`,
  );
}
