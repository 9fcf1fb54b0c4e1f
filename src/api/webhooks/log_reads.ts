/**
 * Error handling for reads of the delivery log. They use database connections of their own, so they never delay other
 * requests. A read that gets no connection in time, or takes too long, is refused.
 */

import { isDatabaseUnavailable, isStatementTimeout } from '../../database/database.ts';
import { Problem } from '../../http/problem.ts';

/** @throws Problem 503 if the log is too busy */
export function readFromLog<Result>(read: Promise<Result>): Promise<Result> {
  return read.catch((error) => {
    if (!isStatementTimeout(error) && !isDatabaseUnavailable(error)) throw error;
    throw new Problem(503, 'The delivery log is busy.', {
      code: 'log-busy',
      headers: { 'retry-after': '5' },
      cause: error,
    });
  });
}
