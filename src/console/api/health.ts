/** Health statistics of deliveries. */

import { queryOptions } from '@tanstack/react-query';
import { request } from './request.ts';

/** Hours of the time range. */
export type HealthHours = 1 | 24 | 168 | 720;

/** One subscription or app, or all that the user can see: then the id is empty. */
export type HealthSource = { kind: 'subscription' | 'app' | 'all'; id: string };

const hourMs = 3_600_000;
const refreshMs = 15_000;

export const healthQuery = ({ kind, id }: HealthSource, hours: HealthHours) =>
  queryOptions({
    queryKey: ['health', kind, id, hours],
    queryFn: ({ signal }) => {
      const query = { since: new Date(Date.now() - hours * hourMs).toISOString() };
      if (kind === 'all') return request('GET /deliveries/health', { query, signal });
      const input = { path: { id }, query, signal };
      return kind === 'app'
        ? request('GET /apps/{id}/health', input)
        : request('GET /subscriptions/{id}/health', input);
    },
    refetchInterval: refreshMs,
  });
