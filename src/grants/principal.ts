/**
 * The principal: who a request speaks for. Only the bearer guard creates one, and every protected route receives it.
 */

import type { FastifyRequest } from 'fastify';

declare const checked: unique symbol;

/** The brand ensures that only the guard can create a principal. */
export interface Principal {
  readonly [checked]: true;
  /** The user; null if the client speaks for itself (client credentials). */
  readonly accountId: string | null;
  readonly clientId: string;
  /** The grant that issued the token; null for client credentials. */
  readonly grantId: string | null;
  readonly scopes: ReadonlySet<string>;
  /** The access token's `jti`. */
  readonly tokenId: string;
}

/**
 * Checks the request's access token and that it has all the given scopes. Handlers call it again after they have read
 * the body: the token may have been withdrawn during a slow upload.
 * @throws Problem 401 or 403 with `WWW-Authenticate` (RFC 6750 section 3)
 */
export type Guard = (request: FastifyRequest, ...scopes: string[]) => Promise<Principal>;
