/** `nuncio parked list`: lists parked events and the reasons. */

import { listParkedEvents } from '../webhooks/fan_out/parked_events.ts';
import type { Command } from './command.ts';
import { withDatabase } from './storage.ts';

/** Maximum number of events to print. */
const shownMax = 100;

export const parkedList: Command = {
  options: { json: { type: 'boolean' } },
  help: [['--json', 'print JSON']],
  async run({ values }, { config, print }) {
    const events = await withDatabase(config, (db) => listParkedEvents(db, shownMax));
    if (values.json === true) {
      const rows = events.map((event) => ({
        position: event.position,
        id: event.id,
        account: event.accountId,
        kind: event.kind,
        reason: event.reason,
        parked_at: event.parkedAt.toISOString(),
      }));
      print(JSON.stringify(rows));
      return;
    }
    for (const { position, parkedAt, id, accountId, kind, reason } of events) {
      print(`${position}  ${parkedAt.toISOString()}  ${kind} ${id} of account ${accountId}: ${reason}`);
    }
  },
};
