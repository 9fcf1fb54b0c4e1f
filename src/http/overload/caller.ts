/** Who sends requests. */

import type { IncomingMessage } from 'node:http';
import { LRUCache } from 'lru-cache';

export interface Caller {
  /** Account, client or network. */
  owner: string;
  /** The app of the account, or the site of the network; null if there is none. */
  group: string | null;
}

/** All remembered headers in characters, and one of them. Longer ones are looked up each time. */
const authorizationsLengthMax = 2_097_152;
const authorizationLengthMax = 2_048;

/**
 * Remembers the callers of headers, because comparing text costs less than the digest with which tokens are looked up.
 * @param identify the caller of an `Authorization` header whose token was verified before; undefined for others
 */
export function rememberCallers(
  identify: (authorization: string) => Caller | undefined,
): (request: IncomingMessage) => Caller | undefined {
  const callers = new LRUCache<string, Caller>({
    maxSize: authorizationsLengthMax,
    maxEntrySize: authorizationLengthMax,
    sizeCalculation: (_caller, authorization) => authorization.length,
  });
  return ({ headers: { authorization } }) => {
    if (authorization === undefined) return undefined;
    const known = callers.get(authorization);
    if (known !== undefined) return known;
    const caller = identify(authorization);
    if (caller !== undefined) callers.set(authorization, caller);
    return caller;
  };
}
