/** `nuncio keys rotate`: rotates the signing keys and the delivery key. Signing keys become active after ten minutes. */

import { publishedAheadSeconds, rotateSigningKeys } from '../oauth/signing_keys.ts';
import { overlapSeconds, rotateDeliveryKey } from '../webhooks/sending/delivery_key.ts';
import { type Command, CommandError } from './command.ts';
import { withDatabase } from './storage.ts';

export const keysRotate: Command = {
  options: [['--json', 'print JSON']],
  async run({ values }, { config, print }) {
    // Required here: with a generated secret, no server could open the new keys.
    if (config.databaseUrl !== null && config.secret === null) {
      throw new CommandError(
        'NUNCIO_SECRET is not set: it must be the secret of the servers that use DATABASE_URL',
      );
    }
    const [ids, deliveryKey] = await withDatabase(config, async (db, { secret }) => {
      const signingKeys = await rotateSigningKeys(db, secret);
      return [signingKeys, await rotateDeliveryKey(db, secret)] as const;
    });
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
    for (const id of ids) print(`created signing key ${id}`);
    print(
      `created delivery key ${deliveryKey} (the previous one keeps signing for ${overlapSeconds / 86_400} days)`,
    );
    print(`the signing keys are published now and become active in ${publishedAheadSeconds / 60} minutes`);
  },
};
