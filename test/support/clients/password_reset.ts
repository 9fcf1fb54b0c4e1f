/** A password reset that tests hold open while another request is in progress. */

import { sql } from 'kysely';
import { changePassword } from '../../../src/accounts/account.ts';
import type { Database } from '../../../src/database/database.ts';
import { endSessions } from '../../../src/oauth/storage/end_sessions.ts';
import { until } from '../webhooks/apps.ts';
import type { TestAccount } from './oauth.ts';

/** Sets a new password in a transaction that stays open until `commit`. */
export async function beginReset(
  db: Database,
  account: TestAccount,
): Promise<{ commit: () => Promise<void> }> {
  const begun = Promise.withResolvers<void>();
  const mayCommit = Promise.withResolvers<void>();
  const done = db.transaction().execute(async (tx) => {
    await changePassword(tx, account.id, 'another password');
    await endSessions(tx, account.id);
    begun.resolve();
    await mayCommit.promise;
  });
  await begun.promise;
  return {
    async commit() {
      mayCommit.resolve();
      await done;
    },
  };
}

/** Waits until a request waits for the transaction of another, or has finished. */
export async function untilBlocked(db: Database, work: Promise<unknown>): Promise<void> {
  let isFinished = false;
  void work.finally(() => {
    isFinished = true;
  });
  await until(
    async () => {
      const { rows } = await sql`
        select from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'`.execute(db);
      return isFinished || rows.length > 0;
    },
    (is) => is,
  );
}
