/** What `nuncio restore` and `nuncio epoch begin --hold-unsent` do with what a restored database has not sent. */

import type { Database } from '../database/database.ts';
import { rejectInbox } from '../events/rejected_events.ts';
import { giveUpLogoutNotices } from '../oauth/logout/notice.ts';
import { holdUnsent } from '../webhooks/hold_unsent.ts';

const reason = 'restored from a backup';

/** Only while no server runs. @returns lines for the operator */
export function holdAllUnsent(db: Database): Promise<string[]> {
  return db.transaction().execute(async (tx) => {
    const { deliveries, events, recoveries } = await holdUnsent(tx, reason);
    const rejected = await rejectInbox(tx, reason);
    const notices = await giveUpLogoutNotices(tx, reason);
    const counts: readonly [number, string][] = [
      [deliveries, 'deliveries are held: their owners resend them or start a recovery of the state "held"'],
      [events, 'events are parked: nuncio parked retry sends them'],
      [rejected, 'events published by SQL are rejected: nuncio rejected retry sends them'],
      [recoveries, 'recoveries are cancelled'],
      [notices, 'logout notices are given up'],
    ];
    return counts.flatMap(([count, text]) => (count > 0 ? [`${count} ${text}`] : []));
  });
}
