/** The console as a user has signed in to it: its client, and tokens got by code and PKCE or minted. */

import type { Account } from '../../src/accounts/account.ts';
import { consoleClientId } from '../../src/clients/own_clients.ts';
import { requester } from './api.ts';
import { TestBrowser } from './browser.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  mintAccessToken,
  postForm,
  type TestAccount,
  type TestClient,
} from './oauth.ts';
import type { TestServer } from './server.ts';
import type { Request } from './webhooks.ts';

/** Everything that the console of an app developer asks for. */
export const consoleScopes = ['read:apps', 'write:apps', 'read:webhooks', 'write:webhooks'];

export function consoleClientOf(server: Pick<TestServer, 'baseUrl'>): TestClient {
  return {
    id: consoleClientId,
    secret: null,
    authMethod: 'none',
    redirectUri: `${server.baseUrl}/console/callback`,
  } as TestClient;
}

export interface ConsoleUser {
  account: TestAccount;
  request: Request;
  accessToken: string;
}

/** A user with a minted token of the console. */
export async function createConsoleUser(
  server: TestServer,
  options: { scopes?: readonly string[]; isAdmin?: boolean; account?: TestAccount } = {},
): Promise<ConsoleUser> {
  const isAdmin = options.isAdmin ?? false;
  const account = options.account ?? (await createTestAccount(server, { isAdmin }));
  const scopes = options.scopes ?? (isAdmin ? [...consoleScopes, 'admin'] : consoleScopes);
  const { accessToken } = await mintAccessToken(server, { account, client: { id: consoleClientId }, scopes });
  return { account, accessToken, request: requester(server, accessToken) };
}

/** Signs in to the console through its page; no consent is asked for. @returns the token response */
export async function signInToConsole(
  server: Pick<TestServer, 'baseUrl'>,
  account: Pick<Account, 'email'> & { password: string },
  parameters: Record<string, string | undefined> = {},
): Promise<{ tokens: Record<string, unknown> }> {
  const client = consoleClientOf(server);
  const { verifier, challenge } = createPkce();
  const browser = new TestBrowser(server.baseUrl);
  const url = authorizationUrl(server, client, {
    code_challenge: challenge,
    code_challenge_method: 'S256',
    ...parameters,
  });
  const login = await browser.open(url);
  const { email, password } = account;
  const { url: arrived } = await browser.submit(login, { email, password, action: 'login' });
  const code = new URL(arrived).searchParams.get('code');
  if (code === null) throw new Error(`no code: ${arrived}`);
  const { body } = await postForm(server, '/oauth/token', client, {
    grant_type: 'authorization_code',
    code,
    redirect_uri: client.redirectUri,
    code_verifier: verifier,
  });
  return { tokens: body };
}
