/** `nuncio rejected discard`: a rejected event is given up. */

import { isId } from '../crypto/ids.ts';
import { takeRejected } from '../events/rejected_events.ts';
import { type Command, CommandError, textOption } from './command.ts';
import { withDatabase } from './storage.ts';

export const rejectedDiscard: Command = {
  options: { id: { type: 'string' } },
  help: [['--id ID', 'the event, as `rejected list` shows it']],
  async run({ values }, { config, print }) {
    const id = textOption(values, 'id');
    if (id === undefined || !isId(id)) throw new CommandError('--id must be one that `rejected list` shows');
    const taken = await withDatabase(config, (db) => db.transaction().execute((tx) => takeRejected(tx, id)));
    if (taken === undefined) throw new CommandError(`no rejected event has the id ${id}`);
    print(`${taken.kind} ${taken.eventId} is discarded`);
  },
};
