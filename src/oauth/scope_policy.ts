/**
 * Which scopes a request gets (RFC 6749 section 3.3, OpenID Connect Core section 3.1.2.1): those that the server knows,
 * of those that the client is registered for; the token response says which. What is ignored, and what is refused:
 *
 *   unknown here                                            ignored
 *   of OpenID Connect, without a user who signs in          ignored
 *   `profile`, `email`, `offline_access`, not the client's  ignored
 *   `openid`, or a scope of an API, not the client's        invalid_scope
 *   nothing remains                                         invalid_scope, never the default
 *   not asked for at all                                    the client's scopes but those of OpenID Connect
 *
 * At a refresh a scope of an API that was not granted is `invalid_scope` (section 6), everything else that was not
 * granted is ignored. A user is never asked for what is the operator's machines' alone. Management scopes belong to the
 * console and to clients that the operator registered with them; scopes for machines to such clients by client
 * credentials alone.
 */

import { errors, type KoaContextWithOIDC, Provider } from 'oidc-provider';
import type { Client } from '../clients/client.ts';
import type { CachedClient } from '../clients/client_cache.ts';
import { consoleClientId } from '../clients/own_clients.ts';
import { adminScope, openidScopes, type ScopeCatalogue } from '../grants/scopes.ts';

const openid = new Set(openidScopes.map((scope) => scope.name));
/** With these nobody signs in. */
const grantsWithoutSignIn: ReadonlySet<unknown> = new Set(['client_credentials', 'password']);

/**
 * Sets the scopes of a request.
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
  const mayAsk = (name: string) => {
    if (!client.scopes.includes(name)) return false;
    const known = catalogue.get(name);
    if (known?.isManagement === true) return client.origin === 'operator';
    if (known?.isForMachines === true) return isMachine && client.origin === 'operator';
    return isMachine || openid.has(name) || known?.isForUsers === true;
  };
  if (scope === undefined || scope === '') {
    // A refresh without a scope means all that was granted.
    if (grantType === 'refresh_token') return;
    const isDefault = (name: string) => !openid.has(name) || client.id === consoleClientId;
    const names = client.scopes.filter((name) => mayAsk(name) && isDefault(name));
    if (names.length > 0) params.scope = names.join(' ');
    return;
  }
  const isSignIn = !grantsWithoutSignIn.has(grantType);
  const asked = String(scope).split(' ');
  const judged = asked.filter((name) => isJudged(name, client, catalogue, isSignIn));
  const refused = judged.find((name) => !mayAsk(name));
  if (refused !== undefined) throw new errors.InvalidScope('requested scope is not allowed', refused);
  if (judged.length === 0)
    throw new errors.InvalidScope('none of the requested scopes is known', String(scope));
  params.scope = judged.join(' ');
}

/** Whether a scope is allowed or refused; the others are ignored. */
function isJudged(name: string, client: Client, catalogue: ScopeCatalogue, isSignIn: boolean): boolean {
  if (!openid.has(name)) return catalogue.has(name);
  return isSignIn && (name === 'openid' || client.scopes.includes(name));
}

type EngineRefreshToken = InstanceType<Provider['RefreshToken']>;
type Find = (value: string, options?: object) => Promise<EngineRefreshToken | undefined>;

/** Makes the engine ignore at a refresh what may be ignored, before it compares the request with the grant. */
export function useScopePolicy(provider: Provider, catalogue: ScopeCatalogue): void {
  const { RefreshToken } = provider;
  // The engine's own type leaves open what is found.
  const engineFind = RefreshToken.find.bind(RefreshToken) as Find;
  const find: Find = async (value, options) => {
    const token = await engineFind(value, options);
    const params = Provider.ctx?.oidc.params;
    if (token === undefined || params?.grant_type !== 'refresh_token' || !params.scope) return token;
    const granted = token.scopes;
    const kept = String(params.scope)
      .split(' ')
      .filter((name) => catalogue.has(name) || granted.has(name));
    if (kept.length > 0) params.scope = kept.join(' ');
    return token;
  };
  Object.assign(RefreshToken, { find });
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
