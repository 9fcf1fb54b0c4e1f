/**
 * What the engine is built from.
 */

import type { JWK } from 'jose';
import type { AccountSettings } from '../accounts/settings.ts';
import type { AppSettings } from '../apps/settings.ts';
import type { ClientCache } from '../clients/client_cache.ts';
import type { Config } from '../config/config.ts';
import type { Database } from '../database/database.ts';
import type { GuardedFetch } from '../egress/fetch.ts';
import type { ScopeCatalogue } from '../grants/scopes.ts';
import type { RateLimiter } from '../http/rate_limit.ts';
import type { AccessTokenVerifier } from './access_token.ts';
import type { CertificateReader } from './mtls/certificate.ts';
import type { OAuthSettings } from './settings.ts';
import type { SigningKeys } from './signing_keys.ts';

/** Pages that the engine asks for; they look like the rest of the house. */
export interface EnginePages {
  /** What the operator calls the server. */
  brandName: string;
  /** Whether there is a stylesheet of the operator's colour beside that of the pages. */
  hasBrandColor: boolean;
  /** All return HTML. */
  error: (error: EngineError) => string;
  expired: (requestId: string) => string;
  codeInput: (form: { action: string; xsrf: string }, fault: string | null) => string;
  codeConfirmation: (form: { action: string; xsrf: string }, client: string, userCode: string) => string;
  deviceRefused: () => string;
  deviceSuccess: (client: string) => string;
  logout: (action: string, xsrf: string) => string;
  loggedOut: (isSignedIn: boolean) => string;
  leave: (page: LeavePage) => string;
}

/** A way to an app that the user takes by a click (redirects.ts). */
export interface LeavePage {
  appName: string;
  /** Where the link leads, or where the form goes. */
  url: string;
  /** What a form carries (response mode `form_post`); null for a link. */
  fields: Readonly<Record<string, string>> | null;
  /** What went wrong; null after signing out. */
  error: Omit<EngineError, 'sent'> | null;
}

/** What a page tells of an error. */
export interface EngineError {
  /** The protocol's word, like `invalid_redirect_uri`. */
  code: string;
  description: string;
  requestId: string;
  /** What the app sent, for its developer; in whatever shape. */
  sent?: { clientId: string | undefined; redirectUri: string | undefined };
}

export interface EngineOptions {
  limiter: RateLimiter;
  db: Database;
  config: Config;
  secret: Buffer;
  keys: SigningKeys;
  /** Public keys of other parts, for the JWKS (RFC 7517): they are shown there and used for no token. */
  foreignKeys: () => readonly JWK[];
  clients: ClientCache;
  scopes: ScopeCatalogue;
  verifier: AccessTokenVerifier;
  pages: EnginePages;
  settings: OAuthSettings;
  apps: AppSettings;
  /** Where users sign in, if not here. */
  login: AccountSettings['login'];
  /** For what clients keep elsewhere: their metadata, keys. */
  fetch: GuardedFetch;
  readCertificate: CertificateReader;
}
