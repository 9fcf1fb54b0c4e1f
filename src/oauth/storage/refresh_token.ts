/**
 * Refresh tokens (RFC 6749 section 6, RFC 9700 section 4.14): rotated at every use, but for FAPI 2.0
 * clients. Owns the table `refresh_tokens`.
 *
 *   issued (a refused refresh leaves it as it is) → used: its successor is issued by the same statement → (60 s: the
 *   answer that got lost gets the same successor again) → presented later: the grant is withdrawn
 *
 * A successor's value follows from its predecessor's by a keyed hash: whoever asks again gets the same one, and
 * nothing has to be stored that could be read.
 */

import { createHmac } from 'node:crypto';
import { sql } from 'kysely';
import { errors, Provider } from 'oidc-provider';
import { digest, newSecret } from '../../crypto/digest.ts';
import { deriveKey } from '../../crypto/sealing.ts';
import type { Database } from '../../database/database.ts';
import { withdrawGrant } from '../../grants/grant.ts';
import { type CodeRow, codeWasUsed, remember } from './authorization_code.ts';
import { currentMemo } from './memo.ts';
import { postpone } from './settlement.ts';
import { type AdapterPayload, endsWithGrant, type ModelStorage, withoutId } from './storage.ts';

/** Seconds from its first use in which a refresh token still gives the same answer. */
export const graceSeconds = 60;

export function refreshTokenStorage(db: Database): ModelStorage {
  return {
    async upsert(token, payload, expiresIn) {
      const memo = currentMemo();
      const { pendingCode = null, pendingRefreshToken = null } = memo;
      delete memo.pendingCode;
      delete memo.pendingRefreshToken;
      const store = () => issue(token, payload, expiresIn, pendingCode, pendingRefreshToken);
      // The engine stores a successor before it has judged the resource, and what a code gives after that.
      return pendingRefreshToken === null ? store() : postpone(store);
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
      remember(row);
      // Only a refresh has the grace; to introspection a used token is a used token.
      const isRefresh = Provider.ctx?.oidc.route === 'token';
      const isConsumed = row.consumed_at !== null && (row.is_spent || !isRefresh);
      const consumed = isConsumed
        ? { consumed: Math.floor((row.consumed_at as Date).getTime() / 1_000) }
        : {};
      return { ...row.payload, jti: token, ...consumed };
    },
    async consume(token) {
      currentMemo().pendingRefreshToken = digest(token);
    },
    async destroy(token) {
      await sql`
        update refresh_tokens set consumed_at = coalesce(consumed_at, now())
        where digest = ${digest(token)}`.execute(db);
    },
    revokeByGrantId: endsWithGrant,
  };

  /**
   * What is used up and what is issued for it are one statement: of two that race, one finds it unused. An insert that
   * meets its row is the repeated answer, and leaves the row as it is: a used one stays used.
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
    if (code !== null) throw await codeWasUsed(db, code);
    await withdrawGrant(db, payload.grantId as string, 'refresh_token_replayed');
    throw new errors.InvalidGrant('refresh token already used');
  }
}

/**
 * Lengthens the life of a refresh token that is not rotated.
 * @param expiresAt seconds since the epoch
 */
export async function extendRefreshToken(db: Database, token: string, expiresAt: number): Promise<void> {
  await sql`
    update refresh_tokens
    set expires_at = to_timestamp(${expiresAt}), payload = payload || jsonb_build_object('exp', ${expiresAt}::bigint)
    where digest = ${digest(token)} and consumed_at is null`.execute(db);
}

/**
 * How the values of refresh tokens are made.
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
