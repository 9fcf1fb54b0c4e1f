/**
 * oidc-provider's view of grants. Rows belong to src/grants; the column `details` holds oidc-provider's data.
 */

import { sql } from 'kysely';
import { type AdapterPayload, Provider } from 'oidc-provider';
import { type Database, inTransaction } from '../../database/database.ts';
import { createGrant, type WithdrawalReason, withdrawGrant } from '../../grants/grant.ts';
import { grantedScopes, storeWithConsent } from './consent.ts';
import { existingRequestState, type GrantDetails, requestState, type StoredGrant } from './request_state.ts';
import { holdSession, sessionEnded } from './session.ts';
import type { ModelStorage } from './storage.ts';

export function grantStorage(db: Database): ModelStorage {
  return {
    async find(id) {
      const known = requestState().grants.get(id);
      if (known !== undefined) return toPayload(known);
      const { rows } = await sql<GrantRow>`
        select id, account_id, client_id, details, revision, created_at
        from grants
        where id = ${id} and withdrawn_at is null`.execute(db);
      if (rows[0] === undefined) return undefined;
      const grant = toStoredGrant(rows[0]);
      requestState().grants.set(id, grant);
      return toPayload(grant);
    },
    async destroy(id) {
      requestState().grants.delete(id);
      await withdrawGrant(db, id, withdrawalReason());
    },
  };
}

export interface GrantRow {
  id: string;
  account_id: string;
  client_id: string;
  details: GrantDetails;
  revision: number;
  created_at: Date;
}

export function toStoredGrant(row: GrantRow): StoredGrant {
  return {
    id: row.id,
    accountId: row.account_id,
    clientId: row.client_id,
    details: row.details,
    revision: row.revision,
    createdAt: row.created_at,
  };
}

function toPayload({ id, accountId, clientId, details, createdAt }: StoredGrant): AdapterPayload {
  return {
    ...details,
    jti: id,
    kind: 'Grant',
    accountId,
    clientId,
    iat: Math.floor(createdAt.getTime() / 1_000),
  } as AdapterPayload;
}

/** The revision of a grant that the current request has read. Access tokens contain it. */
export function grantRevisionOf(grantId: string | undefined): number {
  return grantId === undefined ? 0 : (requestState().grants.get(grantId)?.revision ?? 0);
}

/** Writes the pending grant of a request that issues no code. */
export async function savePendingGrant(db: Database): Promise<void> {
  const state = existingRequestState();
  const grant = state?.pendingGrant;
  if (state === undefined || grant === undefined) return;
  delete state.pendingGrant;
  await storeWithConsent(db, grant, (given) =>
    inTransaction(given, async (tx) => {
      if (!(await holdSession(tx, grant.sessionUid))) throw sessionEnded();
      await createGrant(tx, {
        ...grant,
        scopes: grantedScopes(grant.details),
        details: { ...grant.details },
      });
    }),
  );
}

/** Derives the reason for `destroy` from the request, because oidc-provider does not pass one. */
function withdrawalReason(): WithdrawalReason {
  const oidc = Provider.ctx?.oidc;
  if (oidc?.route === 'revocation') return 'refresh_token_revoked';
  if (oidc?.params?.grant_type === 'refresh_token') return 'refresh_token_replayed';
  if (oidc?.route === 'token') return 'code_replayed';
  return 'user';
}
