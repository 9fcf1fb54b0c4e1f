/** The console for a signed-in user: its client, and tokens obtained by code and PKCE or minted. */

import type { LocalAccount } from '../../../src/accounts/account.ts';
import { consoleClientId } from '../../../src/clients/own_clients.ts';
import { TestBrowser } from '../browser/browser.ts';
import { requester } from '../clients/api_client.ts';
import {
  authorizationUrl,
  createPkce,
  createTestAccount,
  mintAccessToken,
  postForm,
  type TestAccount,
  type TestClient,
} from '../clients/oauth.ts';
import type { TestServer } from '../servers/server.ts';
import type { Request } from '../webhooks/apps.ts';

/** The scopes that the console requests for an app developer. */
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

/** Creates a user with a minted token of the console. */
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

/**
 * Signs in to the console through its page. The console needs no consent.
 * @param browser skips the login page if it is already signed in
 * @returns the token response
 */
export async function signInToConsole(
  server: Pick<TestServer, 'baseUrl'>,
  account: Pick<LocalAccount, 'email'> & { password: string },
  parameters: Record<string, string | undefined> = {},
  browser = new TestBrowser(server.baseUrl),
): Promise<{ tokens: Record<string, unknown> }> {
  const client = consoleClientOf(server);
  const { verifier, challenge } = createPkce();
  const url = authorizationUrl(server, client, {
    code_challenge: challenge,
    code_challenge_method: 'S256',
    ...parameters,
  });
  const first = await browser.open(url);
  const { email, password } = account;
  const hasCode = ({ url: at }: { url: string }) => new URL(at).searchParams.has('code');
  let page = first;
  if (!hasCode(page)) page = await browser.submit(page, { email, password, action: 'login' });
  // Another user was signed in. A form that submits itself ends that session.
  if (!hasCode(page)) page = await browser.submit(page, {});
  const arrived = page.url;
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
