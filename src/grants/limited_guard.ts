/**
 * The guard with the rate limit before the door: good tokens are counted each for itself, everything else by the
 * address that it comes from.
 */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { addressKey, type RateLimiter, type RateState, rateHeaders } from '../http/rate_limit.ts';
import type { Guard } from './principal.ts';

const states = new WeakMap<FastifyRequest, RateState>();

export function limitGuard(guard: Guard, limiter: RateLimiter): Guard {
  return async (request, ...scopes) => {
    const principal = await guard(request, ...scopes).catch((error: unknown) => {
      note(request, limiter.count(addressKey(request.ip)));
      throw error;
    });
    note(request, limiter.count(`token:${principal.tokenId}`));
    return principal;
  };
}

function note(request: FastifyRequest, state: RateState | undefined): void {
  if (state !== undefined) states.set(request, state);
}

/** Tells each answer's reader how much is left. */
export function showRateLimit(api: FastifyInstance): void {
  api.addHook('onSend', (request, reply, _payload, done) => {
    const state = states.get(request);
    if (state !== undefined) reply.headers(rateHeaders(state));
    done();
  });
}
