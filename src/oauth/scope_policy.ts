/**
 * Decides which scopes a request gets (RFC 6749 section 3.3, OpenID Connect Core section 3.1.2.1): the known scopes that
 * the client is registered for. The token response contains the result.
 *
 *   unknown scope                                                        ignored
 *   OpenID Connect scope, but no user signs in                           ignored
 *   `profile`, `email`, `offline_access`; client not registered for it   ignored
 *   `openid` or an API scope; client not registered for it               invalid_scope
 *   no scope remains                                                     invalid_scope (the default is not used)
 *   `scope` is absent                                                    the client's scopes without those of OpenID Connect
 *
 * On refresh, an API scope that was not granted is `invalid_scope` (RFC 6749 section 6). Other scopes that were not
 * granted are ignored. Users are never asked for scopes of machine clients. Management scopes are available to the
 * console and to clients that the operator registered with them. Machine scopes are available to operator-registered
 * clients with the client credentials grant only.
 */

import { errors, type KoaContextWithOIDC, Provider } from 'oidc-provider';
import type { Client } from '../clients/client.ts';
import type { CachedClient } from '../clients/client_cache.ts';
import { consoleClientId } from '../clients/own_clients.ts';
import { adminScope, openidScopes, type ScopeCatalogue } from '../grants/scopes.ts';
import type { ModelStorage } from './storage/storage.ts';

const openid = new Set(openidScopes.map((scope) => scope.name));
/** Grant types without a user who signs in on a page. */
const grantsWithoutSignIn: ReadonlySet<unknown> = new Set(['client_credentials', 'password']);

/**
 * Replaces `scope` of the current request by the scopes that it gets.
 * @throws InvalidScope
 */
export function applyScopePolicy(
  ctx: KoaContextWithOIDC,
  { client }: CachedClient,
  catalogue: ScopeCatalogue,
): void {
  const params = ctx.oidc.params;
  if (params === undefined) return;
  const { grant_type: grantType, scope } = params;
  const isMachine = grantType === 'client_credentials';
  const mayRequest = (name: string) => {
    if (!client.scopes.includes(name)) return false;
    const known = catalogue.get(name);
    if (known?.isManagement === true) return client.origin === 'operator';
    if (known?.isForMachines === true) return isMachine && client.origin === 'operator';
    return isMachine || openid.has(name) || known?.isForUsers === true;
  };
  if (scope === undefined || scope === '') {
    // RFC 6749 section 6: a refresh without a scope keeps all granted scopes.
    if (grantType === 'refresh_token') return;
    const isDefault = (name: string) => !openid.has(name) || client.id === consoleClientId;
    const names = client.scopes.filter((name) => mayRequest(name) && isDefault(name));
    if (names.length > 0) params.scope = names.join(' ');
    return;
  }
  const isSignIn = !grantsWithoutSignIn.has(grantType);
  // A request can have thousands, and this runs for each of its resources.
  const requested = [...new Set(String(scope).split(' '))];
  const checked = requested.filter((name) => isChecked(name, client, catalogue, isSignIn));
  const rejected = checked.find((name) => !mayRequest(name));
  if (rejected !== undefined) throw new errors.InvalidScope('requested scope is not allowed', rejected);
  if (checked.length === 0)
    throw new errors.InvalidScope('none of the requested scopes is known', String(scope));
  params.scope = checked.join(' ');
}

/** Whether a scope is subject to the check. All other scopes are ignored. */
function isChecked(name: string, client: Client, catalogue: ScopeCatalogue, isSignIn: boolean): boolean {
  if (!openid.has(name)) return catalogue.has(name);
  return isSignIn && (name === 'openid' || client.scopes.includes(name));
}

/** Removes ignorable scopes from a refresh request before oidc-provider compares the request with the grant. */
export function filterRefreshScopes(storage: ModelStorage, catalogue: ScopeCatalogue): ModelStorage {
  return {
    ...storage,
    async find(value) {
      const token = await storage.find?.(value);
      const params = Provider.ctx?.oidc.params;
      if (!token || params?.grant_type !== 'refresh_token' || !params.scope) return token;
      const granted = new Set(token.scope?.split(' '));
      const remaining = String(params.scope)
        .split(' ')
        .filter((name) => catalogue.has(name) || granted.has(name));
      if (remaining.length > 0) params.scope = remaining.join(' ');
      return token;
    },
  };
}

/**
 * Removes `admin` from the request of an account that is not an administrator (RFC 6749 section 3.3: the server may
 * grant fewer scopes than requested).
 */
export function dropAdminScope(ctx: KoaContextWithOIDC): void {
  const { params } = ctx.oidc;
  if (typeof params?.scope !== 'string') return;
  params.scope = withoutAdminScope(params.scope.split(' ')).join(' ');
}

export function withoutAdminScope(names: readonly string[]): string[] {
  return names.filter((name) => name !== adminScope);
}
