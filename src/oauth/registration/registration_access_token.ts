/**
 * Registration access tokens (RFC 7592 section 3), with which an app reads, changes and deletes its registration. Each
 * change rotates the token. Owns the table `registration_access_tokens`.
 */

import { sql } from 'kysely';
import { errors, Provider } from 'oidc-provider';
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
      const { rows } = await sql`
        delete from registration_access_tokens where digest = ${digest(token)} returning digest`.execute(db);
      // One of two concurrent changes wins. Deleting the client has already deleted its tokens.
      if (rows.length === 0 && Provider.ctx?.oidc.route === 'client_update') {
        throw new errors.InvalidToken('the registration access token has already been used');
      }
    },
  };
}
