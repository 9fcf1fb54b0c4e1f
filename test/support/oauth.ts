/**
 * Accounts, clients, grants and tokens for tests: made in the server's own database, and asked for over HTTP.
 */

import { importJWK, SignJWT } from 'jose';
import { type Account, createAccount } from '../../src/accounts/account.ts';
import { type Client, createClient, type NewClient } from '../../src/clients/client.ts';
import { newId } from '../../src/crypto/ids.ts';
import { createGrant } from '../../src/grants/grant.ts';
import { loadSigningKeys } from '../../src/oauth/signing_keys.ts';
import { type TestServer, testSecret } from './server.ts';

export interface TestAccount extends Account {
  password: string;
}

export interface TestClient extends Client {
  secret: string | null;
  /** The first of its redirect URIs: nobody listens there, answers are read from the redirect itself. */
  redirectUri: string;
}

let counter = 0;

/** A user with a password of its own. */
export async function createTestAccount(
  { db }: Pick<TestServer, 'db'>,
  fields: { email?: string; name?: string; isAdmin?: boolean } = {},
): Promise<TestAccount> {
  counter += 1;
  const password = `password-${newId()}`;
  const email = fields.email ?? `user-${counter}@example.com`;
  const account = await createAccount(db, { ...fields, email, password });
  return { ...account, password };
}

/** Every grant type that is on as shipped; every scope but those of the operator's machines. */
export async function createTestClient(
  { db }: Pick<TestServer, 'db'>,
  fields: Partial<NewClient> = {},
): Promise<TestClient> {
  counter += 1;
  const { client, secret } = await createClient(db, {
    name: `Test App ${counter}`,
    redirectUris: [`https://app-${counter}.example/callback`],
    grantTypes: ['authorization_code', 'refresh_token', 'client_credentials'],
    scopes: [
      'openid',
      'offline_access',
      'read:profile',
      'write:profile',
      'read:posts',
      'write:posts',
      'read:webhooks',
      'write:webhooks',
    ],
    ...fields,
  });
  return { ...client, secret, redirectUri: client.redirectUris[0] ?? '' };
}

export interface MintedToken {
  accessToken: string;
  tokenId: string;
  /** Null for a client that speaks for itself. */
  grantId: string | null;
}

/**
 * An access token signed with the server's real keys, with the grant that it needs: for tests of what a token
 * opens, not of how one is got.
 * @param options without an account the client speaks for itself
 */
export async function mintAccessToken(
  { db, config }: Pick<TestServer, 'db' | 'config'>,
  options: {
    account?: Pick<Account, 'id'>;
    client: Pick<Client, 'id'>;
    scopes: readonly string[];
    grantId?: string;
    /** Changes to the claims, for refusals. */
    claims?: Record<string, unknown>;
    /** Changes to the header, for refusals. */
    header?: Record<string, unknown>;
  },
): Promise<MintedToken> {
  const { account, client, scopes } = options;
  const grantId =
    account === undefined
      ? null
      : (options.grantId ??
        (await createGrant(db, { accountId: account.id, clientId: client.id, scopes: [...scopes] })));
  const { privateKeys } = await loadSigningKeys(db, testSecret);
  const key = privateKeys.find((candidate) => candidate.alg === 'ES256');
  if (key === undefined) throw new Error('the server has no ES256 key');
  const tokenId = newId();
  const now = Math.floor(Date.now() / 1_000);
  const accessToken = await new SignJWT({
    iss: config.baseUrl,
    aud: config.baseUrl,
    sub: account?.id ?? client.id,
    client_id: client.id,
    ...(grantId === null ? {} : { grant_id: grantId }),
    scope: scopes.join(' '),
    jti: tokenId,
    iat: now,
    exp: now + 900,
    ...options.claims,
  })
    .setProtectedHeader({ alg: 'ES256', typ: 'at+jwt', kid: key.kid as string, ...options.header })
    .sign(await importJWK(key, 'ES256'));
  return { accessToken, tokenId, grantId };
}
