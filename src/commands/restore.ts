/** `nuncio restore`: restores a backup of the embedded database into an empty data directory. */

import { resolve } from 'node:path';
import type { Config } from '../config/config.ts';
import { openDatabase } from '../database/database.ts';
import { restoreBackup } from '../database/embedded/restore.ts';
import { beginEpoch } from '../database/epoch.ts';
import { hasSchema, migrate } from '../database/migrate.ts';
import { withSchema } from '../database/schema.ts';
import { requireNoExternal } from './backup.ts';
import { type Command, CommandError } from './command.ts';
import { holdAllUnsent } from './hold_unsent.ts';

export const restore: Command = {
  positionals: ['folder'],
  mayCreateDatabase: false,
  options: [['--send-unsent', 'send what was not sent at the time of the backup; it may arrive twice']],
  async run({ values, positionals }, { config, print }) {
    requireNoExternal(config, 'nuncio restore');
    const lines: string[] = [];
    const { created_at: createdAt } = await restoreBackup({
      dataDir: config.dataDir,
      folder: resolve(config.folder, positionals[0] as string),
      prepare: async (connectionString) => {
        lines.push(...(await prepare(config, connectionString, values['send-unsent'] !== true)));
      },
    });
    print(`restored the backup of ${createdAt} to ${config.dataDir}`);
    for (const line of lines) print(line);
  },
};

/** Begins an epoch, because PostgreSQL cannot tell that this is an earlier state. @returns lines for the operator */
async function prepare(config: Config, connectionString: string, holds: boolean): Promise<string[]> {
  const databaseUrl = withSchema(connectionString, config.databaseSchema);
  if (!(await hasSchema(databaseUrl))) {
    throw new CommandError(
      `the backup has no schema "${config.databaseSchema}": set NUNCIO_DATABASE_SCHEMA as its server had it`,
    );
  }
  await migrate(databaseUrl);
  const db = openDatabase({ connectionString: databaseUrl, connectionsMax: 1 });
  try {
    const lines = [`epoch ${await beginEpoch(db)} begins`];
    return holds ? [...lines, ...(await holdAllUnsent(db))] : lines;
  } finally {
    await db.destroy();
  }
}
