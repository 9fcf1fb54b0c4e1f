/**
 * Outgoing requests of oidc-provider, for example to a client's `jwks_uri` (RFC 7523, RFC 9101).
 */

import { type Configuration, Provider } from 'oidc-provider';
import { fetchBytesMax, type GuardedFetch } from '../egress/fetch.ts';
import { OriginTurns } from '../egress/origin_turns.ts';
import { SharedFetch } from '../egress/shared_fetch.ts';
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
  readonly #turns = new OriginTurns(outgoingMax, waitingMax);
  readonly #send: GuardedFetch;
  readonly #shared: SharedFetch;

  constructor(fetch: GuardedFetch) {
    this.#send = (url, { tenant = '', ...request } = {}) =>
      this.#turns.run(url, tenant, () => fetch(url, { ...request, tenant }), request.signal);
    this.#shared = new SharedFetch(this.#send);
  }

  /** Makes oidc-provider fetch through the guarded connector, because third parties choose every URL that it fetches. */
  get configuration(): Pick<Configuration, 'fetch' | 'fetchResponseBodyLimits'> {
    return {
      fetch: (input, init = {}) => {
        const { method = 'GET', headers, body } = init;
        const { href, origin } = new URL(String(input));
        const request = {
          ...(headers === undefined ? {} : { headers }),
          tenant: requester() || origin,
        };
        return waitElsewhere(() =>
          method === 'GET' ? this.#shared.get(href, request) : this.#send(href, { ...request, method, body }),
        );
      },
      fetchResponseBodyLimits: { jwks_uri: fetchBytesMax, sector_identifier_uri: fetchBytesMax },
    };
  }

  /**
   * The current request is about to wait for the response of a URL. oidc-provider has requests at the same time share one fetch, which must not
   * wait for the turns of whoever happened to begin it.
   */
  join(url: string): void {
    const { href, origin } = new URL(url);
    this.#shared.join(href, requester() || origin);
  }
}

/** The network of the request that causes this one; none for work of the server, such as notices, of which each server has a share of its own. */
function requester(): string {
  const { ctx } = Provider;
  if (ctx === undefined) return '';
  const { near, wide } = networksOf(ctx.ip);
  return wide ?? near;
}
