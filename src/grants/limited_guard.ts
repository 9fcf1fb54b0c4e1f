/**
 * The guard with a rate limit. Requests with a valid token are counted for the token's grant or client. Those without one are refused whatever their number: a 401 costs
 * no more than a 429, and agents and apps at an address that others share need it to begin. An application of the operator sends requests for all of its users, so it has ten times the limit, and
 * those that nobody else may send do not count: its users and visitors cause them one by one, and one of them could otherwise use up the limit, so that nobody could sign in, have
 * events or withdraw a grant.
 */

import type { FastifyInstance, FastifyRequest } from 'fastify';
import { type RateLimiter, type RateState, rateHeaders } from '../http/rate_limit.ts';
import type { Guard, Principal } from './principal.ts';
import { operatorScopes } from './scopes.ts';

/** As at the token endpoint. */
const applicationFactor = 10;

const states = new WeakMap<FastifyRequest, RateState>();

export function limitGuard(guard: Guard, limiter: RateLimiter): Guard {
  const counted = new WeakSet<FastifyRequest>();
  return async (request, ...scopes) => {
    // A request is counted once, however often the guard is called for it.
    const isCounted = counted.has(request);
    const principal = await guard(request, ...scopes);
    const isForApplications = request.routeOptions.config.operation?.admission.audience === 'machine';
    if (!isCounted && !isForApplications) {
      note(request, limiter.count(principalKey(principal), factorOf(principal)));
    }
    counted.add(request);
    return principal;
  };
}

/** One key for all tokens of a grant. Client credentials are counted for the client. */
function principalKey({ grantId, clientId }: Principal): string {
  return grantId === null ? `client:${clientId}` : `grant:${grantId}`;
}

function factorOf({ grantId, scopes }: Principal): number {
  return grantId === null && operatorScopes.some((scope) => scopes.has(scope)) ? applicationFactor : 1;
}

function note(request: FastifyRequest, state: RateState | undefined): void {
  if (state !== undefined) states.set(request, state);
}

/**
 * Checks the token and its scopes before the body is read, so that callers without access cannot make the server read bodies, of which
 * those of publishers have 16 MiB. The handler calls the guard again for anything that changed in between.
 */
export function guardBodies(api: FastifyInstance, guard: Guard): void {
  api.addHook('onRequest', async (request) => {
    if (bodiless.has(request.method)) return;
    await guard(request, ...(request.routeOptions.config.operation?.admission.scopes ?? []));
  });
}

const bodiless: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS']);

/** Adds the rate limit headers to each response. A response of another limit has those of that limit. */
export function showRateLimit(api: FastifyInstance): void {
  api.addHook('onSend', (request, reply, _payload, done) => {
    const state = states.get(request);
    if (state !== undefined && !reply.hasHeader('ratelimit-limit')) reply.headers(rateHeaders(state));
    done();
  });
}
