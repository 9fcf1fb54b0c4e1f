/**
 * `nuncio epoch begin`: begins an epoch after a restore that PostgreSQL's timeline does not reveal. With `--hold-unsent`, the servers of
 * an external database send nothing old after a restore, as after `nuncio restore`.
 */

import { sql } from 'kysely';
import { beginEpoch } from '../database/epoch.ts';
import { type Command, CommandError } from './command.ts';
import { holdAllUnsent } from './hold_unsent.ts';
import { withDatabase } from './storage.ts';

export const epochBegin: Command = {
  options: [
    ['--hold-unsent', 'hold what was not sent at the time of the backup; otherwise the servers send it'],
  ],
  async run({ values }, { config, print }) {
    const lines = await withDatabase(config, async (db) => {
      const { rows } = await sql<{ host: string }>`
        select split_part(host, ' ', 1) as host from nodes where alive_until > now() limit 1`.execute(db);
      if (rows[0] !== undefined) {
        throw new CommandError(
          `a server is running on ${rows[0].host}: stop all servers first (a killed server counts as running for up to 45 seconds)`,
        );
      }
      const begun = `epoch ${await beginEpoch(db)} begins`;
      return values['hold-unsent'] === true ? [begun, ...(await holdAllUnsent(db))] : [begun];
    });
    for (const line of lines) print(line);
  },
};
