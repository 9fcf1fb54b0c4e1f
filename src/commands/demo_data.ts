/**
 * The demo user and the demo client of development mode, created once. The client's secret is derived from the
 * deployment's secret, so that every start can print it although only its digest is stored.
 */

import { createAccount, findAccountByEmail } from '../accounts/account.ts';
import { createClient, findClient } from '../clients/client.ts';
import { type Config, isLoopbackHost } from '../config/config.ts';
import { deriveKey } from '../crypto/sealing.ts';
import type { Database } from '../database/database.ts';

export const demoUser = { email: 'demo@example.com', password: 'demo-password', name: 'Demo User' };
export const demoClientId = 'demo';

/**
 * Creates the demo data only on loopback, because its password is public.
 * @param withUser whether accounts sign in here, and not in the operator's application
 * @returns the demo client's secret; null if the server is not restricted to loopback
 */
export async function ensureDemo(
  db: Database,
  config: Config,
  secret: Buffer,
  withUser: boolean,
): Promise<string | null> {
  const host = config.host.includes(':') ? `[${config.host}]` : config.host;
  if (!isLoopbackHost(host) || !isLoopbackHost(new URL(config.baseUrl).hostname)) return null;
  if (withUser && (await findAccountByEmail(db, demoUser.email)) === undefined)
    await createAccount(db, demoUser);
  const clientSecret = deriveKey(secret, 'demo client secret').toString('base64url');
  if ((await findClient(db, demoClientId)) === undefined) await createDemoClient(db, clientSecret);
  return clientSecret;
}

async function createDemoClient(db: Database, secret: string): Promise<void> {
  await createClient(db, {
    id: demoClientId,
    name: 'Demo app',
    redirectUris: ['http://127.0.0.1/callback', 'http://localhost/callback'],
    grantTypes: ['authorization_code', 'refresh_token', 'client_credentials'],
    scopes: [
      ...['openid', 'profile', 'email', 'offline_access'],
      ...['read:profile', 'read:posts', 'write:posts'],
      ...['read:webhooks', 'write:webhooks', 'write:events'],
    ],
    maySubscribe: true,
    secret,
  });
}
