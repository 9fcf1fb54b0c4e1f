/** What the client library needs from an app to sign a user in. An app for several users stores this for each of them. */

import { randomUUID } from 'node:crypto';
import type {
  OAuthAuthorizationServerInformation,
  OAuthClientInformation,
  OAuthClientProvider,
  OAuthTokens,
} from '@ai-sdk/mcp';

export class AgentSignIn implements OAuthClientProvider {
  readonly redirectUrl: string;
  /** Where the user has to go; undefined until the library has found out. */
  page: URL | undefined;
  #client: OAuthClientInformation | undefined;
  #server: OAuthAuthorizationServerInformation | undefined;
  #tokens: OAuthTokens | undefined;
  #verifier = '';
  #state = '';

  constructor(redirectUrl: string) {
    this.redirectUrl = redirectUrl;
  }

  get clientMetadata() {
    return {
      client_name: 'Demo agent',
      redirect_uris: [this.redirectUrl],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
    };
  }

  clientInformation() {
    return this.#client;
  }

  saveClientInformation(client: OAuthClientInformation) {
    this.#client = client;
  }

  authorizationServerInformation() {
    return this.#server;
  }

  saveAuthorizationServerInformation(server: OAuthAuthorizationServerInformation) {
    this.#server = server;
  }

  tokens() {
    return this.#tokens;
  }

  saveTokens(tokens: OAuthTokens) {
    this.#tokens = tokens;
  }

  redirectToAuthorization(page: URL) {
    this.page = page;
  }

  codeVerifier() {
    return this.#verifier;
  }

  saveCodeVerifier(verifier: string) {
    this.#verifier = verifier;
  }

  state() {
    this.#state = randomUUID();
    return this.#state;
  }

  saveState(state: string) {
    this.#state = state;
  }

  storedState() {
    return this.#state;
  }

  invalidateCredentials(what: 'all' | 'client' | 'tokens' | 'verifier') {
    if (what === 'all' || what === 'client') this.#client = undefined;
    if (what === 'all' || what === 'tokens') this.#tokens = undefined;
  }
}
