/** `nuncio logout list`: lists back-channel logout notices and their outcome. */

import { listLogoutNotices } from '../oauth/logout/notice.ts';
import { listCommand, shownMax } from './list_command.ts';

export const logoutList = listCommand({
  read: (db) => listLogoutNotices(db, shownMax),
  none: 'No logout notices.',
  toJson: (notice) => ({
    client_id: notice.clientId,
    account: notice.accountId,
    state: notice.state,
    attempts: notice.attempts,
    created_at: notice.createdAt.toISOString(),
    next_attempt_at: notice.state === 'waiting' ? notice.dueAt.toISOString() : null,
    error: notice.lastError,
  }),
  toLine({ createdAt, clientId, state, attempts, lastError }) {
    const reason = lastError === null ? '' : `  ${lastError}`;
    return `${createdAt.toISOString()}  ${clientId}  ${state}, attempts: ${attempts}${reason}`;
  },
});
