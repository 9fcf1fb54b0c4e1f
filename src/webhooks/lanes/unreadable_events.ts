/** Lanes whose next event the database cannot return, because its row is damaged. They pause, so that the others of the node are read. */

import type { BackgroundTasks } from './background_tasks.ts';
import type { Lane } from './lane.ts';

/** Milliseconds until such a lane tries again. */
const pauseMs = 60_000;

/** @param lanes of the read, by id @returns what `loadEvents` calls */
export function pauseUnreadable(background: BackgroundTasks, lanes: ReadonlyMap<number, Lane>) {
  return (id: number, cause: unknown): void => {
    const lane = lanes.get(id) as Lane;
    const now = performance.now();
    const isKnown = lane.pausedUntil > now + pauseMs / 2;
    lane.pausedUntil = Math.max(lane.pausedUntil, now + pauseMs);
    // One of its deliveries says it for all.
    if (isKnown) return;
    background.run(() => Promise.reject(new Error(`an event of lane ${id} cannot be read`, { cause })));
  };
}
