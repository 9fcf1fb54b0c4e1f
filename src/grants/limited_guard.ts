/**
 * The guard with the rate limit before the door: good tokens are counted by the grant or client that they belong to,
 * however many there are, everything else by the address that it comes from.
 */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { countAddress, type RateLimiter, type RateState, rateHeaders } from '../http/rate_limit.ts';
import type { Guard, Principal } from './principal.ts';

const states = new WeakMap<FastifyRequest, RateState>();

export function limitGuard(guard: Guard, limiter: RateLimiter): Guard {
  const counted = new WeakSet<FastifyRequest>();
  return async (request, ...scopes) => {
    // However often it is asked for one request.
    const isCounted = counted.has(request);
    const principal = await guard(request, ...scopes).catch((error: unknown) => {
      if (!isCounted) note(request, countAddress(limiter, '', request.ip));
      throw error;
    });
    if (!isCounted) note(request, limiter.count(principalKey(principal)));
    counted.add(request);
    return principal;
  };
}

/** A user's grant of an app, whatever tokens it has; for client credentials the client. */
function principalKey({ grantId, clientId }: Principal): string {
  return grantId === null ? `client:${clientId}` : `grant:${grantId}`;
}

function note(request: FastifyRequest, state: RateState | undefined): void {
  if (state !== undefined) states.set(request, state);
}

/**
 * Whoever may not come in is not listened to: where a body may come, the token is looked at before it is read. For the
 * scopes, and for what has happened meanwhile, the handler asks the guard again.
 */
export function guardBodies(api: FastifyInstance, guard: Guard): void {
  api.addHook('onRequest', async (request) => {
    if (!bodiless.has(request.method)) await guard(request);
  });
}

const bodiless: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS']);

/** Tells each answer's reader how much is left. */
export function showRateLimit(api: FastifyInstance): void {
  api.addHook('onSend', (request, reply, _payload, done) => {
    const state = states.get(request);
    if (state !== undefined) reply.headers(rateHeaders(state));
    done();
  });
}
