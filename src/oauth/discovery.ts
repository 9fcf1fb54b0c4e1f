/**
 * Completes oidc-provider's metadata document (RFC 8414, OpenID Connect Discovery) and key set, and a few of its other
 * responses.
 */

import type { JWK } from 'jose';
import type { KoaContextWithOIDC } from 'oidc-provider';
import { openidScopes, type ScopeCatalogue } from '../grants/scopes.ts';
import { opaqueTokenPrefix } from './opaque_token.ts';
import { deprecatedSince } from './password_grant.ts';
import type { OAuthSettings } from './settings.ts';
import { pollIntervalSeconds } from './storage/device_code.ts';

const paths = new Set(['/.well-known/oauth-authorization-server', '/.well-known/openid-configuration']);
/** `max-age` of the document, in seconds. */
const maxAgeSeconds = 300;

/** Middleware that completes the metadata document and the device authorization response. */
export function completeMetadata(baseUrl: string, scopes: ScopeCatalogue, settings: OAuthSettings) {
  const scopesSupported = [...openidScopes.map((scope) => scope.name), ...scopes.keys()];
  // Skips the most frequently used endpoint, whose responses need no completion.
  return (ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> =>
    ctx.path === '/oauth/token' ? next() : complete(ctx, next);

  async function complete(ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> {
    await next();
    if (settings.implicit && ctx.oidc?.params?.response_type?.toString().includes('token'))
      ctx.set('deprecation', deprecatedSince);
    // RFC 8628 section 3.2. oidc-provider omits the interval.
    if (ctx.path === '/oauth/device' && ctx.status === 200) {
      ctx.body = { ...(ctx.body as object), interval: pollIntervalSeconds };
    }
    if (!paths.has(ctx.path) || ctx.status !== 200 || typeof ctx.body !== 'object') return;
    ctx.set('cache-control', `public, max-age=${maxAgeSeconds}`);
    ctx.body = {
      ...(ctx.body as object),
      scopes_supported: scopesSupported,
      response_modes_supported: ['query', 'fragment', 'form_post'],
      opaque_access_token_prefix: opaqueTokenPrefix,
      service_documentation: `${baseUrl}/docs`,
    };
  }
}

/**
 * Middleware that appends the public keys of other rooms to the key set. oidc-provider does not know them, so it neither
 * signs with them nor accepts tokens that name them.
 */
export function completeKeySet(foreignKeys: () => readonly JWK[]) {
  return async (ctx: KoaContextWithOIDC, next: () => Promise<void>): Promise<void> => {
    await next();
    if (ctx.path !== '/oauth/jwks' || ctx.status !== 200 || typeof ctx.body !== 'object') return;
    const { keys } = ctx.body as { keys: JWK[] };
    ctx.body = { keys: [...keys, ...foreignKeys()] };
  };
}
