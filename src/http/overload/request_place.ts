/** The place of a request, for handlers that wait for something else than this node. */

import { setTimeout as sleep } from 'node:timers/promises';
import type { FastifyRequest } from 'fastify';
import type { Place } from './admission.ts';
import type { Reservation } from './body_budget.ts';
import type { Caller } from './caller.ts';
import { currentPlace } from './connection_users.ts';
import { overloaded } from './refusal.ts';

/** Milliseconds after which a stream without a place asks for one again. */
const againMs = 250;

declare module 'fastify' {
  interface FastifyRequest {
    /** Null for requests that need none. */
    place: Place | null;
    isRefused: boolean;
    /** Memory of the body; null if it is small or has none. */
    bodyReservation: Reservation | null;
    /** Who sends the request, by its token once that is known; null as for `place`. */
    callerNow: (() => Caller) | null;
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

/**
 * Waits for another server, or for another thread, without the place of the current request: what hangs would keep the places of all.
 * Continues without a place if there is none in time, because something may have happened there. Never call it in work that several
 * requests wait for: the others would wait for the place of the first.
 */
export async function waitElsewhere<Result>(work: () => Promise<Result>): Promise<Result> {
  const place = currentPlace();
  // What waits within a wait gives nothing back.
  if (place?.state !== 'held') return work();
  place.pause();
  try {
    return await work();
  } finally {
    if (!place.resumeNow()) await place.resume();
  }
}

/**
 * Works for a stream, whose request has given its place back (`beginStream`). Each page of a stream needs a place, as each request does: those who
 * read their history by streams would otherwise come before all others.
 * @returns undefined if the stream ends before it has a place
 */
export async function workForStream<Result>(
  request: FastifyRequest,
  signal: AbortSignal,
  work: () => Promise<Result>,
): Promise<Result | undefined> {
  if (request.place === null) return work();
  while (!signal.aborted) {
    const place = await request.place.another(signal);
    if (place !== null) {
      request.place = place;
      try {
        return await work();
      } finally {
        place.leave();
      }
    }
    await sleep(againMs, undefined, { signal }).catch(() => {});
  }
  return undefined;
}
