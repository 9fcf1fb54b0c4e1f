/** An app that uses openid-client, for tests. */

import * as openid from 'openid-client';
import { TestBrowser } from '../browser/browser.ts';
import type { TestServer } from '../servers/server.ts';
import { passPages, type TestAccount } from './oauth.ts';

/** Runs the code flow with PKCE: a user signs in and consents to `openid read:posts`, and the app redeems the code. */
export async function signInByOpenidClient(
  server: Pick<TestServer, 'baseUrl'>,
  config: openid.Configuration,
  account: TestAccount,
  redirectUri: string,
) {
  const verifier = openid.randomPKCECodeVerifier();
  const url = openid.buildAuthorizationUrl(config, {
    redirect_uri: redirectUri,
    scope: 'openid read:posts',
    code_challenge: await openid.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
  });
  const browser = new TestBrowser(server.baseUrl);
  const redirect = await passPages(browser, await browser.open(url.href), account);
  return openid.authorizationCodeGrant(config, redirect, { pkceCodeVerifier: verifier });
}
