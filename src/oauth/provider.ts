/**
 * The authorization server's engine: the certified `oidc-provider`, with our policy (RFC 6749, 7009, 7636, 8414,
 * 9068, 9207, 9700) and our storage.
 */

import type { Configuration, Provider } from 'oidc-provider';
import { type Account, findAccount } from '../accounts/account.ts';
import { accessTokenSeconds } from '../clients/access_token_life.ts';
import type { Config } from '../config/config.ts';
import { deriveKey } from '../crypto/sealing.ts';
import { openidScopes, scopeClaims } from '../grants/scopes.ts';
import { supportedAcrs } from './authentication_context.ts';
import { checkClientAssertion, clockToleranceSeconds, describeAssertionFaults } from './client_assertion.ts';
import { outgoingRequests } from './client_keys.ts';
import { completeKeySet, completeMetadata } from './discovery.ts';
import { dpopAlgorithms } from './dpop.ts';
import { useEndpointLimit } from './endpoint_limit.ts';
import { epochOf, requiresNoPkce, useClients } from './engine_client.ts';
import { useFaults } from './engine_faults.ts';
import { EngineKey } from './engine_key.ts';
import type { EngineOptions } from './engine_options.ts';
import { useSessions } from './engine_session.ts';
import { rotateRefreshToken } from './fapi2.ts';
import { features, resourceIndicators } from './features.ts';
import { grantFor, requireReviewed } from './grant_policy.ts';
import { useInteractionBinding } from './interaction_binding.ts';
import { sessionSeconds } from './login_session.ts';
import { mtlsAuthMethods } from './mtls/mtls.ts';
import { dressForwardingForm, errorRenderer } from './page_rendering.ts';
import { pairwiseSubjects } from './pairwise.ts';
import { registerPasswordGrant } from './password_grant.ts';
import { engineClass, holdSignedOut } from './redirects.ts';
import { createDocumentFinder } from './registration/metadata_document.ts';
import { registrationMetadata, registrationStorages, useRegistration } from './registration/registration.ts';
import { useScopePolicy } from './scope_policy.ts';
import { accessTokenStorage } from './storage/access_token.ts';
import { authorizationCodeStorage } from './storage/authorization_code.ts';
import { deviceCodeStorage } from './storage/device_code.ts';
import { grantRevisionOf, grantStorage, savePendingGrant } from './storage/grant.ts';
import { interactionStorage } from './storage/interaction.ts';
import { currentMemo } from './storage/memo.ts';
import { pushedRequestStorage } from './storage/pushed_request.ts';
import { refreshTokenStorage, refreshTokenValues } from './storage/refresh_token.ts';
import { sessionStorage } from './storage/session.ts';
import { settle } from './storage/settlement.ts';
import { type ModelStorage, toAdapter } from './storage/storage.ts';
import { useProof } from './storage/used_proof.ts';

/** Seconds. */
const authorizationCodeSeconds = 60;
const deviceCodeSeconds = 600;
const idTokenSeconds = 3_600;
const interactionSeconds = 3_600;
/** From the last use, and from the first. */
const refreshTokenSeconds = 30 * 86_400;
const refreshTokenSecondsMax = 180 * 86_400;
const asymmetricAlgorithms: ('RS256' | 'PS256' | 'ES256' | 'Ed25519' | 'EdDSA')[] = [
  'RS256',
  'PS256',
  'ES256',
  'Ed25519',
  'EdDSA',
];
/** The engine takes a DPoP proof whose time is this far ahead: so much longer than it says a used one is remembered. */
const proofAheadSeconds = 300;

export function createProvider(options: EngineOptions): Provider {
  const { db, config, secret, clients } = options;
  const storages = createStorages(options);
  const configuration: Configuration = {
    ...policy(options),
    adapter: (model: string) => toAdapter(model, storages[model] ?? {}),
    cookies: cookies(config, secret),
    jwks: { keys: options.keys.privateKeys.map((key) => new EngineKey(key)) },
    loadExistingGrant: async (ctx) => {
      const cached = await clients.find(ctx.oidc.client?.clientId ?? '');
      if (cached === undefined) return undefined;
      await requireReviewed(db, options.apps, ctx, cached.client);
      return grantFor(db, provider, ctx, cached.client);
    },
    async findAccount(_ctx, id) {
      const account = currentMemo().accounts.get(id) ?? (await findAccount(db, id));
      if (account === undefined) return undefined;
      return { accountId: id, claims: () => claimsOf(account) };
    },
    renderError: errorRenderer(options.pages),
  };
  const Engine = engineClass(options);
  const provider = new Engine(config.baseUrl, configuration);
  // Host and protocol are set by the route that hands a request over, from the base URL alone.
  provider.proxy = true;
  useEndpointLimit(provider, options.limiter);
  provider.use(completeMetadata(config.baseUrl, options.scopes, options.settings));
  provider.use(completeKeySet(options.foreignKeys));
  provider.use(dressForwardingForm(options.pages));
  describeAssertionFaults(provider);
  provider.use(holdSignedOut(options));
  useClients(provider, clients, createDocumentFinder(provider, options), options.settings);
  useRegistration(provider, db, clients);
  if (options.settings.password) registerPasswordGrant(provider, options);
  useScopePolicy(provider, options.scopes);
  useSessions(provider);
  useInteractionBinding(provider, config.baseUrl);
  useFaults(provider);
  const newRefreshToken = refreshTokenValues(secret);
  Object.assign(provider.RefreshToken.prototype, { generateTokenId: newRefreshToken });
  provider.ReplayDetection.unique = (issuer, jti, expiresAt) =>
    useProof(db, issuer, jti, expiresAt + proofAheadSeconds);
  return provider;
}

function createStorages({ db, verifier, config, clients }: EngineOptions): Record<string, ModelStorage> {
  return {
    ...registrationStorages(db, clients),
    Session: sessionStorage(db),
    Interaction: interactionStorage(db),
    Grant: grantStorage(db),
    AuthorizationCode: authorizationCodeStorage(db),
    RefreshToken: refreshTokenStorage(db),
    DeviceCode: deviceCodeStorage(db),
    PushedAuthorizationRequest: pushedRequestStorage(db),
    AccessToken: accessTokenStorage('AccessToken', db, verifier, config.baseUrl),
    ClientCredentials: accessTokenStorage('ClientCredentials', db, verifier, config.baseUrl),
  };
}

/** What is decided, apart from what it is stored in. */
function policy(options: EngineOptions): Configuration {
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
      // What the application says of a sign-in: every id_token has it.
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
      dPoPSigningAlgValues: [...dpopAlgorithms],
    },
    // RFC 7636; S256 is the only method the engine knows. Both the operator and the client must say no.
    pkce: {
      required: (_ctx, client) =>
        !(
          options.settings.withoutPkce &&
          requiresNoPkce(client) &&
          client.tokenEndpointAuthMethod !== 'none'
        ),
    },
    ...pairwiseSubjects(options.secret),
    clientBasedCORS: () => true,
    allowOmittingSingleRegisteredRedirectUri: false,
    clockTolerance: clockToleranceSeconds,
    features: { ...features(options), resourceIndicators: resourceIndicators(options) },
    extraClientMetadata: registrationMetadata(options),
    ...outgoingRequests(options.fetch),
    assertJwtClientAuthClaimsAndHeader: checkClientAssertion,
    formats: {
      customizers: {
        async jwt(_ctx, token, parts) {
          await savePendingGrant(db);
          await settle();
          const payload = parts.payload as Record<string, unknown>;
          const { grantId, accountId } = token as { grantId?: string; accountId?: string };
          // Ours alone: by it a withdrawn grant is known without a query.
          if (grantId !== undefined) payload.grant_id = grantId;
          const revision = grantRevisionOf(grantId);
          if (revision > 0) payload.grant_revision = revision;
          const epoch = epochOf((token as { client?: object }).client);
          if (epoch !== undefined) payload.client_epoch = epoch;
          // Whatever the client knows the user by (pairwise.ts).
          if (accountId !== undefined) payload.sub = accountId;
        },
      },
    },
    // Decided: whatever the scopes, to every client that may refresh, and independent of the browser's session.
    issueRefreshToken: async (_ctx, client) => client.grantTypeAllowed('refresh_token'),
    expiresWithSession: async () => false,
    rotateRefreshToken: (ctx) => rotateRefreshToken(ctx, db, (token) => refreshTokenTtl(ctx, token)),
    // A revoked access token ends alone; everything else that the engine revokes is the grant.
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
      Session: sessionSeconds,
      RefreshToken: refreshTokenTtl,
    },
    interactions: { url: (_ctx, interaction) => `/interaction/${interaction.uid}` },
  };
}

/** OpenID Connect Core section 5.1: what is not known is left out. */
function claimsOf({ id, name, email, isEmailVerified }: Account): { sub: string } {
  return {
    sub: id,
    ...(name === '' ? {} : { name }),
    ...(email === null ? {} : { email }),
    ...(email === null || isEmailVerified === null ? {} : { email_verified: isEmailVerified }),
  };
}

/** What was worked out for the client and the resource that the token is meant for. */
function accessTokenTtl(
  _ctx: unknown,
  token: { resourceServer?: { accessTokenTTL?: number | undefined } | undefined },
): number {
  return token.resourceServer?.accessTokenTTL ?? accessTokenSeconds;
}

/** 30 days from the last use, but not past 180 days from the first. */
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
    // The engine narrows their paths.
    short: options,
  };
}
