/**
 * The app's OAuth client, with `openid-client`: authorization code with PKCE, refresh, revocation.
 */

import * as oidc from 'openid-client';

/** The scopes that the app requests. */
export const scopes = [
  'read:profile',
  'read:posts',
  'write:posts',
  'read:webhooks',
  'write:webhooks',
] as const;

export interface PendingAuthorization {
  url: URL;
  codeVerifier: string;
  state: string;
}

/** Reads the server's metadata. Allows plain http, because the demo runs on one machine. */
export function discover(
  baseUrl: string,
  clientId: string,
  clientSecret: string,
): Promise<oidc.Configuration> {
  return oidc.discovery(new URL(baseUrl), clientId, clientSecret, oidc.ClientSecretBasic(clientSecret), {
    algorithm: 'oauth2',
    execute: [oidc.allowInsecureRequests],
  });
}

/** The first half of the code flow: the URL to send the user to. */
export async function beginAuthorization(
  configuration: oidc.Configuration,
  redirectUri: string,
): Promise<PendingAuthorization> {
  const codeVerifier = oidc.randomPKCECodeVerifier();
  const state = oidc.randomState();
  const url = oidc.buildAuthorizationUrl(configuration, {
    redirect_uri: redirectUri,
    scope: scopes.join(' '),
    code_challenge: await oidc.calculatePKCECodeChallenge(codeVerifier),
    code_challenge_method: 'S256',
    state,
  });
  return { url, codeVerifier, state };
}

/**
 * The second half: exchanges the code for tokens.
 * @throws AuthorizationResponseError if the user denied access
 */
export function finishAuthorization(
  configuration: oidc.Configuration,
  callbackUrl: URL,
  pending: PendingAuthorization,
): Promise<oidc.TokenEndpointResponse> {
  return oidc.authorizationCodeGrant(configuration, callbackUrl, {
    pkceCodeVerifier: pending.codeVerifier,
    expectedState: pending.state,
  });
}
