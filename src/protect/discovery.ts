/**
 * What the issuer says of itself (RFC 8414): asked for at the first need, kept for an hour.
 */

import { type FetchObject, IssuerUnavailable } from './bounded_fetch.ts';

export interface IssuerMetadata {
  readonly jwksUri: string;
  readonly tokenEndpoint: string;
  /** Null where the issuer offers none. */
  readonly introspectionEndpoint: string | null;
}

/** Milliseconds that the metadata are used, and that a failure is remembered instead of asking again. */
const keptMs = 3_600_000;
const failureKeptMs = 1_000;

/**
 * Checks the issuer's identifier: an origin or a URL with a path, https, or http on loopback.
 * @throws TypeError otherwise
 */
export function checkIssuer(issuer: string): void {
  const url = parseUrl(issuer);
  const isPlain = url !== undefined && url.search === '' && url.hash === '' && url.username === '';
  if (!isPlain || !/^https?:$/.test(url.protocol)) {
    throw new TypeError(`issuer is ${JSON.stringify(issuer)}: it may be the base URL of the Nuncio server`);
  }
  if (url.protocol === 'http:' && !isLoopback(url.hostname)) {
    throw new TypeError(`issuer is ${JSON.stringify(issuer)}: it may be http on loopback only`);
  }
}

/** @returns a function that gives the metadata, and throws IssuerUnavailable where there never were any */
export function createDiscovery(issuer: string, fetchObject: FetchObject): () => Promise<IssuerMetadata> {
  let kept: Promise<IssuerMetadata> | undefined;
  let keptUntil = 0;
  let lastGood: IssuerMetadata | undefined;

  async function ask(): Promise<IssuerMetadata> {
    try {
      lastGood = readMetadata(issuer, await fetchObject(metadataUrl(issuer)));
      keptUntil = performance.now() + keptMs;
      return lastGood;
    } catch (error) {
      keptUntil = performance.now() + failureKeptMs;
      // Where its endpoints are was no secret and has hardly changed.
      if (lastGood !== undefined) return lastGood;
      throw error;
    }
  }

  return function discover() {
    if (kept === undefined || performance.now() >= keptUntil) {
      // Whoever comes while the question is on its way waits for the same answer.
      keptUntil = Number.POSITIVE_INFINITY;
      kept = ask();
    }
    return kept;
  };
}

/** RFC 8414 section 3.1: the well-known part goes between host and path. */
function metadataUrl(issuer: string): string {
  const { origin, pathname } = new URL(issuer);
  return `${origin}/.well-known/oauth-authorization-server${pathname === '/' ? '' : pathname}`;
}

function readMetadata(issuer: string, document: Record<string, unknown>): IssuerMetadata {
  // RFC 8414 section 3.3: the same string, or it is somebody else's document.
  if (document.issuer !== issuer) {
    throw new IssuerUnavailable(`the issuer calls itself ${JSON.stringify(document.issuer)}, not ${issuer}`);
  }
  const endpoint = (name: string): string | null => {
    const value = document[name];
    if (value === undefined) return null;
    // Secrets and trust go to these: they stay with the issuer.
    if (typeof value !== 'string' || parseUrl(value)?.origin !== new URL(issuer).origin) {
      throw new IssuerUnavailable(`the issuer's ${name} is not a URL of its own origin`);
    }
    return value;
  };
  const jwksUri = endpoint('jwks_uri');
  const tokenEndpoint = endpoint('token_endpoint');
  if (jwksUri === null || tokenEndpoint === null) {
    throw new IssuerUnavailable('the issuer names no jwks_uri or no token_endpoint');
  }
  return { jwksUri, tokenEndpoint, introspectionEndpoint: endpoint('introspection_endpoint') };
}

/** The WHATWG URL of a text, or undefined. */
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
