/**
 * The principal: who a request speaks for, made by the bearer guard alone and handed to everything that serves
 * a protected resource.
 */

import type { FastifyRequest } from 'fastify';

declare const checked: unique symbol;

/** Only the guard can make one: the brand keeps an unchecked object from passing for a principal. */
export interface Principal {
  readonly [checked]: true;
  /** The user, or null where the client speaks for itself (client credentials). */
  readonly accountId: string | null;
  readonly clientId: string;
  /** The grant that the token was issued by, or null for client credentials. */
  readonly grantId: string | null;
  readonly scopes: ReadonlySet<string>;
  /** The access token's `jti`. */
  readonly tokenId: string;
}

/**
 * Checks the request's access token, and that it has all the scopes named. Asked again for the same request, once its
 * body has come, it says whether the token is still good: whoever sends slowly keeps nothing open by that.
 * @throws Problem 401 or 403 with `WWW-Authenticate` (RFC 6750 section 3)
 */
export type Guard = (request: FastifyRequest, ...scopes: string[]) => Promise<Principal>;
