/** The events of deliveries that were read: from memory, or from the database as many as fit. */

import type { Database } from '../../database/database.ts';
import type { EventCache } from '../fan_out/event_cache.ts';
import type { EventContent } from '../sending/delivery_request.ts';
import { readEvents, type WaitingDelivery } from './waiting_deliveries.ts';
import type { WaitingMemory } from './waiting_memory.ts';

/** Bytes of bodies read at once at most; a single larger one is read all the same. */
const readBytesMax = 16_777_216;

/** Where events are looked for before they are read. */
export interface EventMemory {
  cache: EventCache;
  /** Those of deliveries that wait or are in flight. */
  waiting: WaitingMemory;
}

/**
 * @param admits says, in order, whether a delivery may be taken into memory; the rest of its lane is not asked for then
 * @returns by delivery; without those that were not admitted, and without those left out for the bytes of the others
 */
export async function loadEvents(
  db: Database,
  memory: EventMemory,
  found: readonly WaitingDelivery[],
  admits: (delivery: WaitingDelivery) => boolean,
): Promise<Map<WaitingDelivery, EventContent>> {
  const admitted = admittedOf(found, admits);
  const known = new Map<number, EventContent>();
  const missing = new Map<number, { day: string; event: number }>();
  let bytes = 0;
  for (const { event, day, bytes: size } of admitted) {
    if (known.has(event) || missing.has(event)) continue;
    const kept = memory.waiting.get(event) ?? memory.cache.get(event);
    if (kept !== undefined) known.set(event, kept);
    else {
      bytes += size;
      if (bytes > readBytesMax && missing.size > 0) break;
      missing.set(event, { day, event });
    }
  }
  if (missing.size > 0) {
    for (const [position, event] of await readEvents(db, [...missing.values()])) {
      known.set(position, event);
      memory.cache.put(position, event);
    }
  }
  const events = new Map<WaitingDelivery, EventContent>();
  for (const delivery of admitted) {
    const event = known.get(delivery.event);
    if (event !== undefined) events.set(delivery, event);
  }
  return events;
}

function admittedOf(
  found: readonly WaitingDelivery[],
  admits: (delivery: WaitingDelivery) => boolean,
): WaitingDelivery[] {
  const cut = new Set<number>();
  return found.filter((delivery) => {
    if (!delivery.isAllowed || delivery.isSuspended || cut.has(delivery.lane)) return false;
    if (admits(delivery)) return true;
    cut.add(delivery.lane);
    return false;
  });
}
