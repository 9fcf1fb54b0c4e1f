/** The scope that a method needs, beyond the token that the endpoint has just accepted. */

import type { FastifyRequest } from 'fastify';
import type { Guard, Principal } from '../grants/principal.ts';

/**
 * Asks the guard only for its refusal: the principal is its answer of a moment ago.
 * @throws Problem 403
 */
export async function requireScope(
  guard: Guard,
  request: FastifyRequest,
  principal: Principal,
  scope: string,
): Promise<void> {
  if (!principal.scopes.has(scope)) await guard(request, scope);
}
