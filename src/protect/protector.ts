/**
 * The protector verifies access tokens of a Nuncio server in an API server of your own.
 */

import { createProofNonces, type ProofNonces } from '../shared/proof_nonces.ts';
import { type Adapters, createAdapters } from './adapters.ts';
import { createFetchObject, type Fetch } from './bounded_fetch.ts';
import { type Check, createCheck } from './check.ts';
import { checkIssuer, createDiscovery, parseUrl } from './discovery.ts';
import { createErrorResponses } from './error_response.ts';
import { createIntrospection, type Introspect } from './introspection.ts';
import { createJwtVerifier } from './jwt_access_token.ts';
import { createReplayStore, type ReplayStore } from './replay.ts';
import { createResourceMetadata, type ResourceMetadata } from './resource_metadata.ts';

export interface ProtectorOptions {
  /** The base URL of the Nuncio server, exactly as in `NUNCIO_BASE_URL`. */
  issuer: string;
  /**
   * The public URL of your API: its origin, and a path if the API is only below that path. Metadata and DPoP proofs contain
   * it. The `Host` header of a request is never trusted.
   */
  url: string;
  /**
   * The accepted values of the token's `aud`, usually `url`, as declared in `oauth.resources` of the issuer (RFC 8707). If
   * you accept the issuer itself, tokens for the issuer's own API and for every other API that accepts them are valid for
   * your API too.
   */
  audience: string | readonly string[];
  /** Your client at the issuer, for introspection: a withdrawal takes effect within `cacheSeconds`. */
  clientId?: string | undefined;
  clientSecret?: string | undefined;
  /** Seconds that introspection responses are cached, 0 to 900; 0 introspects on every request. Default: 10. */
  cacheSeconds?: number | undefined;
  /**
   * Verifies JWTs with the issuer's keys only, without introspection; replaces the client. A withdrawn token then works
   * until it expires, at most 15 minutes, and opaque tokens are always rejected.
   */
  offline?: boolean | undefined;
  /**
   * Whether opaque tokens are introspected. Set it to false if no app of yours has them: they are then rejected without a
   * request to the issuer. Default: true.
   */
  opaqueTokens?: boolean | undefined;
  /** Content of the resource metadata: the scopes of your API, its name, and the URL of its documentation. */
  scopes?: readonly string[] | undefined;
  name?: string | undefined;
  documentation?: string | undefined;
  /** Requires a nonce in each DPoP proof. 32 bytes or more, the same in every process of your API. */
  dpopNonceSecret?: string | undefined;
  /** Stores used DPoP proofs. Default: in the memory of this process. */
  replays?: ReplayStore | undefined;
  /** Called with the reason of each response with status 503. Default: emits a process warning, at most one per minute. */
  onError?: ((error: Error) => void) | undefined;
  /** For requests to the issuer that need a proxy or a custom CA. Default: the global `fetch`. */
  fetch?: Fetch | undefined;
}

export interface Protector extends Adapters {
  check: Check;
  readonly metadata: ResourceMetadata;
}

const cacheSecondsDefault = 10;
const cacheSecondsMax = 900;
/** Minimum milliseconds between warnings. */
const warningPauseMs = 60_000;
/** Minimum length of the secret of nonces, in bytes, and milliseconds until a new nonce. */
const nonceSecretBytesMin = 32;
const nonceMs = 60_000;

/**
 * Creates a protector. It sends no request to the issuer before the first check, so that both servers can start in any
 * order.
 * @throws TypeError if an option is missing or invalid
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
    acceptsOpaqueTokens: options.opaqueTokens ?? true,
    errorResponses: createErrorResponses(metadata.url),
    replays: options.replays ?? createReplayStore(),
    nonces: createNonces(options.dpopNonceSecret),
    onError: options.onError ?? createWarning(),
  });
  return { check, metadata, ...createAdapters(check, metadata) };
}

function createNonces(secret: string | undefined): ProofNonces | null {
  if (secret === undefined) return null;
  if (Buffer.byteLength(secret) < nonceSecretBytesMin) {
    throw new TypeError(`dpopNonceSecret is too short: it must have ${nonceSecretBytesMin} bytes or more`);
  }
  return createProofNonces(secret, nonceMs);
}

function checkUrl(text: string): URL {
  const url = parseUrl(text);
  const isPlain = url !== undefined && url.search === '' && url.hash === '' && url.username === '';
  if (!isPlain || !/^https?:$/.test(url.protocol)) {
    throw new TypeError(`url is ${JSON.stringify(text)}: it must be the public http(s) URL of your API`);
  }
  return url;
}

/** There is no default for the audience: it would accept tokens that were issued for other APIs. */
function readAudience({ audience, url }: ProtectorOptions): readonly string[] {
  const named: readonly unknown[] = [audience ?? []].flat();
  if (named.length === 0) {
    throw new TypeError(
      `audience is missing: it must be the resource that tokens for this API are issued for, usually ${JSON.stringify(url)}, as declared in oauth.resources of the Nuncio server`,
    );
  }
  if (named.every((value) => typeof value === 'string' && value !== '')) return named as readonly string[];
  throw new TypeError(`audience is ${JSON.stringify(audience)}: it must be a string, or an array of strings`);
}

/** Requires either a client or `offline: true`, so that introspection is not skipped by mistake. */
function readClient(
  options: ProtectorOptions,
): { clientId: string; clientSecret: string; cacheSeconds: number } | null {
  const { clientId, clientSecret, offline = false, cacheSeconds = cacheSecondsDefault } = options;
  if (offline) {
    if (clientId === undefined && clientSecret === undefined) return null;
    throw new TypeError('offline is true: it cannot be combined with clientId and clientSecret');
  }
  if (!clientId || !clientSecret) {
    throw new TypeError(
      'clientId and clientSecret are missing: set them, or set offline: true (withdrawals take effect up to 15 minutes late)',
    );
  }
  if (!(cacheSeconds >= 0 && cacheSeconds <= cacheSecondsMax)) {
    throw new TypeError(`cacheSeconds is ${cacheSeconds}: it must be 0 to ${cacheSecondsMax}`);
  }
  return { clientId, clientSecret, cacheSeconds };
}

function createWarning(): (error: Error) => void {
  let warnedAt = Number.NEGATIVE_INFINITY;
  return (error) => {
    if (performance.now() - warnedAt < warningPauseMs) return;
    warnedAt = performance.now();
    process.emitWarning(`responding with status 503: ${error.message}`, 'NuncioProtectWarning');
  };
}
