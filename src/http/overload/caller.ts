/** Who sends requests. */

import type { IncomingMessage } from 'node:http';
import { LRUCache } from 'lru-cache';
import type { GroupMember } from '../../shared/owner_turns.ts';
import { type TenantParts, tenantName } from '../../shared/tenant.ts';
import { networksOf } from '../network.ts';

/** The owner is a tenant (shared/tenant.ts) or a network, the part an app of the account, and the group that app with all its accounts, or the site. */
export type Caller = GroupMember;

/** All remembered headers in characters, and one of them. Tokens in longer ones are looked up each time. */
const authorizationsLengthMax = 2_097_152;
const authorizationLengthMax = 2_048;

/**
 * Remembers the callers of tokens, because comparing text costs less than the digest with which tokens are looked up.
 * @param identify the caller of a token that was verified before; undefined for others
 */
export function rememberCallers(
  identify: (token: string) => Caller | undefined,
): (request: IncomingMessage) => Caller | undefined {
  const callers = new LRUCache<string, Caller>({
    maxSize: authorizationsLengthMax,
    maxEntrySize: authorizationLengthMax,
  });
  let last: { authorization: string; caller: Caller } | undefined;
  return ({ headers: { authorization } }) => {
    if (authorization === undefined) return undefined;
    // The caller of a request is asked for several times. To compare one text costs less than the hash of a long one.
    if (last?.authorization === authorization) return last.caller;
    // The last word, whatever the scheme: a caller that varies the rest has one entry.
    const token = authorization.slice(authorization.lastIndexOf(' ') + 1);
    let caller = callers.get(token);
    if (caller === undefined) {
      caller = identify(token);
      // A part of a string keeps the whole one in memory.
      if (caller !== undefined) callers.set(token, caller, { size: authorization.length });
    }
    if (caller !== undefined && authorization.length <= authorizationLengthMax)
      last = { authorization, caller };
    return caller;
  };
}

/** The caller of a request or connection of which nothing else is known. */
export function callerOfAddress(address: string): Caller {
  const { near, wide } = networksOf(address);
  return { owner: `address:${near}`, part: null, group: wide === null ? null : `site:${wide}` };
}

/** The caller of a token. Those of an account for apps are its parts, and so are apps that it created of what these have together. */
export function callerOfToken({
  accountId,
  creatorId,
  clientId,
}: TenantParts & { clientId: string }): Caller {
  if (accountId !== null)
    return { owner: accountId, part: `${accountId} ${clientId}`, group: `app:${clientId}` };
  const owner = tenantName({ accountId, creatorId, clientId });
  return { owner, part: creatorId === null ? null : `client:${clientId}`, group: null };
}
