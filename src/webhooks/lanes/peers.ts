/**
 * Other nodes as one node sees them. A node that has not looked at the database for `maxStalenessMs` (grants/delivery_hold.ts)
 * starts no delivery. A node whose counter of looks has stood for longer than that is dead, paused or cut off. Nobody needs
 * to wait for it, and its lanes can be taken. Times are those of the observer's own clock, which does not step. An observer
 * that did not look itself for a while knows nothing of that while: it starts to observe anew.
 */

/** Milliseconds without a look after which a node has lost its lanes: more than twice `maxStalenessMs`. */
export const deadNodeAfterMs = 7_000;
/** Milliseconds between two of the observer's own looks at most. */
const ownGapMsMax = 2_500;

export interface Peer {
  id: string;
  /** Its counter, as the database has it. */
  looks: string;
}

export class Peers {
  #sights = new Map<string, { looks: string; since: number }>();
  #sawAt = Number.NEGATIVE_INFINITY;

  /**
   * @param askedAt milliseconds, before the database was asked
   * @param answeredAt milliseconds, after it has answered
   * @returns those that have been silent for too long
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
