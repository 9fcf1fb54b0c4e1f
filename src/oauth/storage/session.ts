/**
 * Login sessions of browsers. Owns the table `login_sessions`, together with end_sessions.ts.
 *
 *   anonymous → signed in (under a new id) → signed out (row deleted) | expired
 */

import { sql } from 'kysely';
import { digest } from '../../crypto/digest.ts';
import type { Database } from '../../database/database.ts';
import { requestState } from './request_state.ts';
import { type AdapterPayload, type ModelStorage, withoutId } from './storage.ts';

export function sessionStorage(db: Database): ModelStorage {
  return {
    async upsert(id, payload, expiresIn) {
      const { uid } = payload;
      const values = sql`${digest(id)}, ${payload.accountId ?? null}, ${withoutId(payload)},
        now() + ${expiresIn} * interval '1 second'`;
      // Keyed by the uid, which survives a change of the id, so that two concurrent changes both succeed.
      if (requestState().sessionUid === uid) {
        // A session that the request came with is only updated. An upsert would recreate it if the user signed out at
        // the same time.
        await sql`
          update login_sessions set (digest, account_id, payload, expires_at) = (${values})
          where uid = ${uid}`.execute(db);
        return;
      }
      await sql`
        insert into login_sessions (uid, digest, account_id, payload, expires_at)
        values (${uid}, ${values})
        on conflict (uid) do update set
          digest = excluded.digest, account_id = excluded.account_id, payload = excluded.payload,
          expires_at = excluded.expires_at`.execute(db);
    },
    async find(id) {
      // Sessions of disabled accounts are invalid.
      const { rows } = await sql<{ payload: AdapterPayload }>`
        select s.payload
        from login_sessions s left join accounts a on a.id = s.account_id
        where s.digest = ${digest(id)} and s.expires_at > now() and a.disabled_at is null`.execute(db);
      if (rows[0] === undefined) return undefined;
      const { payload } = rows[0];
      if (payload.uid !== undefined) requestState().sessionUid = payload.uid;
      return { ...payload, jti: id };
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
