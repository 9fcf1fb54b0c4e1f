/** Who sends requests. */

import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';

export interface Caller {
  /** Account, client or network. */
  owner: string;
  /** The app of the account, or the site of the network; null if there is none. */
  group: string | null;
}

/** Maximum length of a remembered header in characters. Longer ones are looked up each time, so connections keep little memory. */
const authorizationLengthMax = 2_048;

/**
 * A connection usually repeats its token, and to compare the header costs less than to look the token up.
 * @param identify the caller of an `Authorization` header whose token was verified before; undefined for others
 */
export function rememberCallers(
  identify: (authorization: string) => Caller | undefined,
): (request: IncomingMessage) => Caller | undefined {
  const callers = new WeakMap<Socket, { authorization: string; caller: Caller }>();
  return ({ headers: { authorization }, socket }) => {
    if (authorization === undefined) return undefined;
    const last = callers.get(socket);
    if (last?.authorization === authorization) return last.caller;
    const caller = identify(authorization);
    if (caller !== undefined && authorization.length <= authorizationLengthMax) {
      callers.set(socket, { authorization, caller });
    }
    return caller;
  };
}
