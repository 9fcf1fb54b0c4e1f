/**
 * The server's own apps: pages of it that act by a user's access token, like anybody's app and with no other way in.
 * They are public clients with PKCE, made at the start (src/web/own_clients.ts). Their ids and redirect URIs are given
 * to no other client.
 */

/** The reference at `/docs`. */
export const docsClientId = 'nuncio-docs';
/** The settings interface at `/console`. By its token a user has subscriptions of their own (see src/webhooks). */
export const consoleClientId = 'nuncio-console';

export interface OwnClient {
  id: string;
  name: string;
  redirectUri: string;
  grantTypes: string[];
  scopes: string[];
}

/** What the settings interface asks a user for. */
const consoleScopes = [
  'openid',
  'read:profile',
  'read:webhooks',
  'write:webhooks',
  'read:apps',
  'write:apps',
  'admin',
];

/** Where the reference is sent back to after its reader has signed in. */
export function docsRedirectUri(baseUrl: string): string {
  return `${baseUrl}/docs/oauth2-redirect.html`;
}

/** @param scopes all that users can allow */
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
  ];
}

export const ownClientIds: readonly string[] = [docsClientId, consoleClientId];

export function isOwnClient(id: string): boolean {
  return ownClientIds.includes(id);
}

/** Whether an answer sent there would reach one of the server's own apps. */
export function isOwnRedirectUri(uri: string, baseUrl: string): boolean {
  return ownClients(baseUrl, []).some(({ redirectUri }) => redirectUri === URL.parse(uri)?.href);
}
