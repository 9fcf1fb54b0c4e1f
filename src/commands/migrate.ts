/** `nuncio migrate`: brings the schema up to date. */

import { migrateCollections } from '../collections/migrate.ts';
import { migrate } from '../database/migrate.ts';
import { explainMissingPublisher, missingPublisherStatements } from '../database/publisher_role.ts';
import type { Command } from './command.ts';
import { loadCommandPlatform } from './command_platform.ts';
import { openStorage } from './storage.ts';

export const migrateCommand: Command = {
  async run(_input, { config, print }) {
    const platform = await loadCommandPlatform(config);
    const storage = await openStorage(config, 'command');
    try {
      const applied = await migrate(storage.databaseUrl);
      for (const name of applied) print(`applied ${name}`);
      const changes = await migrateCollections(storage.databaseUrl, platform.collections);
      for (const change of changes) print(change);
      if (applied.length + changes.length === 0) print('the schema is up to date');
      const statements = await missingPublisherStatements(storage.databaseUrl);
      if (statements.length > 0) for (const line of explainMissingPublisher(statements)) print(line);
    } finally {
      await storage.close();
    }
  },
};
