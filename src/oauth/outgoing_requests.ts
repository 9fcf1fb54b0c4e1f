/**
 * Outgoing requests of oidc-provider, for example to a client's `jwks_uri` (RFC 7523, RFC 9101).
 */

import type { Configuration } from 'oidc-provider';
import { fetchBytesMax, type GuardedFetch } from '../egress/fetch.ts';
import { waitElsewhere } from '../http/overload/request_place.ts';

/** Makes oidc-provider fetch through the guarded connector, because third parties choose every URL that it fetches. */
export function outgoingRequests(
  fetch: GuardedFetch,
): Pick<Configuration, 'fetch' | 'fetchResponseBodyLimits'> {
  return {
    fetch: (input, init = {}) => {
      const { method, headers, body } = init;
      const request = {
        ...(method === undefined ? {} : { method }),
        ...(headers === undefined ? {} : { headers }),
        body,
      };
      return waitElsewhere(() => fetch(String(input), request));
    },
    fetchResponseBodyLimits: { jwks_uri: fetchBytesMax, sector_identifier_uri: fetchBytesMax },
  };
}
