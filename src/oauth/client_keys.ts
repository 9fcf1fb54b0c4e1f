/**
 * Clients that prove themselves by keys (RFC 7523, RFC 9101): registered by value or fetched from the client's own
 * URL, by the guarded connector.
 */

import type { Configuration } from 'oidc-provider';
import { fetchBytesMax, type GuardedFetch } from '../egress/fetch.ts';

/** The engine's way out: whatever it fetches is somebody else's address. */
export function outgoingRequests(
  fetch: GuardedFetch,
): Pick<Configuration, 'fetch' | 'fetchResponseBodyLimits'> {
  return {
    fetch: (input, init = {}) => {
      const { method, headers, body } = init;
      return fetch(String(input), {
        ...(method === undefined ? {} : { method }),
        ...(headers === undefined ? {} : { headers }),
        body,
      });
    },
    fetchResponseBodyLimits: { jwks_uri: fetchBytesMax, sector_identifier_uri: fetchBytesMax },
  };
}
