/** Retries a rejected event, optionally corrected. It comes after all events that were published since. */

import type { Transaction } from '../database/database.ts';
import { bodyProblem, Problem } from '../http/problem.ts';
import type { Catalogue } from './catalogue.ts';
import { checkRows, storeChecked } from './ingest.ts';
import { takeRejected } from './rejected_events.ts';
import type { StoredEvent } from './store.ts';

/** Values that replace the published ones. */
export interface Correction {
  kind?: string;
  /** An account id or an external id. */
  account?: string;
  /** JSON. */
  body?: string;
}

export interface Retried {
  eventId: string;
  kind: string;
  stored: StoredEvent[];
}

/**
 * @returns undefined if there is no such rejected event
 * @throws Problem 422 if it is refused again. The caller must then roll back, so that the rejected event stays
 */
export async function retryRejected(
  tx: Transaction,
  id: string,
  correction: Correction,
  catalogue: Catalogue,
): Promise<Retried | undefined> {
  const rejected = await takeRejected(tx, id);
  if (rejected === undefined) return undefined;
  const checked = await checkRows(tx, [{ ...rejected, ...correction }], catalogue);
  const { stored, rejected: again } = await storeChecked(tx, checked);
  const [refused] = again;
  if (refused !== undefined) {
    const { reason, errors } = refused.rejection;
    if (errors.length > 0) throw bodyProblem(errors, reason);
    throw new Problem(422, reason, { code: 'event-refused' });
  }
  return { eventId: rejected.eventId, kind: correction.kind ?? rejected.kind, stored };
}
