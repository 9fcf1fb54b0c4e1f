/**
 * Used DPoP proofs: each is accepted once. The default store is local to one process. Processes that serve the same API
 * need a shared store, for example a table with a unique key, or SET NX of Redis.
 */

/** Maximum number of stored proofs, about 150 bytes each: over 800 per second for two minutes. */
const proofsMax = 100_000;

export interface ReplayStore {
  /**
   * Marks an id as used. Must be atomic, so that of two concurrent calls only one returns true.
   * @param until milliseconds since the epoch, after which the id may be deleted
   * @returns true for the first use of the id, false for every other
   * @throws Error if the store cannot decide; the response is then 503
   */
  use(id: string, until: number): boolean | Promise<boolean>;
}

/** @param max maximum number of entries; a full store throws, so that no replay passes */
export function createReplayStore(max: number = proofsMax): ReplayStore {
  // Sorted by expiry, because all entries have the same lifetime: expired ones come first.
  const expiries = new Map<string, number>();
  return {
    use(id, until) {
      const now = Date.now();
      for (const [oldId, expiry] of expiries) {
        if (expiry > now) break;
        expiries.delete(oldId);
      }
      if (expiries.has(id)) return false;
      if (expiries.size >= max) throw new Error(`the store is full: ${max} DPoP proofs`);
      expiries.set(id, until);
      return true;
    },
  };
}
