/** `nuncio logout list`: what apps were told of users who signed out, and what they could not be told. */

import { listLogoutNotices } from '../oauth/logout/notice.ts';
import type { Command } from './command.ts';
import { withDatabase } from './storage.ts';

/** Notices shown. */
const shownMax = 100;

export const logoutList: Command = {
  options: { json: { type: 'boolean' } },
  help: [['--json', 'print JSON']],
  async run({ values }, { config, print }) {
    const notices = await withDatabase(config, (db) => listLogoutNotices(db, shownMax));
    if (values.json === true) {
      const rows = notices.map((notice) => ({
        client_id: notice.clientId,
        account: notice.accountId,
        state: notice.state,
        attempts: notice.attempts,
        created_at: notice.createdAt.toISOString(),
        next_attempt_at: notice.state === 'waiting' ? notice.dueAt.toISOString() : null,
        error: notice.lastError,
      }));
      print(JSON.stringify(rows));
      return;
    }
    for (const { createdAt, clientId, state, attempts, lastError } of notices) {
      const reason = lastError === null ? '' : `  ${lastError}`;
      print(`${createdAt.toISOString()}  ${clientId}  ${state}, attempts: ${attempts}${reason}`);
    }
  },
};
