/** Retries and discards rejected events. */

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

/** Discards a rejected event. Succeeds if another administrator has already discarded it. */
export async function discardRejected(id: string): Promise<void> {
  try {
    await request('DELETE /admin/rejected-events/{id}', { path: { id } });
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 404)) throw error;
  }
}

/**
 * Discards several rejected events. Stops at the first error.
 * @param onDiscarded called after each
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
