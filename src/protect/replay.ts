/**
 * Used DPoP proofs: each is accepted once. The default store is local to one process. Processes that serve the same API
 * need a shared store, for example a table with a unique key, or SET NX of Redis.
 */

import { isFree } from '../shared/share.ts';

/** Maximum number of stored proofs, about 150 bytes each: over 800 per second for two minutes. */
const proofsMax = 100_000;

export interface ReplayStore {
  /**
   * Marks an id as used. Must be atomic, so that of two concurrent calls only one returns true.
   * @param until milliseconds since the epoch, after which the id may be deleted
   * @param holder the account, or the client that acts for itself, whose proof it is; a store with a limit can share it out
   * @returns true for the first use of the id, false for every other
   * @throws Error if the store cannot decide; the response is then 503
   */
  use(id: string, until: number, holder: string): boolean | Promise<boolean>;
}

/**
 * @param max maximum number of entries. A full store throws, so that no replay passes. Holders have shares of it (shared/share.ts), so that
 *   few accounts do not keep the others out.
 */
export function createReplayStore(max: number = proofsMax): ReplayStore {
  // Sorted by expiry, because all entries have the same lifetime: expired ones come first.
  const proofs = new Map<string, { expiry: number; holder: string }>();
  const counts = new Map<string, number>();
  return {
    use(id, until, holder) {
      const now = Date.now();
      for (const [oldId, old] of proofs) {
        if (old.expiry > now) break;
        proofs.delete(oldId);
        const left = (counts.get(old.holder) ?? 0) - 1;
        if (left > 0) counts.set(old.holder, left);
        else counts.delete(old.holder);
      }
      if (proofs.has(id)) return false;
      const held = counts.get(holder) ?? 0;
      if (proofs.size >= max) throw new Error(`the store is full: ${max} DPoP proofs`);
      if (!isFree(max, proofs.size, held))
        throw new Error(`the store is full for ${holder}: ${held} DPoP proofs`);
      proofs.set(id, { expiry: until, holder });
      counts.set(holder, held + 1);
      return true;
    },
  };
}
