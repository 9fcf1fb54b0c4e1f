/**
 * Clients as the engine stores them when an app registers, changes or deletes itself. They are looked up elsewhere
 * (engine_client.ts).
 */

import { errors, type KoaContextWithOIDC, Provider } from 'oidc-provider';
import { type AuthMethod, createClient } from '../../clients/client.ts';
import type { ClientCache } from '../../clients/client_cache.ts';
import { replaceRegisteredClient, type SelfDescription } from '../../clients/self_registered.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { endClient } from '../../grants/grant.ts';
import { isUnknownSecret } from '../engine_client.ts';
import type { ModelStorage } from '../storage/storage.ts';
import { useInitialAccessToken } from './initial_access_token.ts';
import type { Metadata } from './policy.ts';

/** Scopes of the registration under way, which the engine's own metadata does not carry. */
const scopesOf = new WeakMap<KoaContextWithOIDC, readonly string[]>();

export function keepScopes(ctx: KoaContextWithOIDC, scopes: readonly string[]): void {
  scopesOf.set(ctx, scopes);
}

export function keptScopes(ctx: KoaContextWithOIDC): readonly string[] | undefined {
  return scopesOf.get(ctx);
}

/** Metadata that has columns of its own, is made by us, or is never kept. */
const apart = new Set([
  ...['client_id', 'client_id_issued_at', 'client_name', 'client_secret', 'client_secret_expires_at'],
  ...['grant_types', 'redirect_uris', 'response_types', 'scope', 'token_endpoint_auth_method'],
]);

/**
 * @param metadata as the engine has checked it
 * @param nameless what it is called where it does not say
 */
export function toSelfDescription(
  metadata: Metadata,
  scopes: readonly string[],
  nameless: string,
): SelfDescription {
  return {
    name: (metadata.client_name as string | undefined) ?? nameless,
    redirectUris: metadata.redirect_uris as string[],
    grantTypes: metadata.grant_types as string[],
    scopes,
    authMethod: metadata.token_endpoint_auth_method as AuthMethod,
    metadata: Object.fromEntries(Object.entries(metadata).filter(([name]) => !apart.has(name))),
  };
}

const namelessApp = 'An app without a name';

export function clientStorage(db: Database, clients: ClientCache): ModelStorage {
  return {
    // Asked by the engine before it fetches a metadata document; what is stored was looked up before.
    async find() {
      return undefined;
    },
    async upsert(id, payload) {
      const ctx = Provider.ctx as KoaContextWithOIDC;
      const metadata = payload as Metadata;
      const description = toSelfDescription(metadata, keptScopes(ctx) ?? [], namelessApp);
      const secret = newSecretOf(ctx, metadata);
      if (ctx.oidc.route === 'registration') {
        await db.transaction().execute((tx) => register(tx, ctx, id, description, secret));
      } else {
        const replaced = await db
          .transaction()
          .execute((tx) => replaceRegisteredClient(tx, id, description, secret));
        if (replaced === undefined) throw new errors.InvalidToken('the client is gone');
      }
      clients.forget(id);
    },
    async destroy(id) {
      await endClient(db, id);
      clients.forget(id);
    },
  };
}

async function register(
  tx: Transaction,
  ctx: KoaContextWithOIDC,
  id: string,
  description: SelfDescription,
  secret: string | undefined,
): Promise<void> {
  const initial = ctx.oidc.entities.InitialAccessToken;
  if (initial !== undefined && !(await useInitialAccessToken(tx, initial.jti))) {
    throw new errors.InvalidToken('the initial access token was used up');
  }
  await createClient(tx, {
    ...description,
    id,
    origin: 'registration',
    ...(secret === undefined ? {} : { secret }),
  });
}

/** Neither the engine's placeholder nor the one that was sent along with a change. */
function newSecretOf(ctx: KoaContextWithOIDC, metadata: Metadata): string | undefined {
  const secret = metadata.client_secret;
  if (typeof secret !== 'string' || isUnknownSecret(secret)) return undefined;
  const isOld = ctx.oidc.route === 'client_update' && secret === ctx.oidc.body?.client_secret;
  return isOld ? undefined : secret;
}
