/**
 * Refresh tokens (RFC 6749 section 6, RFC 9700 section 4.14), rotated on every use except for FAPI 2.0 clients. Owns the
 * table `refresh_tokens`.
 *
 *   issued → used (the same statement issues its successor) → used again within 60 s: same successor | later: grant
 *   withdrawn. A rejected refresh changes nothing.
 *
 * The value of a successor is a keyed hash of its predecessor, so that a client whose response was lost gets the same
 * value again without any secret being stored.
 */

import { createHmac } from 'node:crypto';
import { sql } from 'kysely';
import { errors, Provider } from 'oidc-provider';
import { digest, newSecret } from '../../crypto/digest.ts';
import { deriveKey } from '../../crypto/sealing.ts';
import type { Database } from '../../database/database.ts';
import { withdrawGrant } from '../../grants/grant.ts';
import { type CodeRow, cacheGrantAndAccount, rejectReplayedCode } from './authorization_code.ts';
import { deferConsumption } from './deferred_consumption.ts';
import { requestState } from './request_state.ts';
import { type AdapterPayload, type ModelStorage, revokedWithGrant, withoutId } from './storage.ts';

/** Grace period after the first use, in seconds, in which a refresh token returns the same successor. */
const graceSeconds = 60;

export function refreshTokenStorage(db: Database): ModelStorage {
  return {
    async upsert(token, payload, expiresIn) {
      const state = requestState();
      const { pendingCode = null, pendingRefreshToken = null } = state;
      delete state.pendingCode;
      delete state.pendingRefreshToken;
      const store = () => issue(token, payload, expiresIn, pendingCode, pendingRefreshToken);
      // oidc-provider stores a successor before it validates `resource`, but the refresh token for a code afterwards.
      return pendingRefreshToken === null ? store() : deferConsumption(store);
    },
    async find(token) {
      const { rows } = await sql<CodeRow & { is_spent: boolean }>`
        select t.payload, t.consumed_at,
          t.consumed_at <= now() - ${graceSeconds} * interval '1 second' as is_spent,
          g.id, g.account_id, g.client_id, g.details, g.revision, g.created_at,
          a.external_id, a.email, a.email_verified, a.name, a.is_admin, a.created_at as account_created_at
        from refresh_tokens t
        join grants g on g.id = t.grant_id and g.withdrawn_at is null
        join accounts a on a.id = g.account_id and a.disabled_at is null
        where t.digest = ${digest(token)}`.execute(db);
      const row = rows[0];
      if (row === undefined) return undefined;
      cacheGrantAndAccount(row);
      // The grace period applies to refreshes only. Introspection reports a used token as inactive.
      const isRefresh = Provider.ctx?.oidc.route === 'token';
      const isConsumed = row.consumed_at !== null && (row.is_spent || !isRefresh);
      const consumed = isConsumed
        ? { consumed: Math.floor((row.consumed_at as Date).getTime() / 1_000) }
        : {};
      return { ...row.payload, jti: token, ...consumed };
    },
    async consume(token) {
      requestState().pendingRefreshToken = digest(token);
    },
    async destroy(token) {
      await sql`
        update refresh_tokens set consumed_at = coalesce(consumed_at, now())
        where digest = ${digest(token)}`.execute(db);
    },
    revokeByGrantId: revokedWithGrant,
  };

  /**
   * Consumes the code or predecessor and inserts the token in one statement, so that only one of two concurrent requests
   * succeeds. An insert that conflicts is a repeated response and leaves the existing row unchanged, used or not.
   */
  async function issue(
    token: string,
    payload: AdapterPayload,
    expiresIn: number | undefined,
    code: Buffer | null,
    predecessor: Buffer | null,
  ): Promise<void> {
    const { rows } = await sql<{ may_issue: boolean }>`
      with code as (
        update authorization_codes set consumed_at = now()
        where digest = ${code} and consumed_at is null and expires_at > now()
        returning digest),
      predecessor as (
        update refresh_tokens set consumed_at = coalesce(consumed_at, now())
        where digest = ${predecessor}
          and (consumed_at is null or consumed_at > now() - ${graceSeconds} * interval '1 second')
        returning digest),
      source as (
        select (${code}::bytea is null or exists (select from code))
          and (${predecessor}::bytea is null or exists (select from predecessor)) as may_issue),
      issued as (
        insert into refresh_tokens (digest, grant_id, payload, expires_at)
        select ${digest(token)}, ${payload.grantId}::uuid, ${withoutId(payload)}::jsonb,
          now() + ${expiresIn} * interval '1 second'
        from source where may_issue
        on conflict (digest) do nothing)
      select may_issue from source`.execute(db);
    if (rows[0]?.may_issue) return;
    if (code !== null) throw await rejectReplayedCode(db, code);
    await withdrawGrant(db, payload.grantId as string, 'refresh_token_replayed');
    throw new errors.InvalidGrant('refresh token has already been used');
  }
}

/**
 * Extends the lifetime of a refresh token that is not rotated.
 * @param expiresAt seconds since the epoch
 */
export async function extendRefreshToken(db: Database, token: string, expiresAt: number): Promise<void> {
  await sql`
    update refresh_tokens
    set expires_at = to_timestamp(${expiresAt}), payload = payload || jsonb_build_object('exp', ${expiresAt}::bigint)
    where digest = ${digest(token)} and consumed_at is null`.execute(db);
}

/**
 * Returns the generator of refresh token values.
 * @param secret the deployment's key material
 */
export function refreshTokenValues(secret: Buffer): () => string {
  const key = deriveKey(secret, 'refresh-token-successor');
  return () => {
    const rotated = Provider.ctx?.oidc.entities.RotatedRefreshToken;
    if (rotated === undefined) return newSecret();
    return createHmac('sha256', key).update(rotated.jti).digest('base64url');
  };
}
