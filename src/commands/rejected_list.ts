/** `nuncio rejected list`: lists events that were published by SQL and failed validation, with the reasons. */

import { listRejected } from '../events/rejected_events.ts';
import { listCommand, shownMax } from './list_command.ts';

export const rejectedList = listCommand({
  jsonHelp: 'print JSON, including the bodies',
  read: (db) => listRejected(db, shownMax),
  none: 'No rejected events.',
  toJson: (event) => ({
    id: event.id,
    event: event.eventId,
    kind: event.kind,
    account: event.account,
    reason: event.reason,
    errors: event.errors,
    body_json: event.body,
    published_at: event.publishedAt.toISOString(),
    rejected_at: event.rejectedAt.toISOString(),
  }),
  toLine: ({ id, rejectedAt, kind, eventId, account, reason }) =>
    `${id}  ${rejectedAt.toISOString()}  ${kind} ${eventId} of ${JSON.stringify(account)}: ${reason}`,
});
