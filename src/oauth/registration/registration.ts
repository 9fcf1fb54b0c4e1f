/**
 * Dynamic client registration and its management (RFC 7591, RFC 7592): the engine's, with our policy, limits and
 * storage, and answers that never show a secret twice.
 */

import type { Configuration, KoaContextWithOIDC, Provider } from 'oidc-provider';
import type { ClientCache } from '../../clients/client_cache.ts';
import { newSecret } from '../../crypto/digest.ts';
import { newId } from '../../crypto/ids.ts';
import { type Database, isDatabaseUnavailable } from '../../database/database.ts';
import { isUnknownSecret, storedClient } from '../engine_client.ts';
import { answerUnavailable } from '../engine_faults.ts';
import type { EngineOptions } from '../engine_options.ts';
import type { OAuthSettings } from '../settings.ts';
import type { ModelStorage } from '../storage/storage.ts';
import { accountGrantTypeSet, accountRoute } from './account_app.ts';
import { clientStorage, keepScopes, keptScopes } from './client_storage.ts';
import { initialAccessTokenStorage } from './initial_access_token.ts';
import { applyDocumentPolicy, serverMembers } from './metadata_document.ts';
import { applyRegistrationPolicy, type Metadata, type RegistrationPolicy } from './policy.ts';
import { registrationAccessTokenStorage } from './registration_access_token.ts';
import { countRegistration, forgiveRegistration } from './throttle.ts';

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
 * The engine asks about each of these while it reads metadata: the first is where the policy is applied to what an
 * app sends of itself.
 */
const extraMembers = ['software_id', 'software_version', ...serverMembers];

export function registrationMetadata({
  scopes,
  config,
}: EngineOptions): NonNullable<Configuration['extraClientMetadata']> {
  const { baseUrl, insecureSubscribers: allowLoopback } = config;
  const policy: RegistrationPolicy = { catalogue: scopes, allowLoopback, baseUrl };
  return {
    properties: extraMembers,
    validator(ctx, member, _value, schema) {
      if (member !== extraMembers[0] || ctx === storedClient) return;
      const metadata = schema as unknown as Metadata;
      // Without a request the engine reads a document.
      if (ctx === undefined) return applyDocumentPolicy(metadata, policy);
      // RFC 7591 section 2: what the server does not know in a registration is ignored.
      for (const name of serverMembers) delete metadata[name];
      const { route, body } = ctx.oidc as { route: string; body: unknown };
      const ofAccounts = { grantTypes: accountGrantTypeSet, keepsLogo: true };
      const more = route === accountRoute ? ofAccounts : {};
      keepScopes(ctx, applyRegistrationPolicy(body as Metadata, metadata, { ...policy, ...more }));
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

/** Limits how many are registered, and says in each answer what the engine does not know. */
export function useRegistration(provider: Provider, db: Database, clients: ClientCache): void {
  provider.use((ctx: KoaContextWithOIDC, next: () => Promise<void>) => {
    const isRegistration = ctx.path === registrationPath || ctx.path.startsWith(`${registrationPath}/`);
    return isRegistration ? registerSafely(ctx, next) : next();
  });

  /** What fails here is not seen by the engine, which answers for the rest. */
  async function registerSafely(ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> {
    try {
      await register(ctx, next);
    } catch (error) {
      if (!isDatabaseUnavailable(error)) throw error;
      answerUnavailable(ctx);
    }
  }

  async function register(ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> {
    const isNew = ctx.path === registrationPath && ctx.method === 'POST';
    const retryAfter = isNew ? await countRegistration(db, ctx.ip) : undefined;
    if (retryAfter !== undefined) return refuseTooMany(ctx, retryAfter);
    await next();
    if (isNew && ctx.status !== 201) await forgiveRegistration(db);
    if (ctx.status >= 300 || typeof ctx.body !== 'object' || ctx.body === null) return;
    const answer = ctx.body as Metadata;
    if (isUnknownSecret(String(answer.client_secret))) {
      delete answer.client_secret;
      delete answer.client_secret_expires_at;
    } else if (answer.client_secret !== undefined) {
      // RFC 7591 section 3.2.1: required beside a secret; 0 is never.
      answer.client_secret_expires_at = 0;
    }
    const scopes = keptScopes(ctx) ?? (await clients.find(String(answer.client_id)))?.client.scopes ?? [];
    answer.scope = scopes.join(' ');
  }
}

function refuseTooMany(ctx: KoaContextWithOIDC, retryAfter: number): void {
  ctx.status = 429;
  ctx.set('retry-after', String(retryAfter));
  ctx.set('cache-control', 'no-store');
  ctx.body = {
    error: 'temporarily_unavailable',
    error_description: 'too many apps were registered, try again later',
  };
}
