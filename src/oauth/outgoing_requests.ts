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
const outgoingMax = 16;
const waitingMax = 20;

/** Requests to the servers of apps, with their turns. */
export class OutgoingRequests {
  readonly #fetch: GuardedFetch;
  readonly #turns = new OriginTurns(outgoingMax, waitingMax);

  constructor(fetch: GuardedFetch) {
    this.#fetch = fetch;
  }

  /** Makes oidc-provider fetch through the guarded connector, because third parties choose every URL that it fetches. */
  get configuration(): Pick<Configuration, 'fetch' | 'fetchResponseBodyLimits'> {
    return {
      fetch: (input, init = {}) => {
        const { method, headers, body } = init;
        const url = String(input);
        const request = {
          ...(method === undefined ? {} : { method }),
          ...(headers === undefined ? {} : { headers }),
          body,
          // Of the server's own requests, such as notices, each server has a share of its own.
          tenant: requester() || new URL(url).origin,
        };
        return waitElsewhere(() => this.#turns.run(url, request.tenant, () => this.#fetch(url, request)));
      },
      fetchResponseBodyLimits: { jwks_uri: fetchBytesMax, sector_identifier_uri: fetchBytesMax },
    };
  }

  /**
   * The current request is about to wait for the response of a URL. oidc-provider has requests at the same time share one fetch, which must not
   * wait for the share of whoever happened to begin it.
   */
  join(url: string): void {
    this.#turns.join(url, requester());
  }
}

/** The network of the request that causes this one; none for work of the server. */
function requester(): string {
  const { ctx } = Provider;
  if (ctx === undefined) return '';
  const { near, wide } = networksOf(ctx.ip);
  return wide ?? near;
}
