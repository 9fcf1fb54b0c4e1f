/**
 * `nuncio keys rotate`: new signing keys for tokens and for deliveries, published at once and signing after ten minutes.
 */

import { publishedAheadSeconds, rotateSigningKeys } from '../oauth/signing_keys.ts';
import { overlapSeconds, rotateDeliveryKey } from '../webhooks/sending/delivery_key.ts';
import { type Command, CommandError } from './command.ts';
import { withDatabase } from './storage.ts';

export const keysRotate: Command = {
  options: { json: { type: 'boolean' } },
  help: [['--json', 'print JSON']],
  async run({ values }, { config, print }) {
    // Other commands do without it; keys sealed with one that was made up here would be of use to no server.
    if (config.databaseUrl !== null && config.secret === null) {
      throw new CommandError('NUNCIO_SECRET is not set: it must be the one of the servers on DATABASE_URL');
    }
    const [ids, deliveryKey] = await withDatabase(config, async (db, { secret }) => [
      await rotateSigningKeys(db, secret).catch(refuseOtherSecret),
      await rotateDeliveryKey(db, secret),
    ]);
    if (values.json === true) {
      print(
        JSON.stringify({
          kids: ids,
          delivery_kid: deliveryKey,
          signing_in_seconds: publishedAheadSeconds,
          delivery_overlap_seconds: overlapSeconds,
        }),
      );
      return;
    }
    for (const id of ids) print(`made ${id}`);
    print(
      `made ${deliveryKey} for deliveries (the old one signs beside it for ${overlapSeconds / 86_400} days)`,
    );
    print(`published now, signing in ${publishedAheadSeconds / 60} minutes`);
  },
};

/** Says it without a stack where it is the operator's to mend. */
function refuseOtherSecret(error: Error): never {
  throw /(?:another|different) NUNCIO_SECRET/.test(error.message) ? new CommandError(error.message) : error;
}
