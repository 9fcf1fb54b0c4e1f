/**
 * The session: the user's tokens. The console is an OAuth client like any other (authorization code with PKCE, refresh
 * with rotation). Tokens are kept in memory only. After a reload the page asks the authorization endpoint again, which
 * responds without a prompt while the user is signed in at the server.
 */

import * as oauth from 'oauth4webapi';
import { clientId, issuer, redirectUri, SignInError, takePending } from './sign_in.ts';

export type SessionState = 'starting' | 'signed-in' | 'ended';

interface Tokens {
  access: string;
  refresh: string | null;
  id: string | null;
  /** When to renew the token, in milliseconds of the page's clock. */
  renewAt: number;
  scopes: ReadonlySet<string>;
}

/** Milliseconds before its expiry at which an access token is renewed. */
const renewAheadMs = 60_000;

const server: oauth.AuthorizationServer = {
  issuer,
  token_endpoint: `${issuer}/oauth/token`,
  revocation_endpoint: `${issuer}/oauth/revoke`,
  authorization_response_iss_parameter_supported: true,
};
const client: oauth.Client = { client_id: clientId };
// Plain http is only for a server on the developer's machine; the library needs permission for it.
const options = { [oauth.allowInsecureRequests]: issuer.startsWith('http:') };

let state: SessionState = 'starting';
let tokens: Tokens | null = null;
let renewal: Promise<Tokens> | null = null;
const listeners = new Set<() => void>();
const otherTabs = new BroadcastChannel('nuncio-console');

otherTabs.addEventListener('message', ({ data }) => {
  if (data === 'signed-out') end();
});

export function sessionState(): SessionState {
  return state;
}

/** @returns a function that ends the subscription */
export function onSessionChange(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Whether the user has this scope. */
export function hasScope(name: string): boolean {
  return tokens?.scopes.has(name) ?? false;
}

/**
 * Finishes the sign-in after the redirect back.
 * @returns the path to show
 * @throws SignInError
 */
export async function finishSignIn(): Promise<string> {
  if (!isSecureContext) {
    throw new SignInError(
      'The console needs https. On plain http, browsers block the cryptography that signing in needs.',
    );
  }
  const pending = takePending();
  // The URL is old, or another tab began the sign-in.
  if (pending === null) throw new SignInError('This sign-in has expired or was started in another tab.');
  try {
    const answer = oauth.validateAuthResponse(server, client, new URL(location.href), pending.state);
    const response = await oauth.authorizationCodeGrantRequest(
      server,
      client,
      oauth.None(),
      answer,
      redirectUri,
      pending.verifier,
      options,
    );
    const result = await oauth.processAuthorizationCodeResponse(server, client, response, {
      expectedNonce: pending.nonce,
      requireIdToken: true,
    });
    use(result);
  } catch (error) {
    throw new SignInError(explain(error), { cause: error });
  }
  become('signed-in');
  return pending.returnTo;
}

function explain(error: unknown): string {
  if (error instanceof oauth.AuthorizationResponseError) {
    if (error.error === 'access_denied') return 'You canceled the sign-in.';
    return error.error_description ?? error.error;
  }
  if (error instanceof oauth.ResponseBodyError) return error.error_description ?? error.error;
  return error instanceof Error ? error.message : String(error);
}

function use(result: oauth.TokenEndpointResponse): void {
  const lifeMs = (result.expires_in ?? 300) * 1_000;
  tokens = {
    access: result.access_token,
    refresh: result.refresh_token ?? tokens?.refresh ?? null,
    id: result.id_token ?? tokens?.id ?? null,
    renewAt: Date.now() + Math.max(lifeMs - renewAheadMs, lifeMs / 2),
    scopes: new Set((result.scope ?? '').split(' ')),
  };
}

/**
 * Returns a valid access token.
 * @param refused a token that the server refused; it is renewed even if it has not expired
 * @throws SignInError if the session has ended
 */
export async function accessToken(refused?: string): Promise<string> {
  if (tokens === null) throw new SignInError('You are signed out.');
  if (tokens.access !== refused && Date.now() < tokens.renewAt) return tokens.access;
  // A refresh token works once, so concurrent callers share one refresh.
  renewal ??= renew(tokens).finally(() => {
    renewal = null;
  });
  return (await renewal).access;
}

async function renew({ refresh }: Tokens): Promise<Tokens> {
  if (refresh === null) {
    end();
    throw new SignInError('Your session has ended.');
  }
  try {
    const response = await oauth.refreshTokenGrantRequest(server, client, oauth.None(), refresh, options);
    use(await oauth.processRefreshTokenResponse(server, client, response));
  } catch (error) {
    // Other errors, such as an unreachable server, may be temporary.
    if (error instanceof oauth.ResponseBodyError && error.error === 'invalid_grant') end();
    throw error;
  }
  return tokens as Tokens;
}

/** Forgets the tokens. The page stays, so that no input is lost, and asks the user to sign in again. */
export function end(): void {
  tokens = null;
  become('ended');
}

/** Signs out here, in other tabs and at the server. */
export async function signOut(): Promise<void> {
  const last = tokens;
  end();
  otherTabs.postMessage('signed-out');
  if (last?.refresh != null) {
    const revoked = oauth.revocationRequest(server, client, oauth.None(), last.refresh, options);
    // The server ends its session anyway, and the token expires.
    await revoked.catch(() => undefined);
  }
  const parameters = new URLSearchParams({ client_id: client.client_id });
  if (last?.id != null) parameters.set('id_token_hint', last.id);
  location.assign(`${issuer}/oauth/logout?${parameters}`);
}

function become(next: SessionState): void {
  if (state === next) return;
  state = next;
  for (const listener of listeners) listener();
}
