/** `nuncio keys rotate`: new signing keys, published at once and signing after ten minutes. */

import { publishedAheadSeconds, rotateSigningKeys } from '../oauth/signing_keys.ts';
import type { Command } from './command.ts';
import { withDatabase } from './storage.ts';

export const keysRotate: Command = {
  options: { json: { type: 'boolean' } },
  help: [['--json', 'print JSON']],
  async run({ values }, { config, print }) {
    const ids = await withDatabase(config, (db, { secret }) => rotateSigningKeys(db, secret));
    if (values.json === true) {
      print(JSON.stringify({ kids: ids, signing_in_seconds: publishedAheadSeconds }));
      return;
    }
    for (const id of ids) print(`made ${id}`);
    print(`published now, signing in ${publishedAheadSeconds / 60} minutes`);
  },
};
