/**
 * The authorization server as the rest of the house sees it: what it registers on the application and the guard
 * that it gives to everything that serves a protected resource.
 */

import type { FastifyInstance } from 'fastify';
import type { Logger } from 'pino';
import { ClientCache } from '../clients/client_cache.ts';
import type { Config } from '../config/config.ts';
import type { Database } from '../database/database.ts';
import type { Notifications } from '../database/notifications.ts';
import type { Guard } from '../grants/principal.ts';
import type { ScopeCatalogue } from '../grants/scopes.ts';
import { WithdrawalList } from '../grants/withdrawals.ts';
import { AccessTokenVerifier } from './access_token.ts';
import { createGuard } from './guard.ts';
import { registerProtectedResource } from './protected_resource.ts';
import { ensureSigningKeys, loadSigningKeys } from './signing_keys.ts';

export interface AuthorizationOptions {
  app: FastifyInstance;
  db: Database;
  /** Not yet started: what listens is added here. */
  notifications: Notifications;
  config: Config;
  secret: Buffer;
  scopes: ScopeCatalogue;
  logger: Logger;
}

export interface Authorization {
  guard: Guard;
  clients: ClientCache;
}

export async function createAuthorization(options: AuthorizationOptions): Promise<Authorization> {
  const { app, db, notifications, config, secret, scopes } = options;
  await ensureSigningKeys(db, secret);
  const keys = await loadSigningKeys(db, secret);
  const clients = new ClientCache(db, notifications);
  const withdrawals = new WithdrawalList(db, notifications);
  const verifier = new AccessTokenVerifier(config.baseUrl, keys.publicKeys);
  registerProtectedResource(app, config.baseUrl, scopes);
  return { guard: createGuard(config.baseUrl, verifier, withdrawals), clients };
}
