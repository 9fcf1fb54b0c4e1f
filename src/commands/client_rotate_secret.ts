/** `nuncio client rotate-secret`: another secret for an app; the one before works a while longer. */

import { findClient } from '../clients/client.ts';
import { rotateClientSecret } from '../clients/client_secret.ts';
import { parseDurationSeconds } from '../config/duration.ts';
import { type Command, CommandError, textOption, UsageError } from './command.ts';
import { withDatabase } from './storage.ts';

/** Seconds that the secret before may go on working, at most. */
const overlapSecondsMax = 30 * 86_400;

export const clientRotateSecret: Command = {
  options: { overlap: { type: 'string' }, json: { type: 'boolean' } },
  help: [
    ['--overlap TIME', 'how long the secret before goes on working, like 0s or 7d (24h)'],
    ['--json', 'print JSON'],
  ],
  positionals: ['ID'],
  async run({ values, positionals }, { config, print }) {
    const id = positionals[0] as string;
    const overlap = parseDurationSeconds(textOption(values, 'overlap') ?? '24h');
    if (overlap === undefined || overlap > overlapSecondsMax) {
      throw new UsageError('--overlap may be a time from 0s to 30d, like 12h');
    }
    const secret = await withDatabase(config, async (db) => {
      const client = await findClient(db, id);
      if (client === undefined) throw new CommandError(`there is no client "${id}"`);
      if (!client.authMethod.startsWith('client_secret_')) {
        throw new CommandError(`the client "${id}" has no secret: it authenticates by ${client.authMethod}`);
      }
      return rotateClientSecret(db, id, overlap);
    });
    if (values.json === true) print(JSON.stringify({ client_id: id, client_secret: secret }));
    else print(`client_secret  ${secret}`);
  },
};
