/**
 * Authorization codes (RFC 6749 section 4.1.2): valid for 60 seconds and one use. Owns the table `authorization_codes`. Also
 * writes `session_grants` (session.ts).
 *
 *   issued (in one statement with its grant) → consumed (in one statement with its refresh token) | expired
 */

import { sql } from 'kysely';
import { errors, Provider } from 'oidc-provider';
import type { Account } from '../../accounts/account.ts';
import { digest } from '../../crypto/digest.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { withdrawGrant } from '../../grants/grant.ts';
import { grantedScopes, storeWithConsent } from './consent.ts';
import { deferConsumption } from './deferred_consumption.ts';
import { type GrantRow, toStoredGrant } from './grant.ts';
import { requestState } from './request_state.ts';
import { sessionEnded } from './session.ts';
import { type AdapterPayload, type ModelStorage, revokedWithGrant, withoutId } from './storage.ts';

export function authorizationCodeStorage(db: Database): ModelStorage {
  return {
    async upsert(code, payload, expiresIn) {
      const state = requestState();
      const grant = state.pendingGrant;
      delete state.pendingGrant;
      const store = async (given: Database | Transaction) => {
        // Waits for a transaction that ends the session, and sees it.
        const { numAffectedRows } = await sql`
          with session as (
            select from login_sessions where uid = ${grant?.sessionUid ?? null} for key share),
          allowed as (select where ${grant === undefined}::boolean or exists (select from session)),
          granted as (
            insert into grants (id, account_id, client_id, scopes, details, client_version)
            select ${grant?.id ?? null}::uuid, ${grant?.accountId ?? null}::uuid, ${grant?.clientId ?? null},
              ${grant === undefined ? [] : grantedScopes(grant.details)}::text[],
              ${JSON.stringify(grant?.details ?? {})}::jsonb, ${grant?.clientVersion ?? null}::timestamptz
            from allowed where ${grant !== undefined}::boolean),
          bound as (
            insert into session_grants (grant_id, session_uid)
            select ${grant?.id ?? null}::uuid, ${grant?.sessionUid ?? null}
            from allowed where ${grant?.endsWithSession === true}::boolean)
          insert into authorization_codes (digest, grant_id, payload, expires_at)
          select ${digest(code)}::bytea, ${payload.grantId}::uuid, ${withoutId(payload)}::jsonb,
            now() + ${expiresIn} * interval '1 second'
          from allowed`.execute(given);
        if (numAffectedRows !== 1n) throw sessionEnded();
      };
      await storeWithConsent(db, grant, store);
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
      // oidc-provider checks expiry first and would not detect the replay of an expired code.
      if (
        row.is_expired &&
        row.consumed_at !== null &&
        row.client_id === Provider.ctx?.oidc.client?.clientId
      ) {
        throw await rejectReplayedCode(db, digest(code));
      }
      cacheGrantAndAccount(row);
      return withConsumed(row, code);
    },
    async consume(code) {
      const state = requestState();
      // If a refresh token is issued, the statement that stores it also consumes the code: one commit for both.
      if (Provider.ctx?.oidc.client?.grantTypeAllowed('refresh_token')) {
        state.pendingCode = digest(code);
        return;
      }
      await deferConsumption(async () => {
        const { rows } = await sql`
          update authorization_codes set consumed_at = now()
          where digest = ${digest(code)} and consumed_at is null and expires_at > now()
          returning digest`.execute(db);
        if (rows.length === 0) throw await rejectReplayedCode(db, digest(code));
      });
    },
    revokeByGrantId: revokedWithGrant,
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

/** Caches the grant and the account, which the query for the code returns too. */
export function cacheGrantAndAccount(row: CodeRow): void {
  const state = requestState();
  state.grants.set(row.id, toStoredGrant(row));
  const account: Account = {
    id: row.account_id,
    externalId: row.external_id,
    email: row.email,
    isEmailVerified: row.email_verified,
    name: row.name,
    isAdmin: row.is_admin,
    createdAt: row.account_created_at,
  };
  state.accounts.set(account.id, account);
}

function withConsumed({ payload, consumed_at }: CodeRow, code: string): AdapterPayload {
  const consumed = consumed_at === null ? {} : { consumed: Math.floor(consumed_at.getTime() / 1_000) };
  return { ...payload, jti: code, ...consumed };
}

/** RFC 6749 section 4.1.2: replaying a code revokes the tokens that it was exchanged for. */
export async function rejectReplayedCode(db: Database, codeDigest: Buffer): Promise<errors.InvalidGrant> {
  const { rows } = await sql<{ grant_id: string }>`
    select grant_id from authorization_codes
    where digest = ${codeDigest} and consumed_at is not null`.execute(db);
  if (rows[0] !== undefined) await withdrawGrant(db, rows[0].grant_id, 'code_replayed');
  return new errors.InvalidGrant('authorization code already consumed or expired');
}
