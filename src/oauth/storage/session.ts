/**
 * Login sessions of browsers. Owns the table `login_sessions`, together with session_end.ts.
 *
 *   anonymous → signed in (under a new id) → signed out or expired
 */

import { sql } from 'kysely';
import { digest } from '../../crypto/digest.ts';
import type { Database } from '../../database/database.ts';
import { type AdapterPayload, type ModelStorage, withoutId } from './storage.ts';

export function sessionStorage(db: Database): ModelStorage {
  return {
    async upsert(id, payload, expiresIn) {
      // By the uid, which stays when the id is changed: of two requests that change it at once both go on.
      await sql`
        insert into login_sessions (digest, uid, account_id, payload, expires_at)
        values (${digest(id)}, ${payload.uid}, ${payload.accountId ?? null}, ${withoutId(payload)},
          now() + ${expiresIn} * interval '1 second')
        on conflict (uid) do update set
          digest = excluded.digest, account_id = excluded.account_id, payload = excluded.payload,
          expires_at = excluded.expires_at`.execute(db);
    },
    async find(id) {
      // A disabled account's sessions are nobody's.
      const { rows } = await sql<{ payload: AdapterPayload }>`
        select s.payload
        from login_sessions s left join accounts a on a.id = s.account_id
        where s.digest = ${digest(id)} and s.expires_at > now() and a.disabled_at is null`.execute(db);
      return rows[0] && { ...rows[0].payload, jti: id };
    },
    async findByUid(uid) {
      const { rows } = await sql<{ payload: AdapterPayload }>`
        select s.payload
        from login_sessions s left join accounts a on a.id = s.account_id
        where s.uid = ${uid} and s.expires_at > now() and a.disabled_at is null`.execute(db);
      return rows[0]?.payload;
    },
    async destroy(id) {
      await sql`delete from login_sessions where digest = ${digest(id)}`.execute(db);
    },
  };
}
