/**
 * `nuncio keys rotate`: new signing keys for tokens and for deliveries, published at once and signing after ten minutes.
 */

import { publishedAheadSeconds, rotateSigningKeys } from '../oauth/signing_keys.ts';
import { overlapSeconds, rotateDeliveryKey } from '../webhooks/delivery_key.ts';
import type { Command } from './command.ts';
import { withDatabase } from './storage.ts';

export const keysRotate: Command = {
  options: { json: { type: 'boolean' } },
  help: [['--json', 'print JSON']],
  async run({ values }, { config, print }) {
    const [ids, deliveryKey] = await withDatabase(config, async (db, { secret }) => [
      await rotateSigningKeys(db, secret),
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
