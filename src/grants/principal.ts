/**
 * The principal: who a request speaks for. Only the bearer guard creates one, and every protected route receives it.
 */

import type { FastifyRequest } from 'fastify';
import type { Principal } from './checked_principal.ts';

export type { Principal } from './checked_principal.ts';

/**
 * Checks the request's access token and that it has all the given scopes. Handlers call it again after they have read
 * the body: the token may have been withdrawn during a slow upload.
 * @throws Problem 401 or 403 with `WWW-Authenticate` (RFC 6750 section 3)
 */
export type Guard = (request: FastifyRequest, ...scopes: string[]) => Promise<Principal>;
