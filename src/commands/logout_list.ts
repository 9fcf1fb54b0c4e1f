/** `nuncio logout list`: lists back-channel logout notices and their outcome. */

import { listLogoutNotices } from '../oauth/logout/notice.ts';
import type { Command } from './command.ts';
import { withDatabase } from './storage.ts';

/** Maximum number of notices to print. */
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
