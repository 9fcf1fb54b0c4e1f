/**
 * Detects dead nodes by their heartbeat counters. A node without a heartbeat for `maxStalenessMs` (grants/delivery_hold.ts)
 * starts no delivery. A node whose counter has not changed for longer than that is dead, paused or cut off, and its lanes can be
 * claimed. Times are on the observer's monotonic clock. An observer that was paused itself knows nothing of that time, and
 * starts over.
 */

/**
 * Milliseconds without a heartbeat after which a node has lost its leases: more than twice `maxStalenessMs`.
 */
export const deadNodeAfterMs = 7_000;
/** Maximum milliseconds between two of the observer's own heartbeats. After a longer gap it starts over. */
const ownGapMsMax = 2_500;

export interface Peer {
  id: string;
  /** The heartbeat counter in the database. */
  looks: string;
}

export class Peers {
  #sights = new Map<string, { looks: string; since: number }>();
  #sawAt = Number.NEGATIVE_INFINITY;

  /**
   * @param askedAt milliseconds, before the query
   * @param answeredAt milliseconds, after the query
   * @returns the nodes that are dead
   */
  observe<P extends Peer>(peers: readonly P[], askedAt: number, answeredAt: number): P[] {
    const isBlind = askedAt - this.#sawAt > ownGapMsMax;
    const before = isBlind ? new Map<string, never>() : this.#sights;
    this.#sawAt = answeredAt;
    this.#sights = new Map(
      peers.map(({ id, looks }) => {
        const sight = before.get(id);
        return [id, sight?.looks === looks ? sight : { looks, since: answeredAt }];
      }),
    );
    return peers.filter(({ id }) => askedAt - (this.#sights.get(id)?.since ?? askedAt) >= deadNodeAfterMs);
  }
}
