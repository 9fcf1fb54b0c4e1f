/** The place of a request, for handlers that wait for something else than this node. */

import type { FastifyRequest } from 'fastify';
import type { Place } from './admission.ts';
import { overloaded } from './refusal.ts';

declare module 'fastify' {
  interface FastifyRequest {
    /** Null for requests that need none. */
    place: Place | null;
    isRefused: boolean;
  }
}

/**
 * Waits for a place for a request that was paused.
 * @throws Problem 503 if there is none in time: the request must not have changed anything
 */
export async function resumePlace(request: FastifyRequest): Promise<void> {
  const reason = await request.place?.resume();
  if (reason === null || reason === undefined) return;
  throw overloaded();
}

/** Waits for something else than this node without a place. See `resumePlace`. */
export async function withoutPlace<Result>(
  request: FastifyRequest,
  work: () => Promise<Result>,
): Promise<Result> {
  request.place?.pause();
  const result = await work();
  await resumePlace(request);
  return result;
}
