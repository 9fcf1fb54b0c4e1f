/** `nuncio parked retry`: returns parked events to the outbox. */

import { isPosition, retryParkedEvents } from '../webhooks/fan_out/parked_events.ts';
import { type Command, CommandError, textOption } from './command.ts';
import { withDatabase } from './storage.ts';

export const parkedRetry: Command = {
  options: [['--position N', 'one event, by its position in `parked list`; default all']],
  async run({ values }, { config, print }) {
    const position = textOption(values, 'position') ?? null;
    if (position !== null && !isPosition(position)) {
      throw new CommandError('--position must be a number');
    }
    const count = await withDatabase(config, (db) => retryParkedEvents(db, position));
    if (position !== null && count === 0)
      throw new CommandError(`parked event at position ${position} not found`);
    print(`${count} ${count === 1 ? 'event was' : 'events were'} returned to the outbox`);
  },
};
