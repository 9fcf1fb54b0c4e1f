/** `nuncio parked list`: lists parked events and the reasons. */

import { listParkedEvents } from '../webhooks/fan_out/parked_events.ts';
import { listCommand, shownMax } from './list_command.ts';

export const parkedList = listCommand({
  read: (db) => listParkedEvents(db, shownMax),
  none: 'No parked events.',
  toJson: (event) => ({
    position: event.position,
    id: event.id,
    account: event.accountId,
    kind: event.kind,
    reason: event.reason,
    parked_at: event.parkedAt.toISOString(),
  }),
  toLine: ({ position, parkedAt, id, accountId, kind, reason }) =>
    `${position}  ${parkedAt.toISOString()}  ${kind} ${id} of account ${accountId}: ${reason}`,
});
