/**
 * Registration access tokens (RFC 7592 section 3): by which an app reads, changes and deletes its own registration.
 * A change gives another one. Owns the table `registration_access_tokens`.
 */

import { sql } from 'kysely';
import { digest } from '../../crypto/digest.ts';
import type { Database } from '../../database/database.ts';
import { type AdapterPayload, type ModelStorage, withoutId } from '../storage/storage.ts';

export function registrationAccessTokenStorage(db: Database): ModelStorage {
  return {
    async upsert(token, payload) {
      await sql`
        insert into registration_access_tokens (digest, client_id, payload)
        values (${digest(token)}, ${payload.clientId}, ${withoutId(payload)})`.execute(db);
    },
    async find(token) {
      const { rows } = await sql<{ payload: AdapterPayload }>`
        select payload from registration_access_tokens where digest = ${digest(token)}`.execute(db);
      return rows[0] && { ...rows[0].payload, jti: token };
    },
    async destroy(token) {
      await sql`delete from registration_access_tokens where digest = ${digest(token)}`.execute(db);
    },
  };
}
