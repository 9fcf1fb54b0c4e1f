/**
 * Outgoing requests of oidc-provider, for example to a client's `jwks_uri` (RFC 7523, RFC 9101).
 */

import { type Configuration, Provider } from 'oidc-provider';
import { fetchBytesMax, type GuardedFetch } from '../egress/fetch.ts';
import { OriginTurns } from '../egress/origin_turns.ts';
import { networksOf } from '../http/network.ts';
import { waitElsewhere } from '../http/overload/request_place.ts';

/**
 * Requests to one origin at once, of which networks have shares, and how many of one network may wait. Anyone can name a path there as that of
 * an app.
 */
export const outgoingMax = 16;
const waitingMax = 20;

/** Makes oidc-provider fetch through the guarded connector, because third parties choose every URL that it fetches. */
export function outgoingRequests(
  fetch: GuardedFetch,
): Pick<Configuration, 'fetch' | 'fetchResponseBodyLimits'> {
  const turns = new OriginTurns(outgoingMax, waitingMax);
  return {
    fetch: (input, init = {}) => {
      const { method, headers, body } = init;
      const request = {
        ...(method === undefined ? {} : { method }),
        ...(headers === undefined ? {} : { headers }),
        body,
      };
      const url = String(input);
      return waitElsewhere(() => turns.run(url, requester(), () => fetch(url, request)));
    },
    fetchResponseBodyLimits: { jwks_uri: fetchBytesMax, sector_identifier_uri: fetchBytesMax },
  };
}

/** The network of the request that causes this one; none for work of the server. */
function requester(): string {
  const { ctx } = Provider;
  if (ctx === undefined) return '';
  const { near, wide } = networksOf(ctx.ip);
  return wide ?? near;
}
