/**
 * The engine's view of grants: the rows of src/grants, with what it keeps of them in `details`.
 */

import { sql } from 'kysely';
import { type AdapterPayload, Provider } from 'oidc-provider';
import type { Database } from '../../database/database.ts';
import { createGrant, type WithdrawalReason, withdrawGrant } from '../../grants/grant.ts';
import { currentMemo, type GrantDetails, knownMemo, type StoredGrant } from './memo.ts';
import type { ModelStorage } from './storage.ts';

export function grantStorage(db: Database): ModelStorage {
  return {
    async find(id) {
      const known = currentMemo().grants.get(id);
      if (known !== undefined) return toPayload(known);
      const { rows } = await sql<GrantRow>`
        select id, account_id, client_id, details, created_at
        from grants
        where id = ${id} and withdrawn_at is null`.execute(db);
      return rows[0] && toPayload(toStoredGrant(rows[0]));
    },
    async destroy(id) {
      currentMemo().grants.delete(id);
      await withdrawGrant(db, id, withdrawalReason());
    },
  };
}

export interface GrantRow {
  id: string;
  account_id: string;
  client_id: string;
  details: GrantDetails;
  created_at: Date;
}

export function toStoredGrant(row: GrantRow): StoredGrant {
  return {
    id: row.id,
    accountId: row.account_id,
    clientId: row.client_id,
    details: row.details,
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

/** The names of all scopes that are granted for whatever resource. */
export function grantedScopes(details: GrantDetails): string[] {
  const texts = [details.openid?.scope ?? '', ...Object.values(details.resources ?? {})];
  return [...new Set(texts.flatMap((text) => text.split(' ')))].filter((scope) => scope !== '').sort();
}

/** Writes a grant that the user confirmed in this request, where no code is there to be written with it. */
export async function savePendingGrant(db: Database): Promise<void> {
  const memo = knownMemo();
  const grant = memo?.pendingGrant;
  if (memo === undefined || grant === undefined) return;
  delete memo.pendingGrant;
  await createGrant(db, { ...grant, scopes: grantedScopes(grant.details), details: { ...grant.details } });
}

/** The engine says "destroy"; why, the request tells. */
function withdrawalReason(): WithdrawalReason {
  const oidc = Provider.ctx?.oidc;
  if (oidc?.route === 'revocation') return 'refresh_token_revoked';
  if (oidc?.params?.grant_type === 'refresh_token') return 'refresh_token_replayed';
  if (oidc?.route === 'token') return 'code_replayed';
  return 'user';
}
