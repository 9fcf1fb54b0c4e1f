/**
 * Proofs that were used: each opens one request. This store is of one process; several processes that serve one
 * API share one of their own making (a table with a unique key, Redis' SET NX).
 */

/** Proofs remembered at most, some 150 bytes each: over 800 a second for two minutes. */
const proofsMax = 100_000;

export interface ReplayStore {
  /**
   * Uses an id up.
   * @param until milliseconds since the epoch after which it may be forgotten
   * @returns true for the first time, false for every other; in one step, or two requests at once both pass
   * @throws Error when it cannot tell: the request is answered with 503
   */
  use(id: string, until: number): boolean | Promise<boolean>;
}

/** @param max entries at most; a full store throws, so that nothing passes unseen */
export function createReplayStore(max: number = proofsMax): ReplayStore {
  // In the order of their ends, for each lives equally long: what is over stands in front.
  const untils = new Map<string, number>();
  return {
    use(id, until) {
      const now = Date.now();
      for (const [old, end] of untils) {
        if (end > now) break;
        untils.delete(old);
      }
      if (untils.has(id)) return false;
      if (untils.size >= max) throw new Error(`there are ${max} DPoP proofs to remember already`);
      untils.set(id, until);
      return true;
    },
  };
}
