/**
 * Authorization codes (RFC 6749 section 4.1.2): 60 seconds, once. Owns the table `authorization_codes`.
 *
 *   issued (together with its grant) → consumed (together with the refresh token it gives) | expired
 */

import { sql } from 'kysely';
import { errors, Provider } from 'oidc-provider';
import type { Account } from '../../accounts/account.ts';
import { digest } from '../../crypto/digest.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { withdrawGrant } from '../../grants/grant.ts';
import { grantedScopes, withConsent } from './consent.ts';
import { type GrantRow, toStoredGrant } from './grant.ts';
import { currentMemo } from './memo.ts';
import { postpone } from './settlement.ts';
import { type AdapterPayload, endsWithGrant, type ModelStorage, withoutId } from './storage.ts';

export function authorizationCodeStorage(db: Database): ModelStorage {
  return {
    async upsert(code, payload, expiresIn) {
      const memo = currentMemo();
      const grant = memo.pendingGrant;
      delete memo.pendingGrant;
      const store = (given: Database | Transaction) =>
        sql`
          with granted as (
            insert into grants (id, account_id, client_id, scopes, details)
            select ${grant?.id ?? null}::uuid, ${grant?.accountId ?? null}::uuid, ${grant?.clientId ?? null},
              ${grant === undefined ? [] : grantedScopes(grant.details)}::text[],
              ${JSON.stringify(grant?.details ?? {})}::jsonb
            where ${grant !== undefined}::boolean)
          insert into authorization_codes (digest, grant_id, payload, expires_at)
          values (${digest(code)}, ${payload.grantId}, ${withoutId(payload)},
            now() + ${expiresIn} * interval '1 second')`.execute(given);
      await withConsent(db, grant, store);
    },
    async find(code) {
      const { rows } = await sql<CodeRow & { is_expired: boolean }>`
        select c.payload, c.consumed_at, c.expires_at <= now() as is_expired, g.id, g.account_id, g.client_id, g.details, g.revision, g.created_at,
          a.external_id, a.email, a.email_verified, a.name, a.is_admin, a.created_at as account_created_at
        from authorization_codes c
        join grants g on g.id = c.grant_id and g.withdrawn_at is null
        join accounts a on a.id = g.account_id and a.disabled_at is null
        where c.digest = ${digest(code)}`.execute(db);
      const row = rows[0];
      if (row === undefined) return undefined;
      // The engine looks at the time first, and would let a used code pass for one that is merely too old.
      if (
        row.is_expired &&
        row.consumed_at !== null &&
        row.client_id === Provider.ctx?.oidc.client?.clientId
      ) {
        throw await codeWasUsed(db, digest(code));
      }
      remember(row);
      return withConsumed(row, code);
    },
    async consume(code) {
      const memo = currentMemo();
      // Where a refresh token follows, the statement that stores it uses the code up: one commit for both.
      if (Provider.ctx?.oidc.client?.grantTypeAllowed('refresh_token')) {
        memo.pendingCode = digest(code);
        return;
      }
      await postpone(async () => {
        const { rows } = await sql`
          update authorization_codes set consumed_at = now()
          where digest = ${digest(code)} and consumed_at is null and expires_at > now()
          returning digest`.execute(db);
        if (rows.length === 0) throw await codeWasUsed(db, digest(code));
      });
    },
    revokeByGrantId: endsWithGrant,
  };
}

export interface CodeRow extends GrantRow {
  payload: AdapterPayload;
  consumed_at: Date | null;
  external_id: string | null;
  email: string | null;
  email_verified: boolean | null;
  name: string;
  is_admin: boolean;
  account_created_at: Date;
}

/** The grant and the account came with the code: the request need not ask for them again. */
export function remember(row: CodeRow): void {
  const memo = currentMemo();
  memo.grants.set(row.id, toStoredGrant(row));
  const account: Account = {
    id: row.account_id,
    externalId: row.external_id,
    email: row.email,
    isEmailVerified: row.email_verified,
    name: row.name,
    isAdmin: row.is_admin,
    createdAt: row.account_created_at,
  };
  memo.accounts.set(account.id, account);
}

function withConsumed({ payload, consumed_at }: CodeRow, code: string): AdapterPayload {
  const consumed = consumed_at === null ? {} : { consumed: Math.floor(consumed_at.getTime() / 1_000) };
  return { ...payload, jti: code, ...consumed };
}

/** RFC 6749 section 4.1.2: a code used twice takes back what the first use gave. */
export async function codeWasUsed(db: Database, codeDigest: Buffer): Promise<errors.InvalidGrant> {
  const { rows } = await sql<{ grant_id: string }>`
    select grant_id from authorization_codes
    where digest = ${codeDigest} and consumed_at is not null`.execute(db);
  if (rows[0] !== undefined) await withdrawGrant(db, rows[0].grant_id, 'code_replayed');
  return new errors.InvalidGrant('authorization code already consumed or expired');
}
