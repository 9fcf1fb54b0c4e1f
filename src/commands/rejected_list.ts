/** `nuncio rejected list`: lists events that were published by SQL and failed validation, with the reasons. */

import { listRejected } from '../events/rejected_events.ts';
import type { Command } from './command.ts';
import { withDatabase } from './storage.ts';

/** Maximum number of events to print. */
const shownMax = 100;

export const rejectedList: Command = {
  options: { json: { type: 'boolean' } },
  help: [['--json', 'print JSON, including the bodies']],
  async run({ values }, { config, print }) {
    const events = await withDatabase(config, (db) => listRejected(db, shownMax));
    if (values.json === true) {
      const rows = events.map((event) => ({
        id: event.id,
        event: event.eventId,
        kind: event.kind,
        account: event.account,
        reason: event.reason,
        errors: event.errors,
        body_json: event.body,
        published_at: event.publishedAt.toISOString(),
        rejected_at: event.rejectedAt.toISOString(),
      }));
      print(JSON.stringify(rows));
      return;
    }
    for (const { id, rejectedAt, kind, eventId, account, reason } of events) {
      print(
        `${id}  ${rejectedAt.toISOString()}  ${kind} ${eventId} of ${JSON.stringify(account)}: ${reason}`,
      );
    }
  },
};
