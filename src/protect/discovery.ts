/**
 * Metadata of the issuer (RFC 8414). Requested on first use and cached for an hour.
 */

import { type FetchObject, IssuerUnavailable } from './bounded_fetch.ts';

export interface IssuerMetadata {
  readonly jwksUri: string;
  readonly tokenEndpoint: string;
  /** Null if the issuer has none. */
  readonly introspectionEndpoint: string | null;
  /** What opaque access tokens begin with; null if they have no form that can be checked (older servers). */
  readonly opaqueTokenPrefix: string | null;
}

/** Milliseconds that metadata is cached, and that a failure is cached. */
const cacheMs = 3_600_000;
const failureCacheMs = 1_000;

/**
 * Validates the issuer: a URL without query and fragment, https, or http on loopback.
 * @throws TypeError if it is invalid
 */
export function checkIssuer(issuer: string): void {
  const url = parseUrl(issuer);
  const isPlain = url !== undefined && url.search === '' && url.hash === '' && url.username === '';
  if (!isPlain || !/^https?:$/.test(url.protocol)) {
    throw new TypeError(`issuer is ${JSON.stringify(issuer)}: it must be the base URL of the Nuncio server`);
  }
  if (url.protocol === 'http:' && !isLoopback(url.hostname)) {
    throw new TypeError(`issuer is ${JSON.stringify(issuer)}: http is allowed for loopback addresses only`);
  }
}

/** @returns a function that returns the metadata; it throws IssuerUnavailable if no request has ever succeeded */
export function createDiscovery(issuer: string, fetchObject: FetchObject): () => Promise<IssuerMetadata> {
  let cached: Promise<IssuerMetadata> | undefined;
  let cachedUntil = 0;
  let lastGood: IssuerMetadata | undefined;

  async function request(): Promise<IssuerMetadata> {
    try {
      lastGood = readMetadata(issuer, await fetchObject(metadataUrl(issuer)));
      cachedUntil = performance.now() + cacheMs;
      return lastGood;
    } catch (error) {
      cachedUntil = performance.now() + failureCacheMs;
      // Outdated metadata is better than none: endpoints rarely change.
      if (lastGood !== undefined) return lastGood;
      throw error;
    }
  }

  return function discover() {
    if (cached === undefined || performance.now() >= cachedUntil) {
      // Concurrent callers share the request.
      cachedUntil = Number.POSITIVE_INFINITY;
      cached = request();
    }
    return cached;
  };
}

/** RFC 8414 section 3.1: the well-known path is inserted between host and path. */
function metadataUrl(issuer: string): string {
  const { origin, pathname } = new URL(issuer);
  return `${origin}/.well-known/oauth-authorization-server${pathname === '/' ? '' : pathname}`;
}

function readMetadata(issuer: string, document: Record<string, unknown>): IssuerMetadata {
  // RFC 8414 section 3.3: the issuer must be identical.
  if (document.issuer !== issuer) {
    throw new IssuerUnavailable(
      `the issuer in the metadata is ${JSON.stringify(document.issuer)}, not ${issuer}`,
    );
  }
  const endpoint = (name: string): string | null => {
    const value = document[name];
    if (value === undefined) return null;
    // Secrets are sent to these endpoints and keys are trusted, so they must have the issuer's origin.
    if (typeof value !== 'string' || parseUrl(value)?.origin !== new URL(issuer).origin) {
      throw new IssuerUnavailable(`${name} of the issuer is not a URL with its own origin`);
    }
    return value;
  };
  const jwksUri = endpoint('jwks_uri');
  const tokenEndpoint = endpoint('token_endpoint');
  if (jwksUri === null || tokenEndpoint === null) {
    throw new IssuerUnavailable('the metadata of the issuer contains no jwks_uri or token_endpoint');
  }
  const prefix = document.opaque_access_token_prefix;
  return {
    jwksUri,
    tokenEndpoint,
    introspectionEndpoint: endpoint('introspection_endpoint'),
    opaqueTokenPrefix: typeof prefix === 'string' && prefix !== '' ? prefix : null,
  };
}

/** Parses a URL. @returns undefined if it is invalid */
export function parseUrl(text: string): URL | undefined {
  try {
    return new URL(text);
  } catch {
    return undefined;
  }
}

function isLoopback(hostname: string): boolean {
  return (
    hostname === 'localhost' ||
    hostname.endsWith('.localhost') ||
    hostname === '[::1]' ||
    /^127(\.\d+){3}$/.test(hostname)
  );
}
