/**
 * What a consent does to the grants that are there. Each authorization has a grant of its own, but a user who reads
 * "this app may …" and agrees decides for the app, not for one of its sign-ins: from then on every grant of that account
 * and client has the scopes that were confirmed, for the APIs that they were confirmed for. Scopes that are gone end the
 * access tokens that name them (the grant's revision), and their deliveries. What follows from an earlier consent
 * without a page changes nothing.
 *
 *   confirmed → other grants of the app narrowed or widened, in the transaction that writes the new one
 */

import { sql } from 'kysely';
import type { Database, Transaction } from '../../database/database.ts';
import { changeGrantsOfClient } from '../../grants/grant.ts';
import { isClaimAllowed, isSameScope } from '../../grants/scopes.ts';
import type { GrantDetails, PendingGrant } from './memo.ts';

/** The names of all scopes that are granted for whatever resource. */
export function grantedScopes(details: GrantDetails): string[] {
  const texts = [details.openid?.scope ?? '', ...Object.values(details.resources ?? {})];
  return [...new Set(texts.flatMap((text) => text.split(' ')))].filter((scope) => scope !== '').sort();
}

interface OtherGrant {
  id: string;
  details: GrantDetails;
}

/**
 * Writes a grant, and what its consent means for the others of the same account and client.
 * @param grant undefined where there is none to be written
 * @param store writes it
 */
export async function withConsent(
  db: Database,
  grant: PendingGrant | undefined,
  store: (db: Database | Transaction) => Promise<unknown>,
): Promise<void> {
  if (grant === undefined || !grant.isConsent || (await findChanges(db, grant)).length === 0) {
    await store(db);
    return;
  }
  await changeGrantsOfClient(db, grant.accountId, grant.clientId, async (tx) => {
    const changes = await findChanges(tx, grant, sql`for update`);
    for (const { id, details, isNarrower } of changes) {
      await sql`
        update grants set scopes = ${grantedScopes(details)}::text[], details = ${JSON.stringify(details)}::jsonb,
          revision = revision + ${isNarrower ? 1 : 0}::int, updated_at = now()
        where id = ${id}`.execute(tx);
    }
    await store(tx);
  });
}

interface Change extends OtherGrant {
  /** Whether something is taken away. */
  isNarrower: boolean;
}

async function findChanges(
  db: Database | Transaction,
  { accountId, clientId, details }: PendingGrant,
  lock = sql``,
): Promise<Change[]> {
  // In the order of their ids, so that of two consents at once one waits for the other.
  const { rows } = await sql<OtherGrant>`
    select id, details from grants
    where account_id = ${accountId} and client_id = ${clientId} and withdrawn_at is null
    order by id ${lock}`.execute(db);
  return rows.flatMap(({ id, details: before }) => {
    const next = confirmedDetails(before, details);
    const pairs = [
      [before.openid?.scope, next.openid?.scope],
      ...Object.keys(before.resources ?? {}).map((api) => [before.resources?.[api], next.resources?.[api]]),
    ] as const;
    if (pairs.every(([had, has]) => isSameScope(had, has))) return [];
    return [{ id, details: next, isNarrower: pairs.some(([had, has]) => !includesScope(has, had)) }];
  });
}

/** What a grant becomes by a consent: for the APIs that it shares with the consent, what was confirmed. */
function confirmedDetails(before: GrantDetails, consent: GrantDetails): GrantDetails {
  const shared = Object.keys(before.resources ?? {}).filter((api) => consent.resources?.[api] !== undefined);
  if (shared.length === 0) return before;
  const resources = { ...before.resources };
  for (const api of shared) resources[api] = consent.resources?.[api] as string;
  const scope = consent.openid?.scope ?? '';
  const names = scope.split(' ');
  const claims = before.openid?.claims?.filter((claim) => isClaimAllowed(claim, names));
  const openid = { scope, ...(claims === undefined || claims.length === 0 ? {} : { claims }) };
  return { ...before, openid, resources };
}

/** Whether one scope text names all of the other. */
function includesScope(one = '', other = ''): boolean {
  const names = new Set(one.split(' '));
  return other === '' || other.split(' ').every((name) => names.has(name));
}
