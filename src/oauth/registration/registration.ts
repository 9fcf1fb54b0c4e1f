/**
 * Dynamic client registration and its management (RFC 7591, RFC 7592): oidc-provider's implementation with our policy,
 * limits and storage. A response never repeats a secret.
 */

import type { Configuration, KoaContextWithOIDC, Provider } from 'oidc-provider';
import type { ClientCache } from '../../clients/client_cache.ts';
import { newSecret } from '../../crypto/digest.ts';
import { newId } from '../../crypto/ids.ts';
import type { Database } from '../../database/database.ts';
import { isOfOtherPage } from '../endpoint_request.ts';
import { isTemporary, respondUnavailable } from '../error_responses.ts';
import { isUnknownSecret, storedClient } from '../provider_client.ts';
import type { ProviderOptions } from '../provider_options.ts';
import type { OAuthSettings } from '../settings.ts';
import type { ModelStorage } from '../storage/storage.ts';
import { accountGrantTypeSet, accountRoute } from './account_app.ts';
import { clientStorage, registrationScopes, setRegistrationScopes } from './client_storage.ts';
import { initialAccessTokenStorage } from './initial_access_token.ts';
import { applyDocumentPolicy, serverMembers } from './metadata_document.ts';
import { applyRegistrationPolicy, type Metadata, type RegistrationPolicy } from './policy.ts';
import { registrationAccessTokenStorage } from './registration_access_token.ts';
import { countRegistration, forgiveRegistration } from './registration_limit.ts';

export const registrationPath = '/oauth/register';

export function registrationFeatures({ registration }: OAuthSettings) {
  const enabled = registration !== 'off';
  return {
    registration: {
      enabled,
      initialAccessToken: registration === 'token',
      idFactory: () => newId(),
      secretFactory: async () => newSecret(),
    },
    registrationManagement: { enabled, rotateRegistrationAccessToken: true },
  } satisfies Configuration['features'];
}

/**
 * oidc-provider calls its validator once for each of these members. The call for the first member applies the policy to the
 * whole metadata.
 */
const extraMembers = ['software_id', 'software_version', ...serverMembers];

export function registrationMetadata({
  scopes,
  config,
}: ProviderOptions): NonNullable<Configuration['extraClientMetadata']> {
  const { baseUrl, insecureSubscribers: allowLoopback } = config;
  const policy: RegistrationPolicy = { catalogue: scopes, allowLoopback, baseUrl };
  return {
    properties: extraMembers,
    validator(ctx, member, _value, schema) {
      if (member !== extraMembers[0] || ctx === storedClient) return;
      // The validated metadata, whose members oidc-provider's type omits.
      const metadata = schema as unknown as Metadata;
      // Without a request context, oidc-provider reads a metadata document.
      if (ctx === undefined) return applyDocumentPolicy(metadata, policy);
      // RFC 7591 section 2: unknown members of a registration are ignored.
      for (const name of serverMembers) delete metadata[name];
      const { route, body } = ctx.oidc as { route: string; body: unknown };
      const accountPolicy = { grantTypes: accountGrantTypeSet, keepsLogo: true };
      const overrides = route === accountRoute ? accountPolicy : {};
      setRegistrationScopes(
        ctx,
        applyRegistrationPolicy(body as Metadata, metadata, { ...policy, ...overrides }),
      );
    },
  };
}

export function registrationStorages(db: Database, clients: ClientCache): Record<string, ModelStorage> {
  return {
    Client: clientStorage(db, clients),
    InitialAccessToken: initialAccessTokenStorage(db),
    RegistrationAccessToken: registrationAccessTokenStorage(db),
  };
}

/** Limits the number of registrations, and completes oidc-provider's responses. */
export function useRegistration(provider: Provider, db: Database, clients: ClientCache): void {
  provider.use((ctx: KoaContextWithOIDC, next: () => Promise<void>) => {
    const isRegistration = ctx.path === registrationPath || ctx.path.startsWith(`${registrationPath}/`);
    return isRegistration ? registerSafely(ctx, next) : next();
  });

  /** Handles database errors of this middleware, which oidc-provider does not see. */
  async function registerSafely(ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> {
    try {
      await register(ctx, next);
    } catch (error) {
      if (!isTemporary(error)) throw error;
      respondUnavailable(ctx);
    }
  }

  async function register(ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> {
    const isNew = ctx.path === registrationPath && ctx.method === 'POST';
    const isOfPage = isOfOtherPage(ctx.req);
    const retryAfter = isNew ? await countRegistration(db, ctx.ip, isOfPage) : undefined;
    if (retryAfter !== undefined) return refuseTooMany(ctx, retryAfter);
    await next();
    if (isNew && ctx.status !== 201) await forgiveRegistration(db, isOfPage);
    if (ctx.status >= 300 || typeof ctx.body !== 'object' || ctx.body === null) return;
    const response = ctx.body as Metadata;
    if (isUnknownSecret(String(response.client_secret))) {
      delete response.client_secret;
      delete response.client_secret_expires_at;
    } else if (response.client_secret !== undefined) {
      // RFC 7591 section 3.2.1: required beside a secret; 0 means that the secret does not expire.
      response.client_secret_expires_at = 0;
    }
    const scopes =
      registrationScopes(ctx) ?? (await clients.find(String(response.client_id)))?.client.scopes ?? [];
    response.scope = scopes.join(' ');
  }
}

function refuseTooMany(ctx: KoaContextWithOIDC, retryAfter: number): void {
  ctx.status = 429;
  ctx.set('retry-after', String(retryAfter));
  ctx.set('cache-control', 'no-store');
  ctx.body = {
    error: 'temporarily_unavailable',
    error_description: 'too many registrations, try again later',
  };
}
