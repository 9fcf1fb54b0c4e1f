/**
 * The protector: with it a server of one's own takes the access tokens of a Nuncio server, its data staying where it
 * is.
 */

import { type Adapters, createAdapters } from './adapters.ts';
import { createFetchObject, type Fetch } from './bounded_fetch.ts';
import { type Check, createCheck } from './check.ts';
import { checkIssuer, createDiscovery, parseUrl } from './discovery.ts';
import { createIntrospection, type Introspect } from './introspection.ts';
import { createJwtVerifier } from './jwt_access_token.ts';
import { createProofNonces } from './proof_nonces.ts';
import { createRefusals } from './refusal.ts';
import { createReplayStore, type ReplayStore } from './replay.ts';
import { createResourceMetadata, type ResourceMetadata } from './resource_metadata.ts';

export interface ProtectorOptions {
  /** The Nuncio server's base URL, as it stands in `NUNCIO_BASE_URL`. */
  issuer: string;
  /**
   * Your API's public URL: its origin, with a path where only what is below it is the API. Metadata and DPoP proofs
   * name it; what a request says of its own host is never believed.
   */
  url: string;
  /**
   * What the tokens' `aud` must name, one of them if several: usually `url`, declared in the issuer's `oauth.resources`
   * (RFC 8707). With the issuer itself, tokens for the issuer's own API and for every other API that takes those open
   * yours.
   */
  audience: string | readonly string[];
  /** A client of yours at the issuer, by which tokens are introspected: a withdrawal is known within `cacheSeconds`. */
  clientId?: string | undefined;
  clientSecret?: string | undefined;
  /** Seconds that an answer of introspection is used, 0 to 900; 0 asks for every request. Default: 10. */
  cacheSeconds?: number | undefined;
  /**
   * Instead of a client: JWTs are checked by the issuer's keys alone, and it is not asked about any. A withdrawn token
   * then works until it expires, 15 minutes at most, and opaque tokens never do.
   */
  offline?: boolean | undefined;
  /** Named in the metadata: the scopes that your API knows, its name, and where it is documented. */
  scopes?: readonly string[] | undefined;
  name?: string | undefined;
  documentation?: string | undefined;
  /** Asks for a nonce in each DPoP proof: 32 bytes or more, the same in every process of your API. */
  dpopNonceSecret?: string | undefined;
  /** Where used DPoP proofs are kept. Default: in this process. */
  replays?: ReplayStore | undefined;
  /** Told why a request was answered with 503. Default: a warning of the process, one a minute at most. */
  onError?: ((error: Error) => void) | undefined;
  /** For requests to the issuer, where they need a proxy or a certificate of your own. Default: the global `fetch`. */
  fetch?: Fetch | undefined;
}

export interface Protector extends Adapters {
  check: Check;
  readonly metadata: ResourceMetadata;
}

const cacheSecondsDefault = 10;
const cacheSecondsMax = 900;
/** Milliseconds between two warnings. */
const warningPauseMs = 60_000;

/**
 * Nothing is asked of the issuer before the first request comes: either may be started first.
 * @throws TypeError when an option is missing or not what it may be
 */
export function createProtector(options: ProtectorOptions): Protector {
  checkIssuer(options.issuer);
  const { origin } = checkUrl(options.url);
  const { issuer } = options;
  const audience = readAudience(options);
  const fetchObject = createFetchObject(options.fetch ?? fetch);
  const discover = createDiscovery(issuer, fetchObject);
  const metadata = createResourceMetadata({
    url: options.url,
    issuer,
    scopes: options.scopes ?? [],
    name: options.name,
    documentation: options.documentation,
  });
  const credentials = readClient(options);
  const introspect: Introspect | null =
    credentials === null ? null : createIntrospection({ discover, fetchObject, ...credentials });
  const check = createCheck({
    issuer,
    audience,
    origin,
    verifyJwt: createJwtVerifier({ issuer, audience, discover, fetchObject }),
    introspect,
    refusals: createRefusals(metadata.url),
    replays: options.replays ?? createReplayStore(),
    nonces: options.dpopNonceSecret === undefined ? null : createProofNonces(options.dpopNonceSecret),
    onError: options.onError ?? createWarning(),
  });
  return { check, metadata, ...createAdapters(check, metadata) };
}

function checkUrl(text: string): URL {
  const url = parseUrl(text);
  const isPlain = url !== undefined && url.search === '' && url.hash === '' && url.username === '';
  if (!isPlain || !/^https?:$/.test(url.protocol)) {
    throw new TypeError(`url is ${JSON.stringify(text)}: it may be the public http(s) URL of your API`);
  }
  return url;
}

/** Which tokens are meant for this API is for its operator to say: a default would take tokens made for others. */
function readAudience({ audience, url }: ProtectorOptions): readonly string[] {
  const named: readonly unknown[] = [audience ?? []].flat();
  if (named.length === 0) {
    throw new TypeError(
      `audience is missing: name what the tokens for this API are for, usually ${JSON.stringify(url)}, as declared in oauth.resources of the Nuncio server`,
    );
  }
  if (named.every((value) => typeof value === 'string' && value !== '')) return named as readonly string[];
  throw new TypeError(`audience is ${JSON.stringify(audience)}: it must be a string, or an array of strings`);
}

/** Either a client or the word that there is none: whoever forgets it must not learn of it by a withdrawn token. */
function readClient(
  options: ProtectorOptions,
): { clientId: string; clientSecret: string; cacheSeconds: number } | null {
  const { clientId, clientSecret, offline = false, cacheSeconds = cacheSecondsDefault } = options;
  if (offline) {
    if (clientId === undefined && clientSecret === undefined) return null;
    throw new TypeError('offline is true: clientId and clientSecret may not be given then');
  }
  if (!clientId || !clientSecret) {
    throw new TypeError(
      'clientId and clientSecret are missing: without them say offline: true (withdrawals up to 15 minutes late)',
    );
  }
  if (!(cacheSeconds >= 0 && cacheSeconds <= cacheSecondsMax)) {
    throw new TypeError(`cacheSeconds is ${cacheSeconds}: it may be 0 to ${cacheSecondsMax}`);
  }
  return { clientId, clientSecret, cacheSeconds };
}

function createWarning(): (error: Error) => void {
  let warnedAt = Number.NEGATIVE_INFINITY;
  return (error) => {
    if (performance.now() - warnedAt < warningPauseMs) return;
    warnedAt = performance.now();
    process.emitWarning(`requests are answered with 503: ${error.message}`, 'NuncioProtectWarning');
  };
}
