/**
 * The server's own apps: the reference and the console. They use access tokens like any other app. They are public
 * clients with PKCE, created at start (src/web/own_clients.ts). No other client may have their ids or redirect URIs.
 */

import { deviceCodeGrantType } from './grant_types.ts';

/** The reference at `/docs`. */
export const docsClientId = 'nuncio-docs';
/** The console at `/console`. With its token, users create subscriptions of their own (src/webhooks). */
export const consoleClientId = 'nuncio-console';

/** The command `nuncio listen`. Unlike the others it runs on the user's machine, so it is treated like anybody's app. */
const cliClientId = 'nuncio-cli';

export interface OwnClient {
  id: string;
  name: string;
  /** Null if it never is in a browser. */
  redirectUri: string | null;
  grantTypes: string[];
  scopes: string[];
}

/** Scopes of the console. */
const consoleScopes = [
  'openid',
  'read:profile',
  'read:webhooks',
  'write:webhooks',
  'read:apps',
  'write:apps',
  'admin',
];

/** Redirect URI of the reference. */
export function docsRedirectUri(baseUrl: string): string {
  return `${baseUrl}/docs/oauth2-redirect.html`;
}

/** @param scopes all scopes that users can grant */
export function ownClients(baseUrl: string, scopes: readonly string[]): OwnClient[] {
  return [
    {
      id: docsClientId,
      name: 'API reference',
      redirectUri: docsRedirectUri(baseUrl),
      grantTypes: ['authorization_code'],
      scopes: [...scopes],
    },
    {
      id: consoleClientId,
      name: 'Console',
      redirectUri: `${baseUrl}/console/callback`,
      grantTypes: ['authorization_code', 'refresh_token'],
      scopes: consoleScopes,
    },
    {
      id: cliClientId,
      name: 'Nuncio command line',
      redirectUri: null,
      grantTypes: [deviceCodeGrantType, 'refresh_token'],
      scopes: scopes.filter((scope) => /^read:|^write:webhooks$/.test(scope) && scope !== 'read:apps'),
    },
  ];
}

/** Those that are pages of this server. */
export const ownClientIds: readonly string[] = [docsClientId, consoleClientId];

/** Ids that no other app may have. */
export function isReservedClient(id: string): boolean {
  return isOwnClient(id) || id === cliClientId;
}

export function isOwnClient(id: string): boolean {
  return ownClientIds.includes(id);
}

/** Whether the URI is a redirect URI of one of the server's own apps. */
export function isOwnRedirectUri(uri: string, baseUrl: string): boolean {
  return ownClients(baseUrl, []).some(({ redirectUri }) => redirectUri === URL.parse(uri)?.href);
}
