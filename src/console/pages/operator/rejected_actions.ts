/** What an operator does with rejected events. */

import { ApiError } from '../../api/problem.ts';
import { request } from '../../api/request.ts';

/** Requests of a bulk discard that are in flight at once. */
const inFlightMax = 4;

export function retryRejected(
  id: string,
  correction: { kind?: string; account?: string; body?: unknown } = {},
) {
  return request('POST /admin/rejected-events/{id}/retry', { path: { id }, body: correction });
}

/** Discards one. Another administrator may have been faster: then there is nothing left to do. */
export async function discardRejected(id: string): Promise<void> {
  try {
    await request('DELETE /admin/rejected-events/{id}', { path: { id } });
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 404)) throw error;
  }
}

/**
 * Discards several, and stops at the first that the server refuses.
 * @param onDiscarded told of each
 */
export async function discardAll(ids: readonly string[], onDiscarded: (id: string) => void): Promise<void> {
  const left = [...ids];
  const work = async () => {
    for (let id = left.shift(); id !== undefined; id = left.shift()) {
      try {
        await discardRejected(id);
      } catch (error) {
        left.length = 0;
        throw error;
      }
      onDiscarded(id);
    }
  };
  const results = await Promise.allSettled(Array.from({ length: inFlightMax }, work));
  const failed = results.find((result) => result.status === 'rejected');
  if (failed !== undefined) throw failed.reason;
}
