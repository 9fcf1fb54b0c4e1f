/**
 * The claim `external_id`: the application's own id of the user, in access tokens for the operator's APIs (the base URL and
 * `oauth.resources`) and in their introspection. An API then needs no table of account ids.
 */

import type { Configuration } from 'oidc-provider';
import { type Account, findAccount } from '../accounts/account.ts';
import type { Database } from '../database/database.ts';
import { toAudience } from './access_token.ts';
import type { ProviderOptions } from './provider_options.ts';
import { requestState } from './storage/request_state.ts';

/** oidc-provider adds these claims to a JWT, and stores them with an opaque token. */
export function externalIdClaim({
  db,
  config,
  settings,
}: ProviderOptions): NonNullable<Configuration['extraTokenClaims']> {
  const audiences = new Set([
    config.baseUrl,
    ...settings.resources.map((entry) => (typeof entry === 'string' ? entry : entry.url)),
  ]);
  return async (_ctx, token) => {
    const { accountId, aud } = token as { accountId?: string; aud?: string | string[] };
    const audience = toAudience(aud);
    if (accountId === undefined || audience.length === 0) return undefined;
    if (!audience.every((one) => audiences.has(one))) return undefined;
    const account = await accountOfRequest(db, accountId);
    return account?.externalId == null ? undefined : { external_id: account.externalId };
  };
}

/** Reads an account once in each protocol request. */
export async function accountOfRequest(db: Database, id: string): Promise<Account | undefined> {
  const { accounts } = requestState();
  const account = accounts.get(id) ?? (await findAccount(db, id));
  if (account !== undefined) accounts.set(id, account);
  return account;
}
