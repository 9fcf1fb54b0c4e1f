/** `nuncio rejected discard`: discards a rejected event. */

import { isId } from '../crypto/ids.ts';
import { takeRejected } from '../events/rejected_events.ts';
import { type Command, CommandError, textOption } from './command.ts';
import { withDatabase } from './storage.ts';

export const rejectedDiscard: Command = {
  options: [['--id ID', 'the event, by its id in `rejected list`']],
  async run({ values }, { config, print }) {
    const id = textOption(values, 'id');
    if (id === undefined || !isId(id)) throw new CommandError('--id must be an id from `rejected list`');
    const taken = await withDatabase(config, (db) => db.transaction().execute((tx) => takeRejected(tx, id)));
    if (taken === undefined) throw new CommandError(`rejected event ${id} not found`);
    print(`discarded ${taken.kind} ${taken.eventId}`);
  },
};
