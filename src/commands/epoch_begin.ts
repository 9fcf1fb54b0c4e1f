/** `nuncio epoch begin`: begins an epoch after a restore that PostgreSQL's timeline does not reveal. */

import { sql } from 'kysely';
import { beginEpoch } from '../database/epoch.ts';
import { type Command, CommandError } from './command.ts';
import { withDatabase } from './storage.ts';

export const epochBegin: Command = {
  async run(_given, { config, print }) {
    const number = await withDatabase(config, async (db) => {
      const { rows } = await sql<{ host: string }>`
        select split_part(host, ' ', 1) as host from nodes where alive_until > now() limit 1`.execute(db);
      if (rows[0] !== undefined) {
        throw new CommandError(
          `a server is running on ${rows[0].host}: stop all servers first (a killed server counts as running for up to 45 seconds)`,
        );
      }
      return beginEpoch(db);
    });
    print(`epoch ${number} begins`);
  },
};
