/** Retrying a rejected event, with corrections where there are some. It comes after everything that was published since. */

import type { Transaction } from '../database/database.ts';
import { bodyProblem, Problem } from '../http/problem.ts';
import type { Catalogue } from './catalogue.ts';
import { takeRejected } from './rejected_events.ts';
import type { StoredEvent } from './store.ts';
import { takeIn } from './take_in.ts';

/** What takes the place of what was published. */
export interface Correction {
  kind?: string;
  /** An account's id, or the application's own user id. */
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
 * @returns undefined where there is no such rejected event any more
 * @throws Problem 422 where it is refused again; the transaction must then be rolled back, so that it stays
 */
export async function retryRejected(
  tx: Transaction,
  id: string,
  correction: Correction,
  catalogue: Catalogue,
): Promise<Retried | undefined> {
  const rejected = await takeRejected(tx, id);
  if (rejected === undefined) return undefined;
  const { stored, rejected: again } = await takeIn(tx, [{ ...rejected, ...correction }], catalogue);
  const [refused] = again;
  if (refused !== undefined) {
    const { reason, errors } = refused.refusal;
    if (errors.length > 0) throw bodyProblem(errors, reason);
    throw new Problem(422, reason, { code: 'event-refused' });
  }
  return { eventId: rejected.eventId, kind: correction.kind ?? rejected.kind, stored };
}
