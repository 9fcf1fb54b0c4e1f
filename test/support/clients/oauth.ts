/** Accounts, clients, grants and tokens for tests, created in the server's database or obtained over HTTP. */

import { createHash, randomBytes } from 'node:crypto';
import { hashSync } from '@node-rs/argon2';
import { decodeJwt, importJWK, SignJWT } from 'jose';
import { sql } from 'kysely';
import {
  type Account,
  findAccount,
  type LocalAccount,
  normalizeEmail,
} from '../../../src/accounts/account.ts';
import { type Client, createClient, findClient, type NewClient } from '../../../src/clients/client.ts';
import { newId } from '../../../src/crypto/ids.ts';
import { createGrant } from '../../../src/grants/grant.ts';
import { loadSigningKeys } from '../../../src/oauth/signing_keys.ts';
import { type Page, TestBrowser } from '../browser/browser.ts';
import { type TestServer, testSecret } from '../servers/server.ts';

export interface TestAccount extends LocalAccount {
  password: string;
}

export interface TestClient extends Client {
  secret: string | null;
  /** The first of its redirect URIs. Nothing listens there; tests read the redirect itself. */
  redirectUri: string;
}

let counter = 0;

/** Creates a user with a password, as `createAccount` does, but with a hash that costs little. */
export async function createTestAccount(
  { db }: Pick<TestServer, 'db'>,
  fields: { email?: string; name?: string; isAdmin?: boolean } = {},
): Promise<TestAccount> {
  counter += 1;
  const password = `password-${newId()}`;
  const email = fields.email ?? `user-${counter}@example.com`;
  const name = fields.name ?? email.slice(0, email.indexOf('@'));
  const id = newId();
  await sql`
    insert into accounts (id, email, name, password_hash, is_admin)
    values (${id}, ${normalizeEmail(email)}, ${name}, ${quickHash(password)}, ${fields.isAdmin ?? false})`.execute(
    db,
  );
  return { ...((await findAccount(db, id)) as LocalAccount), password };
}

/** A hash says what it costs to make and to verify. This one costs the least that Argon2 allows, and not forty milliseconds. */
function quickHash(password: string): string {
  return hashSync(password, { memoryCost: 8, timeCost: 1, parallelism: 1 });
}

/**
 * Creates a client with every grant type that is enabled by default and that its authentication method permits, and
 * with every scope except those of the operator's machines.
 */
export async function createTestClient(
  { db }: Pick<TestServer, 'db'>,
  fields: Partial<NewClient> = {},
): Promise<TestClient> {
  counter += 1;
  const { client, secret } = await createClient(db, {
    name: `Test App ${counter}`,
    redirectUris: [`https://app-${counter}.example/callback`],
    grantTypes: [
      'authorization_code',
      'refresh_token',
      ...(fields.authMethod === 'none' ? [] : ['client_credentials']),
    ],
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
  /** Null for a client that acts for itself. */
  grantId: string | null;
}

/**
 * Mints an access token with the server's real keys, and the grant that it needs. For tests of what a token permits,
 * not of how it is obtained.
 * @param options without an account the client acts for itself
 */
export async function mintAccessToken(
  { db, config }: Pick<TestServer, 'db' | 'config'>,
  options: {
    account?: Pick<Account, 'id'>;
    client: Pick<Client, 'id'>;
    scopes: readonly string[];
    grantId?: string;
    /** Changes to the claims, for tests of rejected tokens. */
    claims?: Record<string, unknown>;
    /** The signature algorithm. Default: ES256. */
    algorithm?: 'ES256' | 'RS256';
    /** Changes to the header, for tests of rejected tokens. */
    header?: Record<string, unknown>;
  },
): Promise<MintedToken> {
  const { account, client, scopes, algorithm = 'ES256' } = options;
  const grantId =
    account === undefined
      ? null
      : (options.grantId ??
        (await createGrant(db, { accountId: account.id, clientId: client.id, scopes: [...scopes] })));
  const { privateKeys } = await loadSigningKeys(db, testSecret);
  const key = privateKeys.find((candidate) => candidate.alg === algorithm);
  if (key === undefined) throw new Error(`the server has no ${algorithm} key`);
  const tokenId = newId();
  const now = Math.floor(Date.now() / 1_000);
  const epoch = (await findClient(db, client.id))?.epoch;
  const accessToken = await new SignJWT({
    iss: config.baseUrl,
    aud: config.baseUrl,
    sub: account?.id ?? client.id,
    client_id: client.id,
    ...(epoch === undefined ? {} : { client_epoch: epoch }),
    ...(grantId === null ? {} : { grant_id: grantId }),
    scope: scopes.join(' '),
    jti: tokenId,
    iat: now,
    exp: now + 900,
    ...options.claims,
  })
    .setProtectedHeader({ alg: algorithm, typ: 'at+jwt', kid: key.kid as string, ...options.header })
    .sign(await importJWK(key, algorithm));
  return { accessToken, tokenId, grantId };
}

/** Creates a verifier and its challenge (RFC 7636). */
export function createPkce(): { verifier: string; challenge: string } {
  const verifier = randomBytes(32).toString('base64url');
  return { verifier, challenge: createHash('sha256').update(verifier).digest('base64url') };
}

/** Posts a form to the token endpoint or a similar one. The client authenticates with its registered method. */
export async function postForm(
  server: Pick<TestServer, 'baseUrl'>,
  path: string,
  client: Pick<TestClient, 'id' | 'secret' | 'authMethod'> | null,
  form: Record<string, string>,
  headers: Record<string, string> = {},
): Promise<{ status: number; headers: Headers; body: Record<string, unknown> }> {
  const body = new URLSearchParams(form);
  const sent = new Headers(headers);
  if (client?.authMethod === 'none') body.set('client_id', client.id);
  if (client?.authMethod === 'client_secret_post') {
    body.set('client_id', client.id);
    body.set('client_secret', client.secret ?? '');
  }
  if (client?.authMethod === 'client_secret_basic') {
    sent.set('authorization', basic(client.id, client.secret ?? ''));
  }
  const response = await fetch(`${server.baseUrl}${path}`, { method: 'POST', headers: sent, body });
  const text = await response.text();
  const isJson = response.headers.get('content-type')?.includes('json') && text !== '';
  return { status: response.status, headers: response.headers, body: isJson ? JSON.parse(text) : {} };
}

/** RFC 6749 section 2.3.1: both parts are form-encoded first. */
export function basic(id: string, secret: string): string {
  const encode = (text: string) => new URLSearchParams([['', text]]).toString().slice(1);
  return `Basic ${Buffer.from(`${encode(id)}:${encode(secret)}`).toString('base64')}`;
}

/** Obtains a token over HTTP for a client that acts for itself. */
export async function clientToken(
  server: Pick<TestServer, 'baseUrl'>,
  client: TestClient,
  scopes: readonly string[],
): Promise<string> {
  const form = { grant_type: 'client_credentials', scope: scopes.join(' ') };
  const { status, body } = await postForm(server, '/oauth/token', client, form);
  if (status !== 200) throw new Error(`client credentials: ${status} ${JSON.stringify(body)}`);
  return body.access_token as string;
}

export interface AuthorizeOptions {
  account: TestAccount;
  client: TestClient;
  scopes: readonly string[];
  /** Parameters of the authorization request to add or replace; undefined omits one. */
  parameters?: Record<string, string | undefined>;
  /** A browser to reuse, for a user who is already signed in. */
  browser?: TestBrowser;
}

export interface AuthorizationResponse {
  /** The final redirect to the client. */
  redirect: URL;
  code: string;
  verifier: string;
  browser: TestBrowser;
}

/** Returns the URL of an authorization request. */
export function authorizationUrl(
  server: Pick<TestServer, 'baseUrl'>,
  client: Pick<TestClient, 'id' | 'redirectUri'>,
  parameters: Record<string, string | undefined>,
): string {
  const url = new URL('/oauth/authorize', server.baseUrl);
  const all = {
    client_id: client.id,
    redirect_uri: client.redirectUri,
    response_type: 'code',
    ...parameters,
  };
  for (const [name, value] of Object.entries(all)) if (value !== undefined) url.searchParams.set(name, value);
  return url.href;
}

/** Signs the user in and consents, by submitting the forms without a real browser. */
export async function obtainCode(
  server: Pick<TestServer, 'baseUrl'>,
  options: AuthorizeOptions,
): Promise<AuthorizationResponse> {
  const { account, client, scopes } = options;
  const browser = options.browser ?? new TestBrowser(server.baseUrl);
  const { verifier, challenge } = createPkce();
  const url = authorizationUrl(server, client, {
    code_challenge: challenge,
    code_challenge_method: 'S256',
    scope: scopes.length > 0 ? scopes.join(' ') : undefined,
    ...options.parameters,
  });
  const redirect = await passPages(browser, await browser.open(url), account);
  return { redirect, code: redirect.searchParams.get('code') ?? '', verifier, browser };
}

/** Obtains a code as `obtainCode` does. @returns the code, and the form that redeems it */
export async function obtainCodeForm(server: Pick<TestServer, 'baseUrl'>, options: AuthorizeOptions) {
  const { code, verifier } = await obtainCode(server, options);
  const { redirectUri } = options.client;
  const form = {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: redirectUri,
  };
  return { code, form };
}

/** Submits the login and consent pages until the server redirects to the client. */
export async function passPages(browser: TestBrowser, first: Page, account: TestAccount): Promise<URL> {
  let page = first;
  for (let pages = 0; page.leftTo === null && pages < 4; pages += 1) {
    if (page.text.includes('name="password"')) {
      page = await browser.submit(page, {
        email: account.email,
        password: account.password,
        action: 'login',
      });
    } else if (page.text.includes('value="allow"')) {
      page = await browser.submit(page, { action: 'allow' });
    } else {
      throw new Error(`neither login nor consent: ${page.response.status} ${page.text}`);
    }
  }
  if (page.leftTo === null) throw new Error(`the server sends the user nowhere: ${page.text}`);
  return page.leftTo;
}

export interface Authorized {
  accessToken: string;
  refreshToken: string;
  idToken: string | null;
  grantId: string;
  scope: string;
  browser: TestBrowser;
}

/** Runs the whole authorization code flow over HTTP. */
export async function authorize(
  server: Pick<TestServer, 'baseUrl'>,
  options: AuthorizeOptions,
): Promise<Authorized> {
  const { code, verifier, browser, redirect } = await obtainCode(server, options);
  if (code === '') throw new Error(`no code: ${redirect.href}`);
  const { status, body } = await postForm(server, '/oauth/token', options.client, {
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
    redirect_uri: options.parameters?.redirect_uri ?? options.client.redirectUri,
  });
  if (status !== 200) throw new Error(`code exchange: ${status} ${JSON.stringify(body)}`);
  const accessToken = body.access_token as string;
  return {
    accessToken,
    refreshToken: (body.refresh_token as string) ?? '',
    idToken: (body.id_token as string) ?? null,
    grantId: decodeJwt(accessToken).grant_id as string,
    scope: (body.scope as string) ?? '',
    browser,
  };
}
