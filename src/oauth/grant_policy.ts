/**
 * Which grant an authorization request leads to: a new one for each, so that what is done to the tokens of one
 * authorization leaves those of another alone. Only the console continues with the grant of its login session. What a
 * user confirmed once need not be confirmed again while a grant of it lives, unless nobody can know whether it is the same
 * app that asks. What a user confirms on a page counts for the grants that are there, too (storage/consent.ts).
 */

import { sql } from 'kysely';
import { errors, type KoaContextWithOIDC, type Provider } from 'oidc-provider';
import { isAdmin } from '../accounts/account.ts';
import { isMember } from '../apps/app.ts';
import type { AppSettings } from '../apps/settings.ts';
import type { Client } from '../clients/client.ts';
import { consoleClientId, isOwnClient } from '../clients/own_clients.ts';
import { newId } from '../crypto/ids.ts';
import type { Database } from '../database/database.ts';
import { adminScope, isClaimAllowed, isSameScope } from '../grants/scopes.ts';
import { dropAdminScope } from './scope_policy.ts';
import { currentMemo, type GrantDetails, type PendingGrant } from './storage/memo.ts';

type EngineGrant = InstanceType<Provider['Grant']>;

/**
 * The engine's `loadExistingGrant`.
 * @returns undefined where the user has to be asked
 */
export async function grantFor(
  db: Database,
  provider: Provider,
  ctx: KoaContextWithOIDC,
  client: Client,
): Promise<EngineGrant | undefined> {
  const { account, result } = ctx.oidc;
  const accountId = account?.accountId;
  if (accountId === undefined) return undefined;
  if (ctx.oidc.requestParamScopes.has(adminScope) && !(await isAdmin(db, accountId))) dropAdminScope(ctx);
  const requested = [...ctx.oidc.requestParamScopes];
  // By this account: between the answer and now another one may have signed in.
  const isConfirmed = result?.consent?.accountId === accountId;
  // RFC 8628 section 5.4: whoever sent the code may be somebody else; a device is asked for every time.
  const isDevice = ctx.oidc.route === 'code_verification' || ctx.oidc.route === 'device_resume';
  if (!isConfirmed && isDevice) return undefined;
  const apis = Object.keys(ctx.oidc.resourceServers ?? {});
  if (!isConfirmed && !(await wasConfirmed(db, ctx, client, { accountId, requested, apis })))
    return undefined;
  const before = await grantOfSession(ctx, client, { accountId, requested, apis });
  if (before !== undefined) return before;

  const grant = new provider.Grant({ accountId, clientId: client.id });
  if (requested.length > 0) grant.addOIDCScope(requested.join(' '));
  for (const resource of apis) {
    grant.addResourceScope(resource, requested.join(' '));
  }
  addClaims(grant, [...ctx.oidc.requestParamClaims], requested);
  grant.jti = newId();
  const { openid, resources } = grant as { openid?: unknown; resources?: unknown };
  const details = JSON.parse(JSON.stringify({ openid, resources })) as GrantDetails;
  const pending: PendingGrant = {
    id: grant.jti,
    accountId,
    clientId: client.id,
    details,
    revision: 0,
    createdAt: new Date(),
    isConsent: isConfirmed,
  };
  const memo = currentMemo();
  memo.pendingGrant = pending;
  memo.grants.set(grant.jti, pending);
  return grant;
}

/**
 * Where apps are reviewed, one that nobody has verified yet is for its members to try.
 * @throws AccessDenied for everybody else
 */
export async function requireReviewed(
  db: Database,
  { review }: AppSettings,
  ctx: KoaContextWithOIDC,
  client: Client,
): Promise<void> {
  const accountId = ctx.oidc.account?.accountId;
  if (!review || client.state !== 'unverified' || accountId === undefined) return;
  if (await isMember(db, client.id, accountId)) return;
  throw new errors.AccessDenied('the operator of this server has not verified the app yet');
}

function addClaims(grant: EngineGrant, claims: string[], scopes: string[]): void {
  const refused = claims.filter((claim) => !isClaimAllowed(claim, scopes));
  const allowed = claims.filter((claim) => isClaimAllowed(claim, scopes));
  if (allowed.length > 0) grant.addOIDCClaims(allowed);
  if (refused.length > 0) grant.rejectOIDCClaims(refused);
}

interface Requested {
  accountId: string;
  requested: string[];
  /** The APIs that it is for. */
  apis: string[];
}

/** Whether the user already lets this client have all of that, of each API. */
async function wasConfirmed(
  db: Database,
  ctx: KoaContextWithOIDC,
  client: Client,
  { accountId, requested, apis }: Requested,
): Promise<boolean> {
  // The console is not somebody else whom the user lets in: it acts for whoever is signed in, at this server's address.
  if (client.id === consoleClientId) return true;
  if (!isIdentifiable(client)) return false;
  const { rows } = await sql<{ scopes: string[]; resources: Record<string, string> | null }>`
    select distinct scopes, details -> 'resources' as resources from grants
    where account_id = ${accountId} and client_id = ${client.id} and withdrawn_at is null`.execute(db);
  // What names no API is for this server's own.
  const granted = rows.map((row) => row.resources ?? { [ctx.oidc.issuer]: row.scopes.join(' ') });
  const wanted = apis.length > 0 ? apis : [ctx.oidc.issuer];
  return wanted.every((api) => {
    const texts = granted.flatMap((each) => each[api] ?? []);
    const confirmed = new Set(texts.flatMap((text) => text.split(' ')));
    return texts.length > 0 && requested.every((scope) => confirmed.has(scope));
  });
}

/**
 * A page of the console that is loaded again continues with the grant of its browser's login session: the same account
 * with the same scopes. Another browser has a grant of its own, so that signing out ends only one.
 */
async function grantOfSession(
  ctx: KoaContextWithOIDC,
  client: Client,
  { accountId, requested, apis }: Requested,
): Promise<EngineGrant | undefined> {
  if (client.id !== consoleClientId || ctx.oidc.requestParamClaims.size > 0) return undefined;
  const id = ctx.oidc.session?.grantIdFor(client.id);
  // A withdrawn one is not found.
  const grant = id === undefined ? undefined : await ctx.oidc.provider.Grant.find(id);
  if (grant === undefined || grant.accountId !== accountId || grant.clientId !== client.id) return undefined;
  // The engine's type leaves out what the model keeps.
  const { openid, resources } = grant as unknown as GrantDetails;
  const wanted = requested.join(' ');
  const isSame =
    isSameScope(openid?.scope, wanted) &&
    isSameScope(Object.keys(resources ?? {}).join(' '), apis.join(' ')) &&
    apis.every((api) => isSameScope(resources?.[api], wanted));
  return isSame ? grant : undefined;
}

/**
 * RFC 6749 section 10.2, RFC 8252 section 8.6: a public client on the user's own machine can be any program; it
 * is asked for every time. Codes for the server's own apps only ever go to this server (engine_client.ts).
 */
function isIdentifiable(client: Client): boolean {
  if (isOwnClient(client.id)) return true;
  return client.authMethod !== 'none' || client.redirectUris.every((uri) => uri.startsWith('https://'));
}
