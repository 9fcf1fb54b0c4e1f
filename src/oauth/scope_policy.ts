/**
 * Which scopes a request may have: what the client is registered for, by default all of it but OpenID Connect's;
 * a user is never asked for what is the operator's machines' alone. Management scopes belong to the console and to
 * clients that the operator registered with them.
 */

import { errors, type KoaContextWithOIDC } from 'oidc-provider';
import type { CachedClient } from '../clients/client_cache.ts';
import { consoleClientId } from '../clients/own_clients.ts';
import { adminScope, openidScopes, type ScopeCatalogue } from '../grants/scopes.ts';

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
  const mayAsk = (name: string) => {
    if (!client.scopes.includes(name)) return false;
    if (openid.has(name)) return !isMachine;
    const scope = catalogue.get(name);
    if (scope?.isManagement === true) return client.origin === 'operator';
    return isMachine || scope?.isForUsers === true;
  };
  if (params.scope === undefined || params.scope === '') {
    // A refresh without a scope means all that was granted.
    if (params.grant_type === 'refresh_token') return;
    const isConsole = client.id === consoleClientId;
    const names = client.scopes.filter((name) => mayAsk(name) && (isConsole || !openid.has(name)));
    if (names.length > 0) params.scope = names.join(' ');
    return;
  }
  for (const name of String(params.scope).split(' ')) {
    if (!mayAsk(name)) throw new errors.InvalidScope('requested scope is not allowed', name);
  }
}

/**
 * Takes `admin` out of the request of an account that is not an administrator (RFC 6749 section 3.3: the server may
 * grant less than was asked for).
 */
export function dropAdminScope(ctx: KoaContextWithOIDC): void {
  const { params } = ctx.oidc;
  if (typeof params?.scope !== 'string') return;
  params.scope = withoutAdminScope(params.scope.split(' ')).join(' ');
}

export function withoutAdminScope(names: readonly string[]): string[] {
  return names.filter((name) => name !== adminScope);
}
