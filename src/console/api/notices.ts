/** The user's choices of notices. */

import { queryOptions } from '@tanstack/react-query';
import { request } from './request.ts';

export const noticeSettingsQuery = queryOptions({
  queryKey: ['notice-settings'],
  queryFn: ({ signal }) => request('GET /notice-settings', { signal }),
});
