/**
 * The client of one upstream OpenID provider, by `openid-client`: discovery, the address that the browser is sent to,
 * and the exchange of the code for a verified ID token. The library is loaded with the first sign-in.
 *
 * Requests reach the host of the issuer wherever it is, because the operator named it, and public hosts otherwise: what
 * the provider's metadata names is not the operator's word. Each request has the limits of egress/fetch.ts (5 s, 64 KiB,
 * no redirect).
 */

import type * as OpenId from 'openid-client';
import { isLoopbackHost } from '../../config/config.ts';
import type { ConnectorOptions } from '../../egress/connector.ts';
import { createGuardedFetch, fetchTimeoutMs, type GuardedFetch } from '../../egress/fetch.ts';
import { readIdentity, type VerifiedIdentity } from './identity.ts';
import type { UpstreamProvider } from './provider_settings.ts';
import { type BegunLogin, codeVerifierOf, nonceOf } from './upstream_login.ts';

/** Milliseconds that the provider's metadata are used before they are read again. */
const metadataMs = 3_600_000;
/** Milliseconds that old metadata are used while the provider cannot be read. */
const staleMetadataMs = 86_400_000;
/** Milliseconds in which a provider that could not be read is not asked again. */
const pauseMs = 3_000;
/** Seconds for `max_age` where only a new sign-in is asked: with it an ID token has `auth_time`. */
const freshSeconds = 300;

export type UpstreamFault =
  /** The provider cannot be reached, or answers what is no answer. */
  | 'unavailable'
  /** The user refused at the provider. */
  | 'cancelled'
  /** The provider answers with an error. */
  | 'refused'
  /** What came back is not proved to be the provider's answer to this request. */
  | 'invalid';

/** Why a sign-in with a provider does not go on. The message is for the log. */
export class UpstreamError extends Error {
  override readonly name = 'UpstreamError';
  readonly fault: UpstreamFault;

  constructor(fault: UpstreamFault, message: string, options?: ErrorOptions) {
    super(message, options);
    this.fault = fault;
  }
}

/** What the app asked, as far as it concerns the provider. */
export interface UpstreamQuestion {
  loginHint: string | null;
  /** The values of `prompt`. */
  prompt: readonly string[];
  maxAgeSeconds: number | null;
}

export interface UpstreamClient {
  readonly provider: UpstreamProvider;
  /** Reads the provider's metadata, unless they are known. @throws UpstreamError */
  prepare: () => Promise<void>;
  /** Where the browser goes. @throws UpstreamError */
  authorizationUrl: (login: BegunLogin, question: UpstreamQuestion) => Promise<URL>;
  /**
   * Exchanges the code and verifies the ID token: signature, `iss`, `aud`, `azp`, `exp`, `nonce`, and the `iss` of the
   * response (RFC 9207).
   * @param url the address that the browser came back to
   * @throws UpstreamError
   */
  exchange: (url: URL, login: BegunLogin) => Promise<VerifiedIdentity>;
  close: () => Promise<void>;
}

interface Known {
  openid: typeof OpenId;
  configuration: OpenId.Configuration;
  /** By the monotonic clock. */
  readAtMs: number;
}

export interface UpstreamClientOptions {
  provider: UpstreamProvider;
  clientSecret: string;
  redirectUri: string;
  egress: Omit<ConnectorOptions, 'allowLoopback' | 'trustedHost'>;
}

export function createUpstreamClient(options: UpstreamClientOptions): UpstreamClient {
  const { provider, redirectUri } = options;
  const issuer = new URL(provider.issuer);
  const { fetch, close } = createGuardedFetch({
    ...options.egress,
    allowLoopback: isLoopbackHost(issuer.hostname),
    trustedHost: issuer.hostname.replace(/^\[(.*)\]$/, '$1'),
  });
  const discover = rememberMetadata(() => readMetadata(options, issuer, fetch));

  return {
    provider,
    close,
    async prepare() {
      await discover();
    },
    async authorizationUrl({ state, browserSecret }, question) {
      const { openid, configuration } = await discover();
      const parameters = new URLSearchParams({
        ...authorizationParameters(question, configuration.serverMetadata().prompt_values_supported),
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
        throw new UpstreamError('unavailable', 'the metadata have no usable authorization endpoint', {
          cause,
        });
      }
    },
    async exchange(url, { state, browserSecret }) {
      const known = await discover();
      try {
        return await exchangeCode(known, provider, url, state, browserSecret);
      } catch (error) {
        throw toUpstreamError(error, known.openid);
      }
    },
  };
}

/** @param supported values of `prompt` that the provider names; `login` is for all (OpenID Connect Core section 3.1.2.1) */
function authorizationParameters(
  { loginHint, prompt, maxAgeSeconds }: UpstreamQuestion,
  supported: unknown,
): Record<string, string> {
  const known: readonly unknown[] = Array.isArray(supported) ? supported : ['login'];
  const forwarded = prompt.filter((value) => forwardedPrompts.includes(value) && known.includes(value));
  const maxAge = maxAgeSeconds ?? (prompt.includes('login') ? freshSeconds : null);
  return {
    ...(loginHint === null ? {} : { login_hint: loginHint }),
    ...(forwarded.length === 0 ? {} : { prompt: forwarded.join(' ') }),
    ...(maxAge === null ? {} : { max_age: String(maxAge) }),
  };
}

const forwardedPrompts = ['login', 'select_account'];

async function exchangeCode(
  { openid, configuration }: Known,
  provider: UpstreamProvider,
  url: URL,
  state: string,
  browserSecret: string,
): Promise<VerifiedIdentity> {
  const tokens = await openid.authorizationCodeGrant(configuration, url, {
    expectedState: state,
    expectedNonce: nonceOf(browserSecret),
    pkceCodeVerifier: codeVerifierOf(browserSecret),
    idTokenExpected: true,
  });
  let claims: Record<string, unknown> = { ...tokens.claims() };
  // Many providers tell what the scope `email` asks at the UserInfo endpoint alone (OpenID Connect Core section 5.4).
  if (claims.email === undefined && configuration.serverMetadata().userinfo_endpoint !== undefined) {
    // The address and whether it is verified come from one source; who it is, and when they signed in, from the ID token.
    const { iss, sub, auth_time } = claims;
    const told = await openid.fetchUserInfo(configuration, tokens.access_token, String(sub));
    claims = { name: claims.name, ...told, iss, sub, auth_time };
  }
  const identity = readIdentity(claims, provider);
  if (identity === undefined) throw new UpstreamError('invalid', 'the subject is not 1 to 255 characters');
  return identity;
}

async function readMetadata(
  { provider, clientSecret }: UpstreamClientOptions,
  issuer: URL,
  fetch: GuardedFetch,
): Promise<Known> {
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
        // The signature is verified although the ID token comes over TLS.
        openid.enableNonRepudiationChecks,
        ...(issuer.protocol === 'http:' ? [openid.allowInsecureRequests] : []),
      ],
    });
    // The library makes an exception for multi-tenant issuers, whose tokens say anybody's tenant.
    if (new URL(configuration.serverMetadata().issuer).href !== issuer.href)
      throw new Error('another issuer');
    return { openid, configuration, readAtMs: performance.now() };
  } catch (cause) {
    throw new UpstreamError('unavailable', `the metadata of ${issuer.href} cannot be used`, { cause });
  }
}

/** One reading at a time; what is known is used meanwhile, if it is not too old. */
function rememberMetadata(read: () => Promise<Known>): () => Promise<Known> {
  let known: Known | undefined;
  let reading: Promise<Known> | undefined;
  let failed: { error: unknown; atMs: number } | undefined;

  function readOnce(): Promise<Known> {
    if (failed !== undefined && performance.now() - failed.atMs < pauseMs)
      return Promise.reject(failed.error);
    reading ??= read()
      .then(
        (found) => {
          known = found;
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
    const ageMs = known === undefined ? Number.POSITIVE_INFINITY : performance.now() - known.readAtMs;
    if (known !== undefined && ageMs < metadataMs) return known;
    try {
      return await readOnce();
    } catch (error) {
      if (known !== undefined && ageMs < staleMetadataMs) return known;
      throw error;
    }
  };
}

function toUpstreamError(error: unknown, openid: typeof OpenId): UpstreamError {
  if (error instanceof UpstreamError) return error;
  if (error instanceof openid.AuthorizationResponseError) {
    const fault = error.error === 'access_denied' ? 'cancelled' : 'refused';
    return new UpstreamError(fault, `the provider answers ${JSON.stringify(error.error.slice(0, 100))}`, {
      cause: error,
    });
  }
  if (error instanceof openid.ResponseBodyError) {
    return new UpstreamError(
      'refused',
      `the provider refuses the code: ${JSON.stringify(error.error.slice(0, 100))}`,
      {
        cause: error,
      },
    );
  }
  const { code } = error as { code?: unknown };
  const isInvalid = typeof code === 'string' && invalidCodes.has(code);
  return new UpstreamError(isInvalid ? 'invalid' : 'unavailable', 'the sign-in could not be verified', {
    cause: error,
  });
}

/** Codes of the library for answers that came, and are not what was asked for. */
const invalidCodes: ReadonlySet<string> = new Set([
  'OAUTH_INVALID_RESPONSE',
  'OAUTH_PARSE_ERROR',
  'OAUTH_JWT_TIMESTAMP_CHECK_FAILED',
  'OAUTH_JWT_CLAIM_COMPARISON_FAILED',
  'OAUTH_JSON_ATTRIBUTE_COMPARISON_FAILED',
  'OAUTH_KEY_SELECTION_FAILED',
  'OAUTH_UNSUPPORTED_OPERATION',
]);
