/** The events of deliveries that were read: from memory, or from the database as many as fit. */

import type { Database } from '../../database/database.ts';
import type { EventCache } from '../fan_out/event_cache.ts';
import type { EventContent } from '../sending/delivery_request.ts';
import { readEvents, type WaitingDelivery } from './window.ts';

/** Bytes of bodies read at once at most; a single larger one is read all the same. */
const readBytesMax = 16_777_216;

/** @returns by position; without those left out for the bytes of the others */
export async function findEvents(
  db: Database,
  cache: EventCache,
  found: readonly WaitingDelivery[],
): Promise<Map<number, EventContent>> {
  const events = new Map<number, EventContent>();
  const missing = new Map<number, { day: string; event: number }>();
  let bytes = 0;
  for (const { event, day, bytes: size, isAllowed } of found) {
    if (!isAllowed || events.has(event) || missing.has(event)) continue;
    const cached = cache.get(event);
    if (cached !== undefined) events.set(event, cached);
    else {
      bytes += size;
      if (bytes > readBytesMax && missing.size > 0) break;
      missing.set(event, { day, event });
    }
  }
  if (missing.size === 0) return events;
  for (const [position, event] of await readEvents(db, [...missing.values()])) {
    events.set(position, event);
    cache.put(position, event);
  }
  return events;
}
