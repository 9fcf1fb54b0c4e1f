/**
 * Detects dead nodes by their heartbeat counters. A node without a heartbeat for `maxStalenessMs` (grants/delivery_hold.ts)
 * starts no delivery. If its counter has not changed for a little longer than that, others record it as silent, and withdrawals
 * do not wait for it. After `deadNodeAfterMs` it is dead, paused or cut off, and its lanes can be claimed. Times are on the
 * observer's monotonic clock. A paused observer saw nothing in that time, so it starts over.
 */

import { silentNodeAfterMs } from '../../grants/delivery_hold.ts';

/**
 * Milliseconds without a heartbeat after which a node has lost its leases: more than twice `maxStalenessMs`.
 */
export const deadNodeAfterMs = 7_000;
/** Maximum milliseconds between two of the observer's own heartbeats. After a longer gap it starts over. */
const ownGapMsMax = 2_500;

export interface Peer {
  id: string;
  /** The heartbeat counter in the database. */
  heartbeats: string;
}

export class Peers {
  #sightings = new Map<string, { heartbeats: string; since: number }>();
  #sawAt = Number.NEGATIVE_INFINITY;

  /**
   * @param askedAt milliseconds, before the query
   * @param readAt milliseconds, after the query
   * @returns the nodes that are silent, and those of them that are dead
   */
  observe<P extends Peer>(peers: readonly P[], askedAt: number, readAt: number): { silent: P[]; dead: P[] } {
    const hadGap = askedAt - this.#sawAt > ownGapMsMax;
    const before = hadGap ? new Map<string, never>() : this.#sightings;
    this.#sawAt = readAt;
    this.#sightings = new Map(
      peers.map(({ id, heartbeats }) => {
        const sighting = before.get(id);
        return [id, sighting?.heartbeats === heartbeats ? sighting : { heartbeats, since: readAt }];
      }),
    );
    const unchangedFor = (ms: number) =>
      peers.filter(({ id }) => askedAt - (this.#sightings.get(id)?.since ?? askedAt) >= ms);
    return { silent: unchangedFor(silentNodeAfterMs), dead: unchangedFor(deadNodeAfterMs) };
  }
}
