/**
 * Interactions: authorization requests that wait for the user. Owns the table `interactions`, together with
 * end_sessions.ts.
 *
 *   started → login or consent submitted → resumed (row deleted) | expired
 */

import { sql } from 'kysely';
import type { Database } from '../../database/database.ts';
import { requestState, type VerifiedSignIn } from './request_state.ts';
import { type AdapterPayload, type ModelStorage, requestWithoutId } from './storage.ts';

export function interactionStorage(db: Database): ModelStorage {
  return {
    async upsert(uid, payload, expiresIn) {
      // The session id is a secret of the browser and is not stored; the uid identifies the session.
      const { session, ...rest } = payload;
      const { cookie: _cookie, ...known } = (session ?? {}) as Record<string, unknown>;
      // The payload's type requires the cookie in a session.
      const stored = requestWithoutId(session === undefined ? rest : { ...rest, session: known as never });
      await sql`
        insert into interactions (uid, payload, expires_at)
        values (${uid}, ${stored}, now() + ${expiresIn} * interval '1 second')
        on conflict (uid) do update set payload = excluded.payload, expires_at = excluded.expires_at`.execute(
        db,
      );
    },
    async find(uid) {
      const { rows } = await sql<{ payload: AdapterPayload }>`
        select payload from interactions where uid = ${uid} and expires_at > now()`.execute(db);
      if (rows[0] === undefined) return undefined;
      const { payload } = rows[0];
      const { accountId, signInEpoch } = (payload.result?.login ?? {}) as Partial<VerifiedSignIn>;
      if (accountId !== undefined && signInEpoch !== undefined) {
        requestState().signIn = { accountId, signInEpoch };
      }
      return { ...payload, jti: uid };
    },
    async destroy(uid) {
      await sql`delete from interactions where uid = ${uid}`.execute(db);
    },
  };
}
