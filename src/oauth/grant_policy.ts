/**
 * Decides which grant an authorization request uses.
 *
 * Each authorization creates a grant, so that revoking the tokens of one does not affect another. Only the console reuses the
 * grant of its login session. The page does not ask again for scopes that a live grant of the same app has, unless the app cannot
 * be identified. Consent on a page also changes the existing grants of the app (storage/consent.ts).
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
import { Problem } from '../http/problem.ts';
import type { RateLimiter } from '../http/rate_limit.ts';
import { sessionSeconds } from './login_session.ts';
import { dropAdminScope } from './scope_policy.ts';
import { type GrantDetails, type PendingGrant, requestState } from './storage/request_state.ts';

type ProviderGrant = InstanceType<Provider['Grant']>;

/** The result of the consent page. */
export type SubmittedConsent = {
  accountId: string | undefined;
  /** The client's `updatedAt` when its description was that of the page, in ISO 8601. */
  clientVersion: string;
};

/**
 * oidc-provider's `loadExistingGrant`.
 * @returns undefined if the user must be asked for consent
 */
export async function resolveGrant(
  db: Database,
  provider: Provider,
  ctx: KoaContextWithOIDC,
  client: Client,
): Promise<ProviderGrant | undefined> {
  const { account, result } = ctx.oidc;
  const accountId = account?.accountId;
  if (accountId === undefined) return undefined;
  // A sign-in that is no longer valid leads to an error page here. Later in the request it would not.
  if (requestState().signIn !== undefined) await storeSession(ctx);
  if (ctx.oidc.requestParamScopes.has(adminScope) && !(await isAdmin(db, accountId))) dropAdminScope(ctx);
  const requested = [...ctx.oidc.requestParamScopes];
  // The result must belong to this account: another one may have signed in since the consent was submitted.
  const consent = result?.consent as SubmittedConsent | undefined;
  const isConfirmed = consent?.accountId === accountId;
  // The app has changed since the page was submitted.
  if (isConfirmed && consent?.clientVersion !== client.updatedAt.toISOString()) return undefined;
  // RFC 8628 section 5.4: someone else may have sent the user code, so a device always requires consent.
  const isDevice = ctx.oidc.route === 'code_verification' || ctx.oidc.route === 'device_resume';
  if (!isConfirmed && isDevice) return undefined;
  const apis = Object.keys(ctx.oidc.resourceServers ?? {});
  if (!isConfirmed && !(await hasConsented(db, ctx, client, { accountId, requested, apis })))
    return undefined;
  const existing = await grantOfSession(ctx, client, { accountId, requested, apis });
  if (existing !== undefined) return existing;

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
    clientVersion: client.updatedAt,
    sessionUid: await storeSession(ctx),
    endsWithSession: isOwnClient(client.id),
  };
  const state = requestState();
  state.pendingGrant = pending;
  state.grants.set(grant.jti, pending);
  return grant;
}

/**
 * Stores a session that is new or has a new sign-in. oidc-provider stores it at the end of the request, but grants refer to it.
 * @returns its uid
 */
async function storeSession(ctx: KoaContextWithOIDC): Promise<string> {
  // oidc-provider's types omit these members.
  const session = ctx.oidc.session as unknown as ProviderSession;
  const state = requestState();
  if (state.sessionUid !== session.uid || state.signIn !== undefined) {
    try {
      await session.save(sessionSeconds);
    } catch (error) {
      // Otherwise oidc-provider would try again after it has rendered the error.
      session.destroyed = true;
      throw error;
    }
    delete state.signIn;
    // Otherwise oidc-provider would not set the cookie.
    session.touched = true;
  }
  return session.uid;
}

interface ProviderSession {
  uid: string;
  touched: boolean;
  destroyed?: boolean;
  save: (ttlSeconds: number) => Promise<string>;
}

/**
 * Restricts unverified apps to their members if the operator reviews apps.
 * @throws AccessDenied for all other users
 */
export async function requireReviewedApp(
  db: Database,
  { review }: AppSettings,
  ctx: KoaContextWithOIDC,
  client: Client,
): Promise<void> {
  const accountId = ctx.oidc.account?.accountId;
  if (!review || client.state !== 'unverified' || accountId === undefined) return;
  if (await isMember(db, client.id, accountId)) return;
  throw new errors.AccessDenied('the operator of this server has not verified this app yet');
}

/** The part of `NUNCIO_RATE_LIMIT` that one user's authorizations of one app have. */
const authorizationsFactor = 0.1;

/**
 * Counts an authorization that needs no more of the user. The app redeems its code, within a limit that its users share: one of them, with some
 * addresses, could use that up.
 * @throws TemporarilyUnavailable above the limit of the user at the app
 */
export function countAuthorization(limiter: RateLimiter, accountId: string, clientId: string): void {
  try {
    limiter.count(`oauth authorizations:${clientId} account:${accountId}`, authorizationsFactor);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    throw new errors.TemporarilyUnavailable(
      'too many sign-ins of one user at this app, try again in a minute',
    );
  }
}

function addClaims(grant: ProviderGrant, claims: string[], scopes: string[]): void {
  const rejected = claims.filter((claim) => !isClaimAllowed(claim, scopes));
  const allowed = claims.filter((claim) => isClaimAllowed(claim, scopes));
  if (allowed.length > 0) grant.addOIDCClaims(allowed);
  if (rejected.length > 0) grant.rejectOIDCClaims(rejected);
}

interface Requested {
  accountId: string;
  requested: string[];
  /** The resources of the request. */
  apis: string[];
}

/**
 * Whether the user has already granted this client all requested scopes for all requested resources. Grants of a version from
 * before the app lost its verification do not count, because nobody vouches any more for the description that the user saw.
 * Versions are compared, not times: a grant can be stored while the app is changing.
 */
async function hasConsented(
  db: Database,
  ctx: KoaContextWithOIDC,
  client: Client,
  { accountId, requested, apis }: Requested,
): Promise<boolean> {
  // The console is a part of this server, not a third party, and only runs at this server's own address.
  if (client.id === consoleClientId) return true;
  if (!isIdentifiable(client)) return false;
  const { rows } = await sql<{ scopes: string[]; resources: Record<string, string> | null }>`
    select distinct g.scopes, g.details -> 'resources' as resources
    from grants g join clients c on c.id = g.client_id
    where g.account_id = ${accountId} and g.client_id = ${client.id} and g.withdrawn_at is null
      and (c.unverified_at is null or g.client_version >= date_trunc('milliseconds', c.unverified_at))`.execute(
    db,
  );
  // Grants without resources are for the server's own API.
  const granted = rows.map((row) => row.resources ?? { [ctx.oidc.issuer]: row.scopes.join(' ') });
  const wanted = apis.length > 0 ? apis : [ctx.oidc.issuer];
  return wanted.every((api) => {
    const texts = granted.flatMap((each) => each[api] ?? []);
    const confirmed = new Set(texts.flatMap((text) => text.split(' ')));
    return texts.length > 0 && requested.every((scope) => confirmed.has(scope));
  });
}

/**
 * The console reuses the grant of its browser's login session after a reload, for the same account and the same scopes.
 * Other browsers have grants of their own, so that signing out ends only one of them.
 */
async function grantOfSession(
  ctx: KoaContextWithOIDC,
  client: Client,
  { accountId, requested, apis }: Requested,
): Promise<ProviderGrant | undefined> {
  if (client.id !== consoleClientId || ctx.oidc.requestParamClaims.size > 0) return undefined;
  const id = ctx.oidc.session?.grantIdFor(client.id);
  // Withdrawn grants are not found.
  const grant = id === undefined ? undefined : await ctx.oidc.provider.Grant.find(id);
  if (grant === undefined || grant.accountId !== accountId || grant.clientId !== client.id) return undefined;
  // oidc-provider's type omits the stored members.
  const { openid, resources } = grant as unknown as GrantDetails;
  const wanted = requested.join(' ');
  const isSame =
    isSameScope(openid?.scope, wanted) &&
    isSameScope(Object.keys(resources ?? {}).join(' '), apis.join(' ')) &&
    apis.every((api) => isSameScope(resources?.[api], wanted));
  return isSame ? grant : undefined;
}

/**
 * RFC 6749 section 10.2, RFC 8252 section 8.6: any program on the user's machine can pose as a public native client, so
 * its users are always asked. Codes for the server's own apps are sent only to this server (provider_client.ts).
 */
function isIdentifiable(client: Client): boolean {
  if (isOwnClient(client.id)) return true;
  return client.authMethod !== 'none' || client.redirectUris.every((uri) => uri.startsWith('https://'));
}
