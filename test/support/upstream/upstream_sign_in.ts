/** Starts a server with upstream OpenID providers and performs the steps of a sign-in. */

import assert from 'node:assert/strict';
import type { AccountSettings } from '../../../src/accounts/settings.ts';
import { loadPlatform } from '../../../src/platform.ts';
import { formsOf, type Page, type TestBrowser } from '../browser/browser.ts';
import { authorizationUrl, createPkce, type TestClient } from '../clients/oauth.ts';
import { startTestServer, type TestServer } from '../servers/server.ts';
import type { FakeProvider } from './fake_provider.ts';

/** The settings of a provider and its client secret. */
export interface DeclaredProvider {
  id: string;
  name?: string;
  issuer: string;
  clientId: string;
  clientSecret: string;
  trustEmail?: boolean;
}

export function declare(
  id: string,
  { issuer, clientId, clientSecret }: Pick<FakeProvider, 'issuer' | 'clientId' | 'clientSecret'>,
  more: Partial<DeclaredProvider> = {},
): DeclaredProvider {
  return { id, issuer, clientId, clientSecret, ...more };
}

export async function startServerWithProviders(
  scope: Parameters<typeof startTestServer>[0],
  providers: readonly DeclaredProvider[],
  registration: AccountSettings['registration'] = 'open',
  environment: Parameters<typeof startTestServer>[1] = {},
): Promise<TestServer> {
  const platform = await loadPlatform(null);
  const upstream = providers.map(({ clientSecret, ...provider }) => {
    const clientSecretEnv = `TEST_SECRET_${provider.id.toUpperCase().replaceAll('-', '_')}`;
    process.env[clientSecretEnv] = clientSecret;
    return { name: `Provider ${provider.id}`, trustEmail: false, clientSecretEnv, ...provider };
  });
  const accounts = { ...platform.accounts, upstream, registration };
  return startTestServer(scope, environment, 'dev', { ...platform, accounts });
}

/** Opens the login page with an app's authorization request. */
export function openLoginPage(
  server: TestServer,
  browser: TestBrowser,
  client: TestClient,
  parameters: Record<string, string> = {},
): Promise<Page> {
  const { challenge } = createPkce();
  return browser.open(
    authorizationUrl(server, client, {
      scope: 'openid read:posts',
      code_challenge: challenge,
      code_challenge_method: 'S256',
      ...parameters,
    }),
  );
}

/** Submits the button of a provider. @returns the redirect to the provider, or an error page */
export function pressButton(browser: TestBrowser, page: Page, provider: string): Promise<Page> {
  const index = formsOf(page.text).findIndex(({ buttons }) =>
    buttons.some(([, value]) => value === provider),
  );
  assert.notEqual(index, -1, `no button for ${provider}: ${page.text}`);
  return browser.submit(page, { provider }, index);
}

/** The callback URL of a successful sign-in. @param authorize the URL of the authorization request */
export function callbackOf(authorize: URL, parameters: Record<string, string> = {}): string {
  const url = new URL(authorize.searchParams.get('redirect_uri') as string);
  const state = authorize.searchParams.get('state') as string;
  for (const [name, value] of Object.entries({ code: 'a-code', state, ...parameters })) {
    url.searchParams.set(name, value);
  }
  return url.href;
}

/** Signs in with the fake provider. @returns the page after the callback */
export async function signInAt(
  browser: TestBrowser,
  loginPage: Page,
  id: string,
  provider: FakeProvider,
  claims: Record<string, unknown>,
): Promise<Page> {
  const sent = await pressButton(browser, loginPage, id);
  assert.ok(sent.leftTo, sent.text);
  const nonce = sent.leftTo.searchParams.get('nonce');
  provider.idToken = () => provider.sign({ nonce, ...claims });
  return browser.open(callbackOf(sent.leftTo, { iss: provider.issuer }));
}
