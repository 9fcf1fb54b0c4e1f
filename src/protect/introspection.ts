/**
 * Introspection (RFC 7662): asks the issuer whether a token is active. Responses are cached for some seconds from the time
 * of the request, so that a withdrawal takes effect within that time.
 */

import { LRUCache } from 'lru-cache';
import { type FetchObject, IssuerUnavailable } from './bounded_fetch.ts';
import { clientAuthorization } from './client_authentication.ts';
import type { IssuerMetadata } from './discovery.ts';

/** Maximum number of cached responses. */
const cachedMax = 10_000;
/** Maximum requests in flight. Further ones fail, so that one caller cannot overload the issuer. */
const inFlightMax = 100;

export interface IntrospectionOptions {
  discover: () => Promise<IssuerMetadata>;
  fetchObject: FetchObject;
  clientId: string;
  clientSecret: string;
  /** Seconds that a response is cached; 0 disables the cache. */
  cacheSeconds: number;
}

/** The introspection response for an active access token; undefined for any other token. */
export type Introspected = Readonly<Record<string, unknown>> | undefined;

export type Introspect = (token: string, digest: string) => Promise<Introspected>;

/** @returns the function, which throws IssuerUnavailable if the issuer does not respond */
export function createIntrospection(options: IntrospectionOptions): Introspect {
  const cacheMs = options.cacheSeconds * 1_000;
  const cache = new LRUCache<string, { response: Promise<Introspected>; requestedAt: number }>({
    max: cachedMax,
  });
  let inFlight = 0;

  return async function introspect(token, digest) {
    const cached = cache.get(digest);
    if (cached !== undefined && performance.now() - cached.requestedAt < cacheMs) return cached.response;
    if (inFlight >= inFlightMax) {
      throw new IssuerUnavailable(`${inFlightMax} introspection requests are already in flight`);
    }
    inFlight += 1;
    const response = sendRequest(token, options).finally(() => {
      inFlight -= 1;
    });
    if (cacheMs > 0) {
      const entry = { response, requestedAt: performance.now() };
      cache.set(digest, entry);
      // A failure is returned to the callers that waited for it, but is not cached.
      response.catch(() => {
        if (cache.get(digest) === entry) cache.delete(digest);
      });
    }
    return response;
  };
}

async function sendRequest(token: string, options: IntrospectionOptions): Promise<Introspected> {
  const { introspectionEndpoint } = await options.discover();
  if (introspectionEndpoint === null) {
    throw new IssuerUnavailable('the metadata of the issuer contains no introspection_endpoint');
  }
  const response = await options.fetchObject(introspectionEndpoint, {
    method: 'POST',
    headers: {
      accept: 'application/json',
      authorization: clientAuthorization(options.clientId, options.clientSecret),
    },
    body: new URLSearchParams({ token, token_type_hint: 'access_token' }),
  });
  if (typeof response.active !== 'boolean') {
    throw new IssuerUnavailable('the introspection response does not contain "active"');
  }
  // RFC 7662 section 2.2 allows responses for refresh tokens too. Only access tokens have a `token_type`.
  const isAccessToken = /^(bearer|dpop)$/i.test(String(response.token_type));
  return response.active && isAccessToken ? response : undefined;
}
