/**
 * oidc-provider's `features` configuration, with the policy of each feature.
 */

import { type Configuration, errors, type KoaContextWithOIDC } from 'oidc-provider';
import { accessTokenSeconds, isAccessTokenLifetime } from '../clients/access_token_lifetime.ts';
import { isFapi2Client } from '../clients/metadata.ts';
import { deriveKey } from '../crypto/sealing.ts';
import { introspectionScope, openidScopes } from '../grants/scopes.ts';
import { refuseUnmetAcr, supportedAcrs } from './authentication_context.ts';
import { requireNonce } from './fapi2.ts';
import { mtlsFeature } from './mtls/mtls.ts';
import type { ProviderOptions } from './provider_options.ts';
import { documentFeature } from './registration/metadata_document.ts';
import { registrationFeatures } from './registration/registration.ts';
import { checkRequestObject } from './request_object.ts';
import { applyScopePolicy } from './scope_policy.ts';
import type { AccessTokenAlgorithm, ResourceSettings } from './settings.ts';
import { isStorableJson } from './storage/storage.ts';

type Features = NonNullable<Configuration['features']>;

export function features(options: ProviderOptions): Features {
  const { secret, settings, clients, pages } = options;
  return {
    devInteractions: { enabled: false },
    // ProviderKey (provider_key.ts) signs.
    externalSigningSupport: { enabled: true, ack: 'experimental-01' },
    clientCredentials: { enabled: true },
    userinfo: { enabled: true },
    // OpenID Connect Core section 5.3.2, for clients registered with userinfo_signed_response_alg.
    jwtUserinfo: { enabled: true },
    ...registrationFeatures(settings),
    ...documentFeature(options),
    ...mtlsFeature(settings, options.config, options.readCertificate),
    claimsParameter: {
      enabled: true,
      async assertClaimsParameter(_ctx, claims) {
        if (!isStorableJson(claims))
          throw new errors.InvalidRequest(
            'the claims parameter contains characters or numbers that cannot be stored',
          );
        refuseUnmetAcr(claims, supportedAcrs(options.login, options.config.baseUrl));
      },
    },
    // RFC 9449. storage/used_proof.ts stores the used proofs.
    dPoP: {
      enabled: true,
      nonceSecret: deriveKey(secret, 'dpop-nonce'),
      requireNonce: (ctx) => requireNonce(ctx, settings.dpopNonce),
      allowReplay: false,
    },
    // RFC 9126.
    pushedAuthorizationRequests: {
      enabled: true,
      requirePushedAuthorizationRequests: settings.requirePushedRequests,
    },
    // RFC 9101: signed request objects only, with the keys that the client registered.
    requestObjects: { enabled: true, assertJwtClaimsAndHeader: checkRequestObject },
    // RFC 7009 section 2.1: a client can revoke only its own tokens.
    revocation: {
      enabled: true,
      allowedPolicy(_ctx, client, token) {
        if (client.clientId === token.clientId) return true;
        throw new errors.InvalidGrant('the token was not issued to this client');
      },
    },
    // RFC 7662: an authenticated client can inspect its own tokens, a resource server the access tokens of all clients.
    introspection: {
      enabled: true,
      async allowedPolicy(_ctx, { clientId, tokenEndpointAuthMethod }, token) {
        if (tokenEndpointAuthMethod === 'none') return false;
        if (clientId === token.clientId) return true;
        const cached = await clients.find(clientId);
        return token.kind !== 'RefreshToken' && cached?.client.scopes.includes(introspectionScope) === true;
      },
    },
    // RFC 8628.
    deviceFlow: {
      enabled: true,
      charset: 'base-20',
      mask: '****-****',
      async userCodeInputSource(ctx, _form, _out, error) {
        if (error !== undefined && isRefusal(error)) return html(ctx, pages.deviceRefused());
        html(ctx, pages.codeInput(deviceForm(ctx), error === undefined ? null : codeError(error)));
      },
      async userCodeConfirmSource(ctx, _form, client, _device, userCode) {
        html(ctx, pages.codeConfirmation(deviceForm(ctx), client.clientName ?? client.clientId, userCode));
      },
      async successSource(ctx) {
        const client = ctx.oidc.client;
        html(ctx, pages.deviceSuccess(client?.clientName ?? client?.clientId ?? ''));
      },
    },
    // logout/notifier.ts sends the logout tokens.
    backchannelLogout: { enabled: true },
    rpInitiatedLogout: {
      enabled: true,
      async logoutSource(ctx) {
        html(ctx, pages.logout(ctx.oidc.urlFor('end_session_confirm'), formToken(ctx)));
      },
      async postLogoutSuccessSource(ctx) {
        // oidc-provider also redirects here after "Stay signed in".
        const { accountId } = await ctx.oidc.provider.Session.get(ctx);
        html(ctx, pages.loggedOut(accountId !== undefined));
      },
    },
  };
}

/** RFC 8707: the server's own API is the default resource; the operator declares others in `oauth.resources`. */
export function resourceIndicators(options: ProviderOptions): NonNullable<Features['resourceIndicators']> {
  const { config, clients, scopes, settings } = options;
  const resourceScopes = [...scopes.keys(), ...openidScopes.map((scope) => scope.name)].join(' ');
  const resources = new Map<string, ResourceSettings>([[config.baseUrl, { url: config.baseUrl }]]);
  for (const entry of settings.resources) {
    const declared = typeof entry === 'string' ? { url: entry } : entry;
    resources.set(declared.url, declared);
  }
  // `privateKeys` lists the active signing key of each algorithm first.
  const signingKeyId = (algorithm: AccessTokenAlgorithm) =>
    options.keys.privateKeys.find((key) => key.alg === algorithm)?.kid ?? '';
  return {
    enabled: true,
    defaultResource: (_ctx, _client, oneOf) => (oneOf === undefined ? config.baseUrl : (oneOf[0] as string)),
    useGrantedResource: () => true,
    async getResourceServerInfo(ctx, resource, { clientId }) {
      const declared = resources.get(resource);
      const cached = declared && (await clients.find(clientId));
      if (declared === undefined || cached === undefined) throw new errors.InvalidTarget();
      applyScopePolicy(ctx, cached, scopes);
      const { metadata } = cached.client;
      const isPairwise = metadata.subject_type === 'pairwise';
      const format = isPairwise
        ? 'opaque'
        : (metadata.access_token_format ?? declared.accessTokenFormat ?? settings.accessTokenFormat);
      // FAPI 2.0 section 5.4 does not allow RS256.
      const algorithm = isFapi2Client(cached.client)
        ? 'ES256'
        : (declared.accessTokenAlgorithm ?? settings.accessTokenAlgorithm);
      const lives = [metadata.access_token_seconds, declared.accessTokenSeconds].filter(
        isAccessTokenLifetime,
      );
      return {
        scope: resourceScopes,
        audience: resource,
        accessTokenTTL: Math.min(accessTokenSeconds, ...lives),
        accessTokenFormat: format === 'opaque' ? 'opaque' : 'jwt',
        jwt: { sign: { alg: algorithm, kid: signingKeyId(algorithm) } },
      };
    },
  };
}

function html(ctx: KoaContextWithOIDC, text: string): void {
  ctx.type = 'html';
  ctx.body = text;
}

function deviceForm(ctx: KoaContextWithOIDC): { action: string; xsrf: string } {
  return { action: ctx.oidc.urlFor('code_verification'), xsrf: formToken(ctx) };
}

/** The XSRF token of oidc-provider's forms, which oidc-provider keeps in the session. */
function formToken(ctx: KoaContextWithOIDC): string {
  return String((ctx.oidc.session?.state as { secret?: string } | undefined)?.secret ?? '');
}

/** Whether the user rejected the user code or the consent. */
function isRefusal(error: Error): boolean {
  return error.name === 'AbortedError' || error.name === 'AccessDenied';
}

function codeError(error: Error & { userCode?: string }): string {
  if (error.name === 'NoCodeError') return 'Enter the code that your device shows.';
  if (error.name === 'ExpiredError') return 'This code has expired. Start again on your device.';
  if (error.name === 'AlreadyUsedError') return 'This code has been used. Start again on your device.';
  if ((error as { status?: number }).status === 429)
    return 'Too many wrong codes. Try again in a few minutes.';
  if (error.userCode !== undefined || error.name === 'NotFoundError')
    return 'This code is not valid. Check the code on your device.';
  return 'Something went wrong. Start again on your device.';
}
