/**
 * Which scopes a request may have: what the client is registered for, by default all of it but OpenID Connect's;
 * a user is never asked for what is the operator's machines' alone.
 */

import { errors, type KoaContextWithOIDC } from 'oidc-provider';
import type { CachedClient } from '../clients/client_cache.ts';
import { openidScopes, type ScopeCatalogue } from '../grants/scopes.ts';

const openid = new Set(openidScopes.map((scope) => scope.name));

/**
 * Sets the scopes of a request that names none (RFC 6749 section 3.3), and refuses the others that the client
 * may not have.
 * @throws InvalidScope
 */
export function applyScopePolicy(
  ctx: KoaContextWithOIDC,
  { client }: CachedClient,
  catalogue: ScopeCatalogue,
): void {
  const params = ctx.oidc.params;
  if (params === undefined) return;
  const isMachine = params.grant_type === 'client_credentials';
  const mayAsk = (name: string) =>
    client.scopes.includes(name) &&
    (openid.has(name) ? !isMachine : isMachine || catalogue.get(name)?.isForUsers === true);
  if (params.scope === undefined || params.scope === '') {
    // A refresh without a scope means all that was granted.
    if (params.grant_type === 'refresh_token') return;
    const names = client.scopes.filter((name) => mayAsk(name) && !openid.has(name));
    if (names.length > 0) params.scope = names.join(' ');
    return;
  }
  for (const name of String(params.scope).split(' ')) {
    if (!mayAsk(name)) throw new errors.InvalidScope('requested scope is not allowed', name);
  }
}
