/**
 * Introspection (RFC 7662): asks the issuer whether a token is active. Responses are cached for some seconds from the time
 * of the request, so that a withdrawal takes effect within that time.
 */

import { LRUCache } from 'lru-cache';
import { upTo } from '../shared/entries.ts';
import { isOpaqueToken } from '../shared/opaque_token.ts';
import { isFree } from '../shared/share.ts';
import { TokenBucket } from '../shared/token_bucket.ts';
import { type FetchObject, IssuerUnavailable } from './bounded_fetch.ts';
import { clientAuthorization } from './client_authentication.ts';
import type { IssuerMetadata } from './discovery.ts';

/** Maximum number of active tokens and of others that are remembered. */
const rememberedMax = 10_000;
/** Milliseconds that a token counts as inactive after the issuer said so. */
const inactiveMs = 30_000;
/** Maximum requests in flight, of which the holders of tokens have shares. Further ones fail, so that callers cannot overload the issuer. */
const inFlightMax = 100;
/** Of these, for unknown tokens. The others are free for tokens that the issuer is known to have issued. */
const unknownInFlightMax = 50;
/**
 * How many introspections may turn out to be of no active token: per second, and at once after a quiet time. Strangers use this up
 * instead of the rate limit that the issuer gives this API (6,000 a minute by default).
 */
const allowancePerSecond = 10;
const allowanceBurst = 300;

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

/**
 * @param holder the account of a token whose signature by the issuer was verified, or its client; null if none was
 * @throws IssuerUnavailable if the issuer does not respond, or may not be asked
 */
export type Introspect = (token: string, digest: string, holder: string | null) => Promise<Introspected>;

interface CachedResponse {
  response: Promise<Introspected>;
  requestedAt: number;
  /** The subject of the token, or its client; null until the issuer has said whose it is. */
  holder: string | null;
}

/**
 * Anyone can send an opaque token, and only the issuer knows whether it is one of its tokens. So strangers have limits of
 * their own: a token without the issuer's form is refused without a request, an inactive one is remembered, and unknown ones
 * have an allowance and half of the requests in flight. A token that was active before, or that has the
 * issuer's signature, needs none of that: its holder has a share of the requests in flight, because one can have thousands of tokens.
 */
export function createIntrospection(options: IntrospectionOptions): Introspect {
  const cacheMs = options.cacheSeconds * 1_000;
  /** The last response for each token that was active. An old one still says that the issuer knows the token. */
  const active = new LRUCache<string, CachedResponse>(upTo(rememberedMax));
  const inactive = new LRUCache<string, true>({ ...upTo(rememberedMax), ttl: inactiveMs });
  const pending = new Map<string, CachedResponse>();
  const allowance = new TokenBucket(allowancePerSecond, allowanceBurst, performance.now());
  let inFlight = 0;
  let unknownInFlight = 0;
  const inFlightOf = new Map<string, number>();

  return async function introspect(token, digest, signedHolder) {
    const known = active.get(digest);
    const holder = signedHolder ?? known?.holder ?? null;
    if (holder === null && !(await hasForm(token, options))) return undefined;
    if (inactive.has(digest)) return undefined;
    const last = pending.get(digest) ?? active.get(digest);
    if (last !== undefined && performance.now() - last.requestedAt < cacheMs) return last.response;
    return request(token, digest, holder);
  };

  function request(token: string, digest: string, holder: string | null): Promise<Introspected> {
    if (holder === null) admitUnknown();
    else if (!isFree(inFlightMax, inFlight, inFlightOf.get(holder) ?? 0)) throw tooMany();
    change(holder, 1);
    const cached: CachedResponse = { requestedAt: performance.now(), response: send(), holder };
    pending.set(digest, cached);
    return cached.response;

    async function send(): Promise<Introspected> {
      try {
        const response = await sendRequest(token, options);
        if (response === undefined) {
          active.delete(digest);
          inactive.set(digest, true);
        } else {
          cached.holder ??= String(response.sub ?? response.client_id);
          active.set(digest, cached);
          if (holder === null) allowance.giveBack();
        }
        return response;
      } finally {
        change(holder, -1);
        // A failure is returned to the callers that waited for it, but is not cached.
        if (pending.get(digest) === cached) pending.delete(digest);
      }
    }
  }

  function admitUnknown(): void {
    if (inFlight >= inFlightMax || unknownInFlight >= unknownInFlightMax) throw tooMany();
    if (allowance.nextAt(performance.now()) !== null)
      throw new IssuerUnavailable('too many opaque tokens were unknown to the issuer');
    allowance.take();
  }

  function tooMany(): IssuerUnavailable {
    return new IssuerUnavailable(`${inFlight} introspection requests are already in flight`);
  }

  /** Counts a request in flight that begins or ends. */
  function change(holder: string | null, by: 1 | -1): void {
    inFlight += by;
    if (holder === null) {
      unknownInFlight += by;
      return;
    }
    const own = (inFlightOf.get(holder) ?? 0) + by;
    if (own === 0) inFlightOf.delete(holder);
    else inFlightOf.set(holder, own);
  }
}

async function hasForm(token: string, { discover }: IntrospectionOptions): Promise<boolean> {
  const { opaqueTokenPrefix } = await discover();
  return opaqueTokenPrefix === null || isOpaqueToken(token, opaqueTokenPrefix);
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
