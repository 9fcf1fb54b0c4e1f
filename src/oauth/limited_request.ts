/**
 * Reports requests over a rate limit to the connection trace. They are refused before their client is authenticated, so anyone can cause
 * such a step with the public id of an app: once a minute for each address and app, and within the limits of all such steps. A refusal
 * causes no query: an app that is not cached counts as unknown.
 */

import type { ClientCache } from '../clients/client_cache.ts';
import { isOwnClient } from '../clients/own_clients.ts';
import { unknownClientId } from '../connections/redaction.ts';
import type { StepName } from '../connections/step.ts';
import type { ConnectionTraces } from '../connections/traces.ts';
import type { Problem } from '../http/problem.ts';

/** The error code of the response. */
export const limitedError = 'temporarily_unavailable';

export interface LimitedRequest {
  name: StepName;
  requestId: string;
  address: string;
  /** As the request names it. */
  clientId: unknown;
  /** The limit, with a sentence for its caller. */
  problem: Problem;
  /** What counts, and what to do. */
  remedy: string;
  /** Of the attempt that the request belongs to. */
  keys: () => string[];
}

/** What to do if the limit is one of an address. */
export const addressRemedy =
  'If many users share the address, check that NUNCIO_TRUST_PROXY names the proxy in front of this server.';

export function reportLimited(
  traces: ConnectionTraces,
  clients: ClientCache,
  { name, requestId, address, clientId: sent, problem, remedy, keys }: LimitedRequest,
): void {
  const isKnown = typeof sent === 'string' && clients.isCached(sent);
  if (isKnown && isOwnClient(sent)) return;
  traces.addLimited(address, `${name} ${isKnown ? sent : ''}`, () => ({
    name,
    outcome: 'refused',
    error: limitedError,
    explanation: `${problem.message} ${remedy} Wait for the seconds in Retry-After before the next request.`,
    requestId,
    clientId: isKnown ? sent : unknownClientId(sent),
    isKnown,
    isAuthenticated: false,
    address,
    keys: keys(),
  }));
}
