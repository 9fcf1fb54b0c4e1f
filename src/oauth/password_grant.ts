/**
 * The resource owner password credentials grant (RFC 6749 section 4.3). Deprecated by RFC 9700 section 2.4, off by
 * default, and available to confidential clients only. Sign-in uses the same throttle as the login page.
 */

import { errors, type KoaContextWithOIDC, type Provider } from 'oidc-provider';
import { holdSignIn } from '../accounts/account.ts';
import { signIn } from '../accounts/sign_in.ts';
import { inTransaction, type Transaction } from '../database/database.ts';
import { createGrant } from '../grants/grant.ts';
import { writeGrant } from '../grants/grant_limit.ts';
import { resourceIndicators } from './features.ts';
import type { ProviderOptions } from './provider_options.ts';

/** `Deprecation` header (RFC 9745): the date of RFC 9700, in seconds since the epoch. */
export const deprecatedSince = '@1735689600';

/** Registers `grant_type=password` with oidc-provider. */
export function registerPasswordGrant(provider: Provider, options: ProviderOptions): void {
  const { db, config } = options;
  const { getResourceServerInfo } = resourceIndicators(options);

  provider.registerGrantType('password', handle, ['username', 'password', 'scope']);

  async function handle(ctx: KoaContextWithOIDC): Promise<void> {
    const { client, params } = ctx.oidc;
    ctx.set('deprecation', deprecatedSince);
    if (client === undefined || client.tokenEndpointAuthMethod === 'none') {
      throw new errors.UnauthorizedClient('this grant type requires a confidential client');
    }
    if (client.dpopBoundAccessTokens || client.tlsClientCertificateBoundAccessTokens) {
      throw new errors.UnauthorizedClient('this grant type does not issue sender-constrained tokens');
    }
    const { username, password } = params ?? {};
    if (typeof username !== 'string' || typeof password !== 'string') {
      throw new errors.InvalidRequest('username and password must be provided');
    }
    const signedIn = await signIn(db, username, password, ctx.ip);
    if (signedIn.outcome === 'throttled') ctx.set('retry-after', String(signedIn.retryAfterSeconds));
    if (signedIn.outcome !== 'signed-in') throw new errors.InvalidGrant(`sign-in ${signedIn.outcome}`);
    const accountId = signedIn.account.id;

    const info = await getResourceServerInfo?.(ctx, config.baseUrl, client);
    if (info === undefined) throw new errors.InvalidTarget();
    // OpenID Connect scopes require the login page.
    const scope = [...ctx.oidc.requestParamScopes].filter((name) => name.includes(':')).join(' ');
    const details = { openid: { scope }, resources: { [config.baseUrl]: scope } };
    const grant = { accountId, clientId: client.clientId, scopes: scope.split(' ').filter(Boolean), details };
    const hold = async (tx: Transaction) => {
      if (!(await holdSignIn(tx, accountId, signedIn.signInEpoch)))
        throw new errors.InvalidGrant('sign-in refused');
    };
    const grantId = await writeGrant(db, grant, hold, (given) =>
      inTransaction(given, async (tx) => {
        await hold(tx);
        return createGrant(tx, grant);
      }),
    );

    const shared = { accountId, client, grantId, gty: 'password' };
    const accessToken = new provider.AccessToken({ ...shared, scope });
    accessToken.resourceServer = new provider.ResourceServer(config.baseUrl, info);
    accessToken.scope = scope;
    ctx.oidc.entity('AccessToken', accessToken);
    const value = await accessToken.save();
    const refresh = client.grantTypeAllowed('refresh_token')
      ? {
          refresh_token: await new provider.RefreshToken({
            ...shared,
            scope,
            resource: config.baseUrl,
          }).save(),
        }
      : {};
    ctx.body = {
      access_token: value,
      expires_in: accessToken.expiration,
      token_type: accessToken.tokenType,
      scope,
      ...refresh,
    };
  }
}
