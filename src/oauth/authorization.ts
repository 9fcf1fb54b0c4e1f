/**
 * The authorization server as the rest of the house sees it: what it registers on the application and the guard
 * that it gives to everything that serves a protected resource.
 */

import type { FastifyInstance } from 'fastify';
import type { Provider } from 'oidc-provider';
import type { Logger } from 'pino';
import { ClientCache } from '../clients/client_cache.ts';
import type { Config } from '../config/config.ts';
import type { Database } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';
import type { Guard } from '../grants/principal.ts';
import type { ScopeCatalogue } from '../grants/scopes.ts';
import { WithdrawalList } from '../grants/withdrawals.ts';
import { AccessTokenVerifier } from './access_token.ts';
import { registerAuthorizeForm } from './authorize_form.ts';
import { createProofChecker } from './dpop.ts';
import type { EnginePages } from './engine_options.ts';
import { createGuard } from './guard.ts';
import { mountProvider } from './mount.ts';
import { registerProtectedResource } from './protected_resource.ts';
import { createProvider } from './provider.ts';
import type { OAuthSettings } from './settings.ts';
import { ensureSigningKeys, loadSigningKeys } from './signing_keys.ts';
import { opaqueTokenLookup } from './storage/access_token.ts';

export interface AuthorizationOptions {
  app: FastifyInstance;
  db: Database;
  /** Not yet started: what listens is added here. */
  notifications: Notifications;
  config: Config;
  secret: Buffer;
  scopes: ScopeCatalogue;
  logger: Logger;
  pages: EnginePages;
  settings: OAuthSettings;
}

export interface Authorization {
  guard: Guard;
  clients: ClientCache;
  /** The engine of the moment, for the pages. */
  provider: () => Provider;
}

export async function createAuthorization(options: AuthorizationOptions): Promise<Authorization> {
  const { app, db, notifications, config, secret, scopes, settings } = options;
  await ensureSigningKeys(db, secret);
  const keys = await loadSigningKeys(db, secret);
  const clients = new ClientCache(db, notifications);
  const withdrawals = new WithdrawalList(db, notifications);
  const verifier = new AccessTokenVerifier(config.baseUrl, keys.publicKeys, opaqueTokenLookup(db));
  const proofs = createProofChecker(db, secret, settings.dpopNonce);
  const provider = createProvider({ ...options, keys, clients, verifier });
  registerProtectedResource(app, config.baseUrl, scopes);
  registerAuthorizeForm(app);
  mountProvider(app, config.baseUrl, () => provider, settings);
  const guard = createGuard({
    baseUrl: config.baseUrl,
    verifier,
    withdrawals,
    proofs,
    certificateThumbprint: () => null,
  });
  return { guard, clients, provider: () => provider };
}
