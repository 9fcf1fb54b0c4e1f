/** `nuncio client rotate-secret`: rotates the secret of an app. The previous one stays valid for the overlap. */

import { findClient } from '../clients/client.ts';
import { rotateClientSecret } from '../clients/client_secret.ts';
import { parseDurationSeconds } from '../config/duration.ts';
import { type Command, CommandError, textOption, UsageError } from './command.ts';
import { withDatabase } from './storage.ts';

/** Maximum overlap in seconds. */
const overlapSecondsMax = 30 * 86_400;

export const clientRotateSecret: Command = {
  options: [
    ['--overlap TIME', 'how long the previous secret stays valid, for example 0s or 7d (default 24h)'],
    ['--json', 'print JSON'],
  ],
  positionals: ['ID'],
  async run({ values, positionals }, { config, print }) {
    const id = positionals[0] as string;
    const overlap = parseDurationSeconds(textOption(values, 'overlap') ?? '24h');
    if (overlap === undefined || overlap > overlapSecondsMax) {
      throw new UsageError('--overlap must be a duration from 0s to 30d, like 12h');
    }
    const secret = await withDatabase(config, async (db) => {
      const client = await findClient(db, id);
      if (client === undefined) throw new CommandError(`client "${id}" not found`);
      if (!client.authMethod.startsWith('client_secret_')) {
        throw new CommandError(
          `client "${id}" has no secret: its authentication method is ${client.authMethod}`,
        );
      }
      return rotateClientSecret(db, id, overlap);
    });
    if (values.json === true) print(JSON.stringify({ client_id: id, client_secret: secret }));
    else print(`client_secret  ${secret}`);
  },
};
