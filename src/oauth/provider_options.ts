/**
 * The dependencies of oidc-provider and its pages.
 */

import type { JWK } from 'jose';
import type { AccountSettings } from '../accounts/settings.ts';
import type { AppSettings } from '../apps/settings.ts';
import type { ClientCache } from '../clients/client_cache.ts';
import type { Config } from '../config/config.ts';
import type { ConnectionTraces } from '../connections/traces.ts';
import type { Database } from '../database/database.ts';
import type { ScopeCatalogue } from '../grants/scopes.ts';
import type { RateLimiter } from '../http/rate_limit.ts';
import type { AccessTokenVerifier } from './access_token.ts';
import type { KnownNetworks } from './known_networks.ts';
import type { CertificateReader } from './mtls/certificate.ts';
import type { OutgoingRequests } from './outgoing_requests.ts';
import type { OAuthSettings } from './settings.ts';
import type { SigningKeys } from './signing_keys.ts';

/** Pages that oidc-provider shows, rendered in the style of the others. All functions return HTML. */
export interface ProviderPages {
  /** The operator's name for the server. */
  brandName: string;
  /** Whether `/assets/brand.css` exists. */
  hasBrandColor: boolean;
  error: (error: PageError) => string;
  expired: (requestId: string) => string;
  codeInput: (form: { action: string; xsrf: string }, error: string | null) => string;
  codeConfirmation: (form: { action: string; xsrf: string }, client: string, userCode: string) => string;
  deviceRefused: () => string;
  deviceSuccess: (client: string) => string;
  logout: (action: string, xsrf: string) => string;
  loggedOut: (isSignedIn: boolean) => string;
  leave: (page: LeavePage) => string;
}

/** A page with a link or a form by which the user continues to an app (redirects.ts). */
export interface LeavePage {
  appName: string;
  /** Target of the link or form. */
  url: string;
  /** Fields of the form (response mode `form_post`); null for a link. */
  fields: Readonly<Record<string, string>> | null;
  /** The error to show; null after signing out. */
  error: Omit<PageError, 'sent'> | null;
}

/** An error as a page shows it. */
export interface PageError {
  /** Protocol error code, for example `invalid_redirect_uri`. */
  code: string;
  description: string;
  /** Whether the operator has suspended the app. */
  isClientSuspended?: boolean;
  requestId: string;
  /** Parameters of the request, unvalidated, for the developer of the app. */
  sent?: { clientId: string | undefined; redirectUri: string | undefined };
}

export interface ProviderOptions {
  limiter: RateLimiter;
  /** From where apps have authenticated. It outlives each provider. */
  knownNetworks: KnownNetworks;
  db: Database;
  config: Config;
  secret: Buffer;
  keys: SigningKeys;
  /** Public keys of other rooms, published in the JWKS (RFC 7517). They verify no tokens. */
  foreignKeys: () => readonly JWK[];
  clients: ClientCache;
  scopes: ScopeCatalogue;
  verifier: AccessTokenVerifier;
  /** Told of requests over the rate limit. */
  traces: ConnectionTraces;
  pages: ProviderPages;
  settings: OAuthSettings;
  apps: AppSettings;
  /** Where users sign in; null for Nuncio's own login page. */
  login: AccountSettings['login'];
  /** Fetches documents and keys that clients host. */
  outgoing: OutgoingRequests;
  readCertificate: CertificateReader;
  /** Called when logout notices are stored. */
  wakeLogouts: () => void;
}
