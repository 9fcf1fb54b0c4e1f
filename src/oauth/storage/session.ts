/**
 * Login sessions of browsers. Owns the table `login_sessions`, together with session_end.ts.
 *
 *   anonymous → signed in (under a new id) → signed out (the row is gone) or expired
 */

import { sql } from 'kysely';
import { digest } from '../../crypto/digest.ts';
import type { Database } from '../../database/database.ts';
import { currentMemo } from './memo.ts';
import { type AdapterPayload, type ModelStorage, withoutId } from './storage.ts';

export function sessionStorage(db: Database): ModelStorage {
  return {
    async upsert(id, payload, expiresIn) {
      const { uid } = payload;
      const values = sql`${digest(id)}, ${payload.accountId ?? null}, ${withoutId(payload)},
        now() + ${expiresIn} * interval '1 second'`;
      // By the uid, which stays when the id is changed: of two requests that change it at once both go on.
      if (currentMemo().sessionUid === uid) {
        // One that the request came with is only changed: were it written anew, whoever asks at the moment in which the
        // user signs out would bring it back.
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
      // A disabled account's sessions are nobody's.
      const { rows } = await sql<{ payload: AdapterPayload }>`
        select s.payload
        from login_sessions s left join accounts a on a.id = s.account_id
        where s.digest = ${digest(id)} and s.expires_at > now() and a.disabled_at is null`.execute(db);
      if (rows[0] === undefined) return undefined;
      const { payload } = rows[0];
      if (payload.uid !== undefined) currentMemo().sessionUid = payload.uid;
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
