/**
 * The session: the tokens that speak for whoever is signed in. The console is an OAuth client like any other
 * (authorization code with PKCE, refresh by rotation). Tokens live in the memory of the page alone: a reload asks the
 * authorization endpoint again, which answers without a question while the user is signed in at the server.
 */

import * as oauth from 'oauth4webapi';
import { clientId, issuer, redirectUri, SignInError, takePending } from './sign_in.ts';

export type SessionState = 'starting' | 'signed-in' | 'ended';

interface Tokens {
  access: string;
  refresh: string | null;
  id: string | null;
  /** Milliseconds of the clock of the page: when to ask for the next one. */
  renewAt: number;
  scopes: ReadonlySet<string>;
}

/** Milliseconds before its end at which an access token is replaced. */
const renewAheadMs = 60_000;

const server: oauth.AuthorizationServer = {
  issuer,
  token_endpoint: `${issuer}/oauth/token`,
  revocation_endpoint: `${issuer}/oauth/revoke`,
  authorization_response_iss_parameter_supported: true,
};
const client: oauth.Client = { client_id: clientId };
// Plain http is for a server on the developer's own machine: there the library has to be told.
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

/** Whether the user may do what needs this scope. */
export function hasScope(name: string): boolean {
  return tokens?.scopes.has(name) ?? false;
}

/**
 * Finishes a sign-in that the browser comes back from.
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
  // Somebody opened an old address of the kind, or the answer is to a question of another tab.
  if (pending === null) throw new SignInError('This sign-in has expired, or it was started in another tab.');
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
    if (error.error === 'access_denied') return 'You cancelled the sign-in.';
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
 * An access token that lives.
 * @param refused one that the server has refused: it is replaced even where it should still live
 * @throws SignInError where the session has ended
 */
export async function accessToken(refused?: string): Promise<string> {
  if (tokens === null) throw new SignInError('You are signed out.');
  if (tokens.access !== refused && Date.now() < tokens.renewAt) return tokens.access;
  // A refresh token works once: whoever needs a new access token at the same time waits for this one.
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
    // Anything else, like a server that cannot be reached, may be over in a moment.
    if (error instanceof oauth.ResponseBodyError && error.error === 'invalid_grant') end();
    throw error;
  }
  return tokens as Tokens;
}

/** Forgets the tokens. The page stays, so that nothing typed is lost, and asks to sign in again. */
export function end(): void {
  tokens = null;
  become('ended');
}

/** Ends the session here, in other tabs, and at the server. */
export async function signOut(): Promise<void> {
  const last = tokens;
  end();
  otherTabs.postMessage('signed-out');
  if (last?.refresh != null) {
    const revoked = oauth.revocationRequest(server, client, oauth.None(), last.refresh, options);
    // The session of the server ends all the same, and the token with it in the end.
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
