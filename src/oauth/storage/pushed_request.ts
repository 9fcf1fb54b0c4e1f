/**
 * Pushed authorization requests (RFC 9126). Owns the table `pushed_requests`.
 *
 *   pushed → (loaded with each page view) → consumed when the user is redirected to the app | expired
 */

import { sql } from 'kysely';
import { errors } from 'oidc-provider';
import { digest } from '../../crypto/digest.ts';
import type { Database } from '../../database/database.ts';
import { type AdapterPayload, type ModelStorage, requestWithoutId } from './storage.ts';

export function pushedRequestStorage(db: Database): ModelStorage {
  return {
    async upsert(id, payload, expiresIn) {
      await sql`
        insert into pushed_requests (digest, payload, expires_at)
        values (${digest(id)}, ${requestWithoutId(payload)}, now() + ${expiresIn} * interval '1 second')`.execute(
        db,
      );
    },
    async find(id) {
      const { rows } = await sql<{ payload: AdapterPayload; consumed_at: Date | null }>`
        select payload, consumed_at from pushed_requests where digest = ${digest(id)}`.execute(db);
      const row = rows[0];
      if (row === undefined) return undefined;
      const consumed =
        row.consumed_at === null ? {} : { consumed: Math.floor(row.consumed_at.getTime() / 1_000) };
      return { ...row.payload, jti: id, ...consumed };
    },
    async consume(id) {
      const { rows } = await sql`
        update pushed_requests set consumed_at = now()
        where digest = ${digest(id)} and consumed_at is null
        returning digest`.execute(db);
      if (rows.length === 0) throw new errors.InvalidRequestUri('request_uri has already been used');
    },
  };
}
