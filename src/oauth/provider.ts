/**
 * Configures `oidc-provider`, the certified OpenID provider library, with our policy (RFC 6749, 7009, 7636, 8414, 9068, 9207,
 * 9700) and our storage.
 */

import type { Configuration, Provider } from 'oidc-provider';
import type { Account } from '../accounts/account.ts';
import { accessTokenSeconds } from '../clients/access_token_lifetime.ts';
import type { Config } from '../config/config.ts';
import { deriveKey } from '../crypto/sealing.ts';
import { openidScopes, scopeClaims } from '../grants/scopes.ts';
import { proofAlgorithms } from '../shared/dpop_proof.ts';
import { supportedAcrs } from './authentication_context.ts';
import { checkClientAssertion, clockToleranceSeconds, describeAssertionErrors } from './client_assertion.ts';
import { completeKeySet, completeMetadata } from './discovery.ts';
import { useEndpointLimit } from './endpoint_limit.ts';
import { useErrorResponses } from './error_responses.ts';
import { accountOfRequest, externalIdClaim } from './external_id_claim.ts';
import { rotateRefreshToken } from './fapi2.ts';
import { features, resourceIndicators } from './features.ts';
import { countAuthorization, requireReviewedApp, resolveGrant } from './grant_policy.ts';
import { bindInteractions } from './interaction_binding.ts';
import { sessionSeconds } from './login_session.ts';
import { mtlsAuthMethods } from './mtls/mtls.ts';
import { createOverriddenProvider } from './overrides.ts';
import { errorRenderer, styleForwardingForm } from './page_rendering.ts';
import { pairwiseSubjects } from './pairwise.ts';
import { registerPasswordGrant } from './password_grant.ts';
import { epochOf, isRegisteredWithoutPkce } from './provider_client.ts';
import { ProviderKey } from './provider_key.ts';
import type { ProviderOptions } from './provider_options.ts';
import { confirmSignedOutRedirect, limitRedirects } from './redirects.ts';
import { registrationMetadata, registrationStorages, useRegistration } from './registration/registration.ts';
import { filterRefreshScopes } from './scope_policy.ts';
import { accessTokenStorage } from './storage/access_token.ts';
import { authorizationCodeStorage } from './storage/authorization_code.ts';
import { runDeferredConsumption } from './storage/deferred_consumption.ts';
import { deviceCodeStorage } from './storage/device_code.ts';
import { grantRevisionOf, grantStorage, savePendingGrant } from './storage/grant.ts';
import { interactionStorage } from './storage/interaction.ts';
import { pushedRequestStorage } from './storage/pushed_request.ts';
import { refreshTokenStorage } from './storage/refresh_token.ts';
import { sessionStorage } from './storage/session.ts';
import { type ModelStorage, toAdapter } from './storage/storage.ts';
import { reportUserInfo } from './userinfo_call.ts';

/** Lifetimes in seconds. */
const authorizationCodeSeconds = 60;
const deviceCodeSeconds = 600;
const idTokenSeconds = 3_600;
const interactionSeconds = 3_600;
/** Lifetime from the last use, and from issuance, in seconds. */
const refreshTokenSeconds = 30 * 86_400;
const refreshTokenSecondsMax = 180 * 86_400;
const asymmetricAlgorithms: ('RS256' | 'PS256' | 'ES256' | 'Ed25519' | 'EdDSA')[] = [
  'RS256',
  'PS256',
  'ES256',
  'Ed25519',
  'EdDSA',
];

/** Builds oidc-provider. A rotation of the signing keys builds another one. */
export function createProvider(options: ProviderOptions): Provider {
  const { db, config, secret, clients } = options;
  const storages = createStorages(options);
  const configuration: Configuration = {
    ...policy(options),
    adapter: (model: string) => toAdapter(model, storages[model] ?? {}),
    cookies: cookies(config, secret),
    jwks: { keys: options.keys.privateKeys.map((key) => new ProviderKey(key)) },
    loadExistingGrant: async (ctx) => {
      const cached = await clients.find(ctx.oidc.client?.clientId ?? '');
      if (cached === undefined) return undefined;
      await requireReviewedApp(db, options.apps, ctx, cached.client);
      const grant = await resolveGrant(db, provider, ctx, cached.client);
      const { accountId } = grant ?? {};
      if (accountId !== undefined) countAuthorization(options.limiter, accountId, cached.client.id);
      return grant;
    },
    async findAccount(_ctx, id) {
      const account = await accountOfRequest(db, id);
      if (account === undefined) return undefined;
      return { accountId: id, claims: () => claimsOf(account) };
    },
    extraTokenClaims: externalIdClaim(options),
    renderError: errorRenderer(options.pages),
  };
  const provider = createOverriddenProvider(options, configuration);
  // mount.ts sets host and protocol from the base URL alone.
  provider.proxy = true;
  useEndpointLimit(provider, options);
  provider.use(limitRedirects(options));
  provider.use(completeMetadata(config.baseUrl, options.scopes, options.settings));
  provider.use(completeKeySet(options.foreignKeys));
  provider.use(styleForwardingForm(options.pages));
  describeAssertionErrors(provider);
  provider.use(confirmSignedOutRedirect(options));
  useRegistration(provider, db, clients);
  if (options.settings.password) registerPasswordGrant(provider, options);
  useErrorResponses(provider);
  reportUserInfo(provider, options);
  return provider;
}

function createStorages({
  db,
  verifier,
  config,
  clients,
  scopes,
}: ProviderOptions): Record<string, ModelStorage> {
  return {
    ...registrationStorages(db, clients),
    Session: sessionStorage(db),
    Interaction: bindInteractions(interactionStorage(db), config.baseUrl),
    Grant: grantStorage(db),
    AuthorizationCode: authorizationCodeStorage(db),
    RefreshToken: filterRefreshScopes(refreshTokenStorage(db), scopes),
    DeviceCode: deviceCodeStorage(db),
    PushedAuthorizationRequest: pushedRequestStorage(db),
    AccessToken: accessTokenStorage('AccessToken', db, verifier, config.baseUrl),
    ClientCredentials: accessTokenStorage('ClientCredentials', db, verifier, config.baseUrl),
  };
}

/** The configuration without storage and keys. */
function policy(options: ProviderOptions): Configuration {
  const { db } = options;
  return {
    routes: {
      authorization: '/oauth/authorize',
      token: '/oauth/token',
      jwks: '/oauth/jwks',
      revocation: '/oauth/revoke',
      introspection: '/oauth/introspect',
      userinfo: '/oauth/userinfo',
      end_session: '/oauth/logout',
      pushed_authorization_request: '/oauth/par',
      device_authorization: '/oauth/device',
      code_verification: '/device',
      registration: '/oauth/register',
    },
    acrValues: supportedAcrs(options.login, options.config.baseUrl),
    scopes: openidScopes.map((scope) => scope.name),
    claims: {
      ...Object.fromEntries(Object.entries(scopeClaims).map(([scope, claims]) => [scope, [...claims]])),
      // The application states how a user signed in, and every id_token contains it.
      ...(options.login === null ? {} : { openid: ['sub', 'acr', 'amr', 'auth_time'] }),
    },
    responseTypes: options.settings.implicit ? ['code', 'id_token token'] : ['code'],
    clientAuthMethods: [
      ...(['client_secret_basic', 'client_secret_post', 'private_key_jwt', 'none'] as const),
      ...mtlsAuthMethods(options.settings, options.config),
    ],
    enabledJWA: {
      clientAuthSigningAlgValues: asymmetricAlgorithms,
      requestObjectSigningAlgValues: asymmetricAlgorithms,
      idTokenSigningAlgValues: ['RS256', 'ES256'],
      userinfoSigningAlgValues: ['RS256', 'ES256'],
      dPoPSigningAlgValues: [...proofAlgorithms],
    },
    // RFC 7636: oidc-provider supports S256 only. PKCE is optional only if both the operator and the client say so.
    pkce: {
      required: (_ctx, client) =>
        !(
          options.settings.withoutPkce &&
          isRegisteredWithoutPkce(client) &&
          client.tokenEndpointAuthMethod !== 'none'
        ),
    },
    ...pairwiseSubjects(options.secret),
    clientBasedCORS: () => true,
    allowOmittingSingleRegisteredRedirectUri: false,
    clockTolerance: clockToleranceSeconds,
    features: { ...features(options), resourceIndicators: resourceIndicators(options) },
    extraClientMetadata: registrationMetadata(options),
    ...options.outgoing.configuration,
    assertJwtClientAuthClaimsAndHeader: checkClientAssertion,
    formats: {
      customizers: {
        async jwt(_ctx, token, parts) {
          await savePendingGrant(db);
          await runDeferredConsumption();
          const payload = parts.payload as Record<string, unknown>;
          const { grantId, accountId } = token as { grantId?: string; accountId?: string };
          // Private claims: the guard detects withdrawn grants by them, without a query.
          if (grantId !== undefined) payload.grant_id = grantId;
          const revision = grantRevisionOf(grantId);
          if (revision > 0) payload.grant_revision = revision;
          const epoch = epochOf((token as { client?: object }).client);
          if (epoch !== undefined) payload.client_epoch = epoch;
          // Access tokens contain the account id, also for pairwise clients (pairwise.ts).
          if (accountId !== undefined) payload.sub = accountId;
        },
      },
    },
    // Every client with this grant type gets a refresh token, whatever the scopes. It outlives the browser's session.
    issueRefreshToken: async (_ctx, client) => client.grantTypeAllowed('refresh_token'),
    expiresWithSession: async () => false,
    rotateRefreshToken: (ctx) => rotateRefreshToken(ctx, db, (token) => refreshTokenTtl(ctx, token)),
    // Revoking an access token does not affect its grant. Every other revocation by oidc-provider withdraws the grant.
    revokeGrantPolicy: (ctx) =>
      ctx.oidc.route !== 'revocation' || ctx.oidc.entities.RefreshToken !== undefined,
    ttl: {
      AccessToken: accessTokenTtl,
      ClientCredentials: accessTokenTtl,
      Grant: refreshTokenSecondsMax,
      AuthorizationCode: authorizationCodeSeconds,
      DeviceCode: deviceCodeSeconds,
      IdToken: idTokenSeconds,
      Interaction: interactionSeconds,
      Session: sessionTtl,
      RefreshToken: refreshTokenTtl,
    },
    interactions: { url: (_ctx, interaction) => `/interaction/${interaction.uid}` },
  };
}

/** OpenID Connect Core section 5.1. Unknown claims are omitted. */
function claimsOf({ id, name, email, isEmailVerified }: Account): { sub: string } {
  return {
    sub: id,
    ...(name === '' ? {} : { name }),
    ...(email === null ? {} : { email }),
    ...(email === null || isEmailVerified === null ? {} : { email_verified: isEmailVerified }),
  };
}

/** The lifetime that `getResourceServerInfo` returned for the client and the resource. */
function accessTokenTtl(
  _ctx: unknown,
  token: { resourceServer?: { accessTokenTTL?: number | undefined } | undefined },
): number {
  return token.resourceServer?.accessTokenTTL ?? accessTokenSeconds;
}

/** Without a user, a session only has the state of a page, and anyone can open such pages. */
function sessionTtl(_ctx: unknown, { accountId }: { accountId?: string | undefined }): number {
  return accountId === undefined ? interactionSeconds : sessionSeconds;
}

/** 30 days from the last use, but at most 180 days from the first. */
function refreshTokenTtl(_ctx: unknown, token: { iiat?: number | undefined }): number {
  const age = Math.floor(Date.now() / 1_000) - (token.iiat ?? Math.floor(Date.now() / 1_000));
  return Math.max(1, Math.min(refreshTokenSeconds, refreshTokenSecondsMax - age));
}

function cookies(config: Config, secret: Buffer): NonNullable<Configuration['cookies']> {
  const isSecure = config.baseUrl.startsWith('https:');
  const options = { httpOnly: true, sameSite: 'lax', signed: true, secure: isSecure } as const;
  const prefix = isSecure ? '__Secure-' : '';
  return {
    keys: [deriveKey(secret, 'cookies').toString('base64url')],
    names: {
      session: `${isSecure ? '__Host-' : ''}nuncio_session`,
      interaction: `${prefix}nuncio_interaction`,
      resume: `${prefix}nuncio_resume`,
    },
    long: { ...options, path: '/' },
    // oidc-provider restricts the paths of these cookies.
    short: options,
  };
}
