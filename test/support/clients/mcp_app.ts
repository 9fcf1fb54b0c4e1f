/** What an MCP client's OAuth provider keeps, in a form that all client libraries accept, and the user's part on the pages. */

import assert from 'node:assert/strict';
import { TestBrowser } from '../browser/browser.ts';
import { passPages, type TestAccount } from './oauth.ts';

export const appRedirectUrl = 'http://127.0.0.1:7777/callback';

interface Kept {
  client?: Record<string, unknown> | undefined;
  tokens?: { access_token: string; refresh_token?: string; scope?: string } | undefined;
  redirect?: URL | undefined;
  server?: unknown;
  discovery?: unknown;
}

/** Creates a provider that stores what the library gives it, and nothing else. */
export function createMcpApp(fields: Record<string, unknown> = {}) {
  const kept: Kept = {};
  let verifier = '';
  let state = '';
  const provider = {
    redirectUrl: appRedirectUrl,
    clientMetadata: {
      client_name: 'An MCP client',
      redirect_uris: [appRedirectUrl],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
    },
    state: () => {
      state = crypto.randomUUID();
      return state;
    },
    saveState: (value: string) => {
      state = value;
    },
    storedState: () => state,
    clientInformation: () => kept.client,
    isClientInformationDynamicallyRegistered: () => true,
    saveClientInformation: (client: Record<string, unknown>) => {
      kept.client = client;
    },
    authorizationServerInformation: () => kept.server,
    saveAuthorizationServerInformation: (server: unknown) => {
      kept.server = server;
    },
    discoveryState: () => kept.discovery,
    saveDiscoveryState: (discovery: unknown) => {
      kept.discovery = discovery;
    },
    tokens: () => kept.tokens,
    saveTokens: (tokens: Kept['tokens']) => {
      kept.tokens = tokens;
    },
    redirectToAuthorization: (url: URL) => {
      kept.redirect = url;
    },
    saveCodeVerifier: (value: string) => {
      verifier = value;
    },
    codeVerifier: () => verifier,
    invalidateCredentials: (what: string) => {
      if (what === 'all' || what === 'client') kept.client = undefined;
      if (what === 'all' || what === 'tokens') kept.tokens = undefined;
    },
    ...fields,
  };
  return {
    // biome-ignore lint/suspicious/noExplicitAny: each library declares the same interface in its own types
    provider: provider as any,
    kept,
    /** The user signs in and consents on the pages. @returns the redirect to the app */
    async allow(baseUrl: string, account: TestAccount): Promise<URLSearchParams> {
      assert.ok(kept.redirect, 'the client sent the user nowhere');
      const browser = new TestBrowser(baseUrl);
      const answer = await passPages(browser, await browser.open(kept.redirect.href), account);
      assert.equal(`${answer.origin}${answer.pathname}`, appRedirectUrl);
      assert.equal(answer.searchParams.get('state'), state);
      kept.redirect = undefined;
      return answer.searchParams;
    },
  };
}

export type McpApp = ReturnType<typeof createMcpApp>;
