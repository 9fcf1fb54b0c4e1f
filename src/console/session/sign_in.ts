/**
 * The first step of sign-in: the redirect to the authorization endpoint (authorization code with PKCE). It is in the first
 * script of the page and uses no library, so that sign-in does not wait for the application.
 */

/** A sign-in error. The message is for the user. */
export class SignInError extends Error {
  override readonly name = 'SignInError';
}

/** State kept while the browser is at the authorization endpoint. It is of no use elsewhere. */
export interface PendingSignIn {
  state: string;
  nonce: string;
  verifier: string;
  /** The path to return to. */
  returnTo: string;
}

export const issuer = document.documentElement.dataset.issuer ?? location.origin;
export const clientId = 'nuncio-console';
export const callbackPath = '/console/callback';
export const redirectUri = `${issuer}${callbackPath}`;

/** All scopes of the console. Users who are not administrators get all but `admin`. */
const requestedScopes = 'openid read:profile read:webhooks write:webhooks read:apps write:apps admin';
const pendingKey = 'nuncio-sign-in';

/** RFC 7636 section 4.1: 256 bits. */
function randomText(): string {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

async function challengeOf(verifier: string): Promise<string> {
  const digest = await crypto.subtle.digest('SHA-256', new TextEncoder().encode(verifier));
  return base64url(new Uint8Array(digest));
}

function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replaceAll('=', '');
}

/** Sends the browser to the authorization endpoint. */
export async function signIn(returnTo: string): Promise<void> {
  const pending: PendingSignIn = {
    state: randomText(),
    nonce: randomText(),
    verifier: randomText(),
    returnTo,
  };
  sessionStorage.setItem(pendingKey, JSON.stringify(pending));
  const url = new URL(`${issuer}/oauth/authorize`);
  url.search = new URLSearchParams({
    client_id: clientId,
    response_type: 'code',
    scope: requestedScopes,
    redirect_uri: redirectUri,
    state: pending.state,
    nonce: pending.nonce,
    code_challenge: await challengeOf(pending.verifier),
    code_challenge_method: 'S256',
  }).toString();
  location.replace(url);
}

/** Reads and deletes the kept state. */
export function takePending(): PendingSignIn | null {
  const text = sessionStorage.getItem(pendingKey);
  sessionStorage.removeItem(pendingKey);
  return text === null ? null : (JSON.parse(text) as PendingSignIn);
}
