/** `nuncio parked retry`: parked events go back to the fan-out. */

import { retryParkedEvents } from '../webhooks/fan_out/parked_events.ts';
import { type Command, CommandError, textOption } from './command.ts';
import { withDatabase } from './storage.ts';

export const parkedRetry: Command = {
  options: { position: { type: 'string' } },
  help: [['--position N', 'one event, as `parked list` shows it; all of them without it']],
  async run({ values }, { config, print }) {
    const position = textOption(values, 'position') ?? null;
    if (position !== null && !/^\d{1,18}$/.test(position)) {
      throw new CommandError('the position must be a number');
    }
    const count = await withDatabase(config, (db) => retryParkedEvents(db, position));
    if (position !== null && count === 0)
      throw new CommandError(`no parked event has the position ${position}`);
    print(`${count} ${count === 1 ? 'event waits' : 'events wait'} for the fan-out again`);
  },
};
