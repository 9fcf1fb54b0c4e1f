/**
 * Reads of the delivery log have connections of their own, so that however many there are, no other request waits for
 * them. A read that gets no connection in time, or takes too long, is refused.
 */

import { isDatabaseUnavailable, isStatementTimeout } from '../../database/database.ts';
import { Problem } from '../../http/problem.ts';

/** @throws Problem 503 where the log is too busy */
export function fromLog<Result>(read: Promise<Result>): Promise<Result> {
  return read.catch((error) => {
    if (!isStatementTimeout(error) && !isDatabaseUnavailable(error)) throw error;
    throw new Problem(503, 'The delivery log cannot be read at the moment.', {
      code: 'log-busy',
      headers: { 'retry-after': '5' },
      cause: error,
    });
  });
}
