/**
 * Applies a consent to existing grants. Each authorization has its own grant, but a user who consents on a page decides for the
 * app as a whole. Afterwards, all grants of that account and client have the confirmed scopes, for the resources that they share
 * with the consent. Removed scopes invalidate access tokens that contain them (by the grant's revision) and stop their
 * deliveries. An authorization without a consent page changes nothing.
 *
 *   consent → other grants of the app narrowed or widened, in the transaction that writes the new grant
 */

import { sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';
import { changeGrantsOfClient } from '../../grants/grant.ts';
import { countLiveGrants, grantsMax, makeRoomForGrant, writeGrant } from '../../grants/grant_limit.ts';
import { isClaimAllowed, isSameScope } from '../../grants/scopes.ts';
import type { GrantDetails, PendingGrant } from './request_state.ts';
import { holdSession, sessionEnded } from './session.ts';

/** All granted scopes, for any resource, sorted. */
export function grantedScopes(details: GrantDetails): string[] {
  const texts = [details.openid?.scope ?? '', ...Object.values(details.resources ?? {})];
  return [...new Set(texts.flatMap((text) => text.split(' ')))].filter((scope) => scope !== '').sort();
}

interface OtherGrant {
  id: string;
  details: GrantDetails;
}

/**
 * Writes a grant and applies its consent to the other grants of the same account and client.
 * @param grant undefined if there is no grant to write
 * @param store writes the grant
 */
export async function storeWithConsent(
  db: Database,
  grant: PendingGrant | undefined,
  store: (db: Database | Transaction) => Promise<unknown>,
): Promise<void> {
  if (grant === undefined) {
    await store(db);
    return;
  }
  // Before the grants, in the order of a transaction that ends the sessions of the account: so the two do not deadlock.
  const hold = async (tx: Transaction) => {
    if (!(await holdSession(tx, grant.sessionUid))) throw sessionEnded();
  };
  if (!grant.isConsent || !(await isChange(db, grant))) {
    await writeGrant(db, grant, hold, store);
    return;
  }
  await changeGrantsOfClient(db, grant.accountId, grant.clientId, async (tx) => {
    await hold(tx);
    // First, because a database of an earlier version may have very many grants of an app.
    await makeRoomForGrant(tx, grant);
    const changes = await findChanges(tx, grant, sql`for update`);
    await sql`
      update grants set scopes = array(select jsonb_array_elements_text(given.scopes)), details = given.details,
        revision = revision + given.narrower, updated_at = now()
      from jsonb_to_recordset(${JSON.stringify(changes.map(toRow))}::jsonb)
        as given (id uuid, scopes jsonb, details jsonb, narrower int)
      where grants.id = given.id`.execute(tx);
    await store(tx);
  });
}

/** Whether the consent changes other grants. If there are too many to read, it may. */
async function isChange(db: Database, grant: PendingGrant): Promise<boolean> {
  return (await countLiveGrants(db, grant)) >= grantsMax || (await findChanges(db, grant)).length > 0;
}

interface Change extends OtherGrant {
  /** Whether a scope is removed. */
  isNarrower: boolean;
}

function toRow({ id, details, isNarrower }: Change): object {
  return { id, scopes: grantedScopes(details), details, narrower: isNarrower ? 1 : 0 };
}

async function findChanges(
  db: Database | Transaction,
  { accountId, clientId, details }: PendingGrant,
  lock = sql``,
): Promise<Change[]> {
  // Rows are locked in the order of their ids, so that concurrent consents do not deadlock.
  const { rows } = await sql<OtherGrant>`
    select id, details from grants
    where account_id = ${accountId} and client_id = ${clientId} and withdrawn_at is null
    order by id ${lock}`.execute(db);
  return rows.flatMap(({ id, details: current }) => {
    const next = confirmedDetails(current, details);
    const pairs = [
      [current.openid?.scope, next.openid?.scope],
      ...Object.keys(current.resources ?? {}).map((api) => [current.resources?.[api], next.resources?.[api]]),
    ] as const;
    if (pairs.every(([old, updated]) => isSameScope(old, updated))) return [];
    return [{ id, details: next, isNarrower: pairs.some(([old, updated]) => !includesScope(updated, old)) }];
  });
}

/** The details of a grant after a consent: the confirmed scopes, for the resources that both share. */
function confirmedDetails(current: GrantDetails, consent: GrantDetails): GrantDetails {
  const shared = Object.keys(current.resources ?? {}).filter((api) => consent.resources?.[api] !== undefined);
  if (shared.length === 0) return current;
  const resources = { ...current.resources };
  for (const api of shared) resources[api] = consent.resources?.[api] as string;
  const scope = consent.openid?.scope ?? '';
  const names = scope.split(' ');
  const claims = current.openid?.claims?.filter((claim) => isClaimAllowed(claim, names));
  const openid = { scope, ...(claims === undefined || claims.length === 0 ? {} : { claims }) };
  return { ...current, openid, resources };
}

/** Whether one scope string contains all scopes of the other. */
function includesScope(one = '', other = ''): boolean {
  const names = new Set(one.split(' '));
  return other === '' || other.split(' ').every((name) => names.has(name));
}
