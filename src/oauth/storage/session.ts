/**
 * Login sessions of browsers. Owns the tables `login_sessions`, together with end_sessions.ts, and `session_grants`, together
 * with authorization_code.ts: the grants of the server's own apps, which a trigger withdraws when the session is deleted.
 *
 *   anonymous → signed in (under a new id) → signed out (row deleted) | expired
 */

import { sql } from 'kysely';
import { errors } from 'oidc-provider';
import { consoleClientId } from '../../clients/own_clients.ts';
import { digest } from '../../crypto/digest.ts';
import { expectLocks } from '../../database/connection_user.ts';
import type { Database, Transaction } from '../../database/database.ts';
import { withAccountHold } from '../../grants/delivery_hold.ts';
import { requestState } from './request_state.ts';
import { type AdapterPayload, type ModelStorage, withoutId } from './storage.ts';

/** Shows the user an error page, in place of a redirect to the app. */
export function sessionEnded(): errors.SessionNotFound {
  const error = new errors.SessionNotFound('the login session has ended');
  return Object.assign(error, { allow_redirect: false });
}

/** Whether a session exists. If so, it does not end until the transaction does. */
export async function holdSession(tx: Transaction, uid: string): Promise<boolean> {
  const { rows } = await sql`select from login_sessions where uid = ${uid} for key share`.execute(tx);
  return rows.length > 0;
}

export function sessionStorage(db: Database): ModelStorage {
  return {
    async upsert(id, payload, expiresIn) {
      const { uid } = payload;
      const state = requestState();
      const values = sql`${digest(id)}::bytea, ${payload.accountId ?? null}::uuid, ${withoutId(payload)}::jsonb,
        now() + ${expiresIn} * interval '1 second'`;
      // Waits for a transaction that ends the account's sessions, and sees it.
      const allowed =
        state.signIn === undefined || state.signIn.accountId !== payload.accountId
          ? sql`select`
          : sql`
        select from accounts
        where id = ${state.signIn.accountId} and sign_in_epoch = ${state.signIn.signInEpoch} for share`;
      // Keyed by the uid, which survives a change of the id, so that two concurrent changes both succeed. A session that the
      // request came with is only updated: an upsert would recreate it if the user signed out at the same time.
      const { rows } =
        state.sessionUid === uid
          ? await sql<{ is_allowed: boolean }>`
              with allowed as (${allowed}), stored as (
                update login_sessions set (digest, account_id, payload, expires_at) = (${values})
                where uid = ${uid} and exists (select from allowed))
              select exists (select from allowed) as is_allowed`.execute(db)
          : await sql<{ is_allowed: boolean }>`
              with allowed as (${allowed}), stored as (
                insert into login_sessions (uid, digest, account_id, payload, expires_at)
                select ${uid}::text, ${values} from allowed
                on conflict (uid) do update set
                  digest = excluded.digest, account_id = excluded.account_id, payload = excluded.payload,
                  expires_at = excluded.expires_at)
              select exists (select from allowed) as is_allowed`.execute(db);
      if (rows[0]?.is_allowed !== true) throw sessionEnded();
      if (uid !== undefined) state.sessionUid = uid;
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
      const end = (tx: Transaction) =>
        sql`delete from login_sessions where digest = ${digest(id)}`.execute(tx);
      // Grants of the reference can have subscriptions, which end with them. One can be added before the delete, so the
      // scope decides. Subscriptions of the console's users do not end with its grant.
      const { rows } = await sql<{ account_id: string }>`
        select account_id from login_sessions s
        where digest = ${digest(id)} and account_id is not null and exists (
          select from session_grants b join grants g on g.id = b.grant_id
          where b.session_uid = s.uid and g.client_id <> ${consoleClientId} and g.withdrawn_at is null
            and ('write:webhooks' = any(g.scopes)
              or exists (select from subscriptions w where w.grant_id = g.id and w.state <> 'ended')))`.execute(
        db,
      );
      expectLocks();
      if (rows[0] === undefined) await db.transaction().execute(end);
      else await withAccountHold(db, rows[0].account_id, end);
    },
  };
}
