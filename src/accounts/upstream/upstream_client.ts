/**
 * The client of one upstream OpenID provider, built on `openid-client`: discovery, the authorization request, and the
 * exchange of the code for a verified ID token. The first sign-in loads the library.
 *
 * The host of the issuer can be in a private network, because the operator configured it. Other hosts come from the
 * provider's metadata and must be public. Each request has the limits of egress/fetch.ts (5 s, 64 KiB, no redirects).
 */

import type * as OpenId from 'openid-client';
import { isLoopbackHost } from '../../config/config.ts';
import type { Database } from '../../database/database.ts';
import type { ConnectorOptions } from '../../egress/connector.ts';
import { fetchTimeoutMs, type GuardedFetch } from '../../egress/fetch.ts';
import { createNamedFetch } from '../../egress/named_fetch.ts';
import { OriginTurns, TooManyWaitError } from '../../egress/origin_turns.ts';
import { networksOf } from '../../http/network.ts';
import { waitElsewhere } from '../../http/overload/request_place.ts';
import { NoTurnError } from '../../shared/limited_work.ts';
import { addressCounters, type Counter, countGuess, forgiveGuess } from '../throttle.ts';
import { readIdentity, type VerifiedIdentity } from './identity.ts';
import type { UpstreamProvider } from './provider_settings.ts';
import { clockToleranceSeconds, codeVerifierOf, nonceOf, type StartedLogin } from './upstream_login.ts';

/** How long metadata is cached. */
const metadataMs = 3_600_000;
/** How long stale metadata is used while the provider is unavailable. */
const staleMetadataMs = 86_400_000;
/** Pause between attempts to read the metadata of an unavailable provider. */
const retryPauseMs = 3_000;
/**
 * Exchanges of codes at once, of which networks have shares: anyone can send codes that the provider looks up and refuses. How many of
 * one network may wait. Each needs one connection, and metadata another.
 */
const exchangesMax = 16;
const waitingMax = 50;
/** Codes of one network that a provider may refuse within 15 minutes: providers limit the requests of a client, which is this server. */
const refusedCodesMax = 20;
/** `max_age` for a request with `prompt=login`: it makes the provider add `auth_time` to the ID token. */
const freshMaxAgeSeconds = 300;

/** Characters of a `login_hint` that is passed on: anybody can send a long one, and proxies have a limit for the headers of the redirect. */
const loginHintLengthMax = 1_024;

export type UpstreamErrorCode =
  /** The provider cannot be reached, or its response is malformed. */
  | 'unavailable'
  /** The user cancelled the sign-in at the provider. */
  | 'cancelled'
  /** The provider returned an error. */
  | 'refused'
  /** The response cannot be verified as the provider's response to this request. */
  | 'invalid'
  /** The provider has refused too many codes of the network. It is not asked. */
  | 'throttled';

/** A sign-in with a provider failed. The message is for the log. */
export class UpstreamError extends Error {
  override readonly name = 'UpstreamError';
  readonly code: UpstreamErrorCode;
  /** Of `throttled`. */
  readonly retryAfterSeconds: number;

  constructor(
    code: UpstreamErrorCode,
    message: string,
    options?: ErrorOptions & { retryAfterSeconds?: number },
  ) {
    super(message, options);
    this.code = code;
    this.retryAfterSeconds = options?.retryAfterSeconds ?? 0;
  }
}

/** The parameters of the app's authorization request that concern the provider. */
export interface AuthorizationHints {
  loginHint: string | null;
  /** Values of `prompt`. */
  prompt: readonly string[];
  maxAgeSeconds: number | null;
}

export interface UpstreamClient {
  readonly provider: UpstreamProvider;
  /** Reads the provider's metadata unless it is cached. @throws UpstreamError */
  prepare: () => Promise<void>;
  /** Builds the URL of the authorization request. @throws UpstreamError */
  authorizationUrl: (login: StartedLogin, hints: AuthorizationHints) => Promise<URL>;
  /**
   * Exchanges the code and verifies the ID token: signature, `iss`, `aud`, `azp`, `exp`, `iat`, `nonce`, and the `iss` of the
   * response (RFC 9207).
   * @param url the callback URL with the parameters of the authorization response
   * @param remote the network address that sent it: networks take turns, and the refused codes of each are limited
   * @throws UpstreamError
   */
  exchange: (url: URL, login: StartedLogin, remote: string) => Promise<VerifiedIdentity>;
  close: () => Promise<void>;
}

interface Discovered {
  openid: typeof OpenId;
  configuration: OpenId.Configuration;
  /** Monotonic time. */
  readAtMs: number;
}

export interface UpstreamClientOptions {
  db: Database;
  provider: UpstreamProvider;
  clientSecret: string;
  redirectUri: string;
  egress: Omit<ConnectorOptions, 'allowLoopback' | 'trustedHost' | 'isNamedByOperator'>;
}

export function createUpstreamClient(options: UpstreamClientOptions): UpstreamClient {
  const { db, provider, redirectUri } = options;
  const issuer = new URL(provider.issuer);
  const { fetch, close } = createNamedFetch(
    {
      ...options.egress,
      allowLoopback: isLoopbackHost(issuer.hostname),
      trustedHost: issuer.hostname.replace(/^\[(.*)\]$/, '$1'),
    },
    { connectionsMax: exchangesMax + 1 },
  );
  const turns = new OriginTurns(exchangesMax, waitingMax);
  const discover = cacheMetadata(() => readMetadata(options, issuer, fetch));

  return {
    provider,
    close,
    async prepare() {
      await discover();
    },
    async authorizationUrl({ state, browserSecret }, hints) {
      const { openid, configuration } = await discover();
      const parameters = new URLSearchParams({
        ...authorizationParameters(hints, configuration.serverMetadata().prompt_values_supported),
        redirect_uri: redirectUri,
        scope: 'openid email profile',
        state,
        nonce: nonceOf(browserSecret),
        code_challenge: await openid.calculatePKCECodeChallenge(codeVerifierOf(browserSecret)),
        code_challenge_method: 'S256',
      });
      try {
        return openid.buildAuthorizationUrl(configuration, parameters);
      } catch (cause) {
        throw new UpstreamError('unavailable', 'the metadata has no valid authorization endpoint', {
          cause,
        });
      }
    },
    async exchange(url, { state, browserSecret }, remote) {
      const discovered = await discover();
      const { near, wide } = networksOf(remote);
      // Counted when its turn comes: what waits does not count, so that a network can have many sign-ins at once.
      const count: CountCode = (grant) => countRefusedCode(db, provider, remote, grant);
      const exchange = () => exchangeCode(discovered, provider, url, { state, browserSecret }, count);
      try {
        return await waitElsewhere(() => turns.run(issuer, wide ?? near, exchange));
      } catch (error) {
        if (!(error instanceof NoTurnError || error instanceof TooManyWaitError)) throw error;
        throw new UpstreamError('unavailable', 'too many sign-ins wait for the provider', { cause: error });
      }
    },
  };
}

type CountCode = <Result>(grant: () => Promise<Result>) => Promise<Result>;

/**
 * Counts a code for its network, and takes it back unless the provider refuses it.
 * @throws UpstreamError `throttled` above the limit, or what the grant throws
 */
async function countRefusedCode<Result>(
  db: Database,
  provider: UpstreamProvider,
  remote: string,
  grant: () => Promise<Result>,
): Promise<Result> {
  const counted: Counter[] = [];
  for (const counter of addressCounters(`refused code\n${provider.id}`, remote, refusedCodesMax)) {
    counted.push(counter);
    const retryAfterSeconds = await countGuess(db, [counter]);
    if (retryAfterSeconds === null) continue;
    // Codes that are in flight have used the limit up, too. It must not stay so when they succeed.
    await forgiveGuess(db, counted);
    const message = 'the provider has refused too many codes of this network';
    throw new UpstreamError('throttled', message, { retryAfterSeconds });
  }
  let isRefused = false;
  try {
    return await grant();
  } catch (error) {
    isRefused = isCodeRefused(error);
    throw error;
  } finally {
    if (!isRefused) await forgiveGuess(db, counted);
  }
}

/** Errors of a token endpoint that are not about the code: mistakes of the operator (RFC 6749 section 5.2), and trouble of the provider. */
const errorsOfOthers: ReadonlySet<unknown> = new Set([
  'invalid_client',
  'server_error',
  'temporarily_unavailable',
  'unauthorized_client',
]);
const statusesOfTrouble = [408, 429];
/** Without an error code: of a provider that does not know the client, or the endpoint. */
const statusesOfMistakes = [401, 404];

/** Whether the provider, or a firewall in front of it, refused the code. Errors in the callback itself have no status. */
function isCodeRefused(error: unknown): boolean {
  let each = error as { status?: unknown; error?: unknown; cause?: unknown } | undefined;
  for (let depth = 0; depth < 5 && each !== undefined && typeof each.status !== 'number'; depth += 1)
    each = each.cause as typeof each;
  const { status, error: code } = each ?? {};
  if (typeof status !== 'number' || status < 400 || status > 499 || statusesOfTrouble.includes(status))
    return false;
  return typeof code === 'string' ? !errorsOfOthers.has(code) : !statusesOfMistakes.includes(status);
}

/** @param supported `prompt_values_supported`. All providers support `login` (OpenID Connect Core section 3.1.2.1) */
function authorizationParameters(
  { loginHint, prompt, maxAgeSeconds }: AuthorizationHints,
  supported: unknown,
): Record<string, string> {
  const supportedPrompts: readonly unknown[] = Array.isArray(supported) ? supported : ['login'];
  const forwarded = prompt.filter(
    (value) => forwardedPrompts.includes(value) && supportedPrompts.includes(value),
  );
  const maxAge = maxAgeSeconds ?? (prompt.includes('login') ? freshMaxAgeSeconds : null);
  return {
    ...(loginHint === null || loginHint.length > loginHintLengthMax ? {} : { login_hint: loginHint }),
    ...(forwarded.length === 0 ? {} : { prompt: forwarded.join(' ') }),
    ...(maxAge === null ? {} : { max_age: String(maxAge) }),
  };
}

const forwardedPrompts = ['login', 'select_account'];

async function exchangeCode(
  { openid, configuration }: Discovered,
  provider: UpstreamProvider,
  url: URL,
  { state, browserSecret }: StartedLogin,
  count: CountCode,
): Promise<VerifiedIdentity> {
  const fail = (error: unknown) => Promise.reject(toUpstreamError(error, openid));
  const checks = {
    expectedState: state,
    expectedNonce: nonceOf(browserSecret),
    pkceCodeVerifier: codeVerifierOf(browserSecret),
    idTokenExpected: true,
  };
  const tokens = await count(() => openid.authorizationCodeGrant(configuration, url, checks).catch(fail));
  let claims: Record<string, unknown> = { ...tokens.claims() };
  // The library requires `iat` but does not compare it. An ID token from the future can be used long after it was made.
  if (Number(claims.iat) > Date.now() / 1_000 + clockToleranceSeconds) {
    throw new UpstreamError('invalid', 'the ID token was issued in the future');
  }
  // Many providers return the claims of the scope `email` only at the UserInfo endpoint (OpenID Connect Core section 5.4).
  if (claims.email === undefined && configuration.serverMetadata().userinfo_endpoint !== undefined) {
    // `email` and `email_verified` must have one source. `iss`, `sub` and `auth_time` always come from the ID token.
    const { iss, sub, auth_time } = claims;
    const userInfo = await openid.fetchUserInfo(configuration, tokens.access_token, String(sub)).catch(fail);
    claims = { name: claims.name, ...userInfo, iss, sub, auth_time };
  }
  const identity = readIdentity(claims, provider);
  if (identity === undefined) throw new UpstreamError('invalid', 'the subject must have 1 to 255 characters');
  return identity;
}

async function readMetadata(
  { provider, clientSecret }: UpstreamClientOptions,
  issuer: URL,
  fetch: GuardedFetch,
): Promise<Discovered> {
  const openid = await import('openid-client');
  const { clientId } = provider;
  const authenticate: OpenId.ClientAuth = (server, ...rest) => {
    const methods = server.token_endpoint_auth_methods_supported ?? ['client_secret_basic'];
    const isPost = methods.includes('client_secret_post') && !methods.includes('client_secret_basic');
    return (isPost ? openid.ClientSecretPost : openid.ClientSecretBasic)(clientSecret)(server, ...rest);
  };
  try {
    const configuration = await openid.discovery(issuer, clientId, undefined, authenticate, {
      timeout: fetchTimeoutMs / 1_000,
      [openid.customFetch]: (url, init) => fetch(url, init),
      execute: [
        // Verify the signature although the ID token comes over TLS.
        openid.enableNonRepudiationChecks,
        ...(issuer.protocol === 'http:' ? [openid.allowInsecureRequests] : []),
      ],
    });
    // The library accepts multi-tenant issuers. Their tokens name the tenant of any user.
    if (new URL(configuration.serverMetadata().issuer).href !== issuer.href)
      throw new Error('the metadata names a different issuer');
    return { openid, configuration, readAtMs: performance.now() };
  } catch (cause) {
    throw new UpstreamError('unavailable', `the metadata of ${issuer.href} is not usable`, { cause });
  }
}

/** Caches the metadata. Concurrent calls share one request. If it fails, the cache serves stale metadata. */
function cacheMetadata(read: () => Promise<Discovered>): () => Promise<Discovered> {
  let cached: Discovered | undefined;
  let reading: Promise<Discovered> | undefined;
  let failed: { error: unknown; atMs: number } | undefined;

  function readOnce(): Promise<Discovered> {
    if (failed !== undefined && performance.now() - failed.atMs < retryPauseMs)
      return Promise.reject(failed.error);
    reading ??= read()
      .then(
        (found) => {
          cached = found;
          failed = undefined;
          return found;
        },
        (error: unknown) => {
          failed = { error, atMs: performance.now() };
          throw error;
        },
      )
      .finally(() => {
        reading = undefined;
      });
    return reading;
  }

  return async () => {
    const ageMs = cached === undefined ? Number.POSITIVE_INFINITY : performance.now() - cached.readAtMs;
    if (cached !== undefined && ageMs < metadataMs) return cached;
    try {
      return await waitElsewhere(readOnce);
    } catch (error) {
      if (cached !== undefined && ageMs < staleMetadataMs) return cached;
      throw error;
    }
  };
}

function toUpstreamError(error: unknown, openid: typeof OpenId): UpstreamError {
  if (error instanceof UpstreamError) return error;
  if (error instanceof openid.AuthorizationResponseError) {
    const code = error.error === 'access_denied' ? 'cancelled' : 'refused';
    return new UpstreamError(
      code,
      `the provider returned the error ${JSON.stringify(error.error.slice(0, 100))}`,
      {
        cause: error,
      },
    );
  }
  if (error instanceof openid.ResponseBodyError) {
    return new UpstreamError(
      'refused',
      `the provider rejected the code: ${JSON.stringify(error.error.slice(0, 100))}`,
      {
        cause: error,
      },
    );
  }
  const { code } = error as { code?: unknown };
  const isInvalid = typeof code === 'string' && invalidCodes.has(code);
  return new UpstreamError(isInvalid ? 'invalid' : 'unavailable', 'the response could not be verified', {
    cause: error,
  });
}

/** Error codes of the library for responses that fail verification. */
const invalidCodes: ReadonlySet<string> = new Set([
  'OAUTH_INVALID_RESPONSE',
  'OAUTH_PARSE_ERROR',
  'OAUTH_JWT_TIMESTAMP_CHECK_FAILED',
  'OAUTH_JWT_CLAIM_COMPARISON_FAILED',
  'OAUTH_JSON_ATTRIBUTE_COMPARISON_FAILED',
  'OAUTH_KEY_SELECTION_FAILED',
  'OAUTH_UNSUPPORTED_OPERATION',
]);
