/**
 * Authorization server metadata (RFC 8414, OpenID Connect Discovery): the engine's document, completed by what
 * only we know. One middleware for all of it, so that nothing is listed that does not work.
 */

import type { JWK } from 'jose';
import type { KoaContextWithOIDC } from 'oidc-provider';
import { openidScopes, type ScopeCatalogue } from '../grants/scopes.ts';
import { deprecatedSince } from './password_grant.ts';
import type { OAuthSettings } from './settings.ts';
import { pollIntervalSeconds } from './storage/device_code.ts';

const paths = new Set(['/.well-known/oauth-authorization-server', '/.well-known/openid-configuration']);
/** Seconds that the document may be kept. */
const maxAgeSeconds = 300;

export function completeMetadata(baseUrl: string, scopes: ScopeCatalogue, settings: OAuthSettings) {
  const scopesSupported = [...openidScopes.map((scope) => scope.name), ...scopes.keys()];
  // The token endpoint is asked most of all, and nothing is missing there.
  return (ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> =>
    ctx.path === '/oauth/token' ? next() : complete(ctx, next);

  async function complete(ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> {
    await next();
    if (settings.implicit && ctx.oidc?.params?.response_type?.toString().includes('token'))
      ctx.set('deprecation', deprecatedSince);
    // RFC 8628 section 3.2: the engine says no interval.
    if (ctx.path === '/oauth/device' && ctx.status === 200) {
      ctx.body = { ...(ctx.body as object), interval: pollIntervalSeconds };
    }
    if (!paths.has(ctx.path) || ctx.status !== 200 || typeof ctx.body !== 'object') return;
    ctx.set('cache-control', `public, max-age=${maxAgeSeconds}`);
    ctx.body = {
      ...(ctx.body as object),
      scopes_supported: scopesSupported,
      response_modes_supported: ['query', 'fragment', 'form_post'],
      service_documentation: `${baseUrl}/docs`,
    };
  }
}

/**
 * The key set, with the public keys of other parts behind the engine's own. The engine itself does not know them: it
 * cannot sign with them, and no token that names one of them is taken.
 */
export function completeKeySet(foreignKeys: () => readonly JWK[]) {
  return async (ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> => {
    await next();
    if (ctx.path !== '/oauth/jwks' || ctx.status !== 200 || typeof ctx.body !== 'object') return;
    const { keys } = ctx.body as { keys: JWK[] };
    ctx.body = { keys: [...keys, ...foreignKeys()] };
  };
}
