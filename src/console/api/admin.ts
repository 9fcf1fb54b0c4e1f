/** Queries of the operator's pages. */

import { infiniteQueryOptions, keepPreviousData, queryOptions } from '@tanstack/react-query';
import { connectionsRefreshMs } from './apps.ts';
import type { Operations } from './generated.ts';
import { nextAfter } from './queries.ts';
import { type RequestInput, request } from './request.ts';

type Lists =
  | 'GET /admin/rejected-events'
  | 'GET /admin/accounts'
  | 'GET /admin/apps'
  | 'GET /admin/subscriptions'
  | 'GET /admin/audit'
  | 'GET /admin/connections';

const pageSize = 50;

/** A paged list. Empty filters are omitted. */
export function adminListQuery<Name extends Lists>(name: Name, filter: Record<string, string>) {
  const given = Object.fromEntries(Object.entries(filter).filter(([, value]) => value !== ''));
  return infiniteQueryOptions({
    queryKey: ['admin', name, given],
    queryFn: ({ pageParam, signal }) => {
      const query = { ...given, limit: pageSize, after: pageParam ?? undefined };
      // The compiler cannot see that every list of the union accepts these parameters.
      return request(
        name as 'GET /admin/accounts',
        { query, signal } as RequestInput<'GET /admin/accounts'>,
      ) as Promise<Operations[Name]['response']>;
    },
    initialPageParam: null as string | null,
    getNextPageParam: nextAfter,
    // The rows of the filter before stay until the answer, so that the focus is not lost with them.
    placeholderData: keepPreviousData,
  });
}

/** Connections of all apps, which refresh by themselves. */
export const adminConnectionsQuery = (filter: Record<string, string>) => ({
  ...adminListQuery('GET /admin/connections', filter),
  refetchInterval: connectionsRefreshMs,
});

/** One account, as a list. */
export const accountQuery = (id: string) =>
  infiniteQueryOptions({
    queryKey: ['admin', 'account', id],
    queryFn: async ({ signal }) => ({
      items: [await request('GET /admin/accounts/{id}', { path: { id }, signal })],
    }),
    initialPageParam: null,
    getNextPageParam: () => null,
  });

/** Never refetched while it is shown, because the user may be editing a correction. */
export const rejectedEventQuery = (id: string) =>
  queryOptions({
    queryKey: ['admin', 'rejected-event', id],
    queryFn: ({ signal }) => request('GET /admin/rejected-events/{id}', { path: { id }, signal }),
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  });

const hourMs = 3_600_000;
const refreshMs = 15_000;

export const statsQuery = (hours: number) =>
  queryOptions({
    queryKey: ['admin', 'stats', hours],
    queryFn: ({ signal }) => {
      const since = new Date(Date.now() - hours * hourMs).toISOString();
      return request('GET /admin/stats', { query: { since }, signal });
    },
    refetchInterval: refreshMs,
  });

export const nodesQuery = queryOptions({
  queryKey: ['admin', 'nodes'],
  queryFn: ({ signal }) => request('GET /admin/nodes', { signal }),
  refetchInterval: refreshMs,
});

/** Not refreshed by itself: each examination takes some statements. */
export const doctorQuery = queryOptions({
  queryKey: ['admin', 'doctor'],
  queryFn: ({ signal }) => request('GET /admin/doctor', { signal }),
});

export const keysQuery = queryOptions({
  queryKey: ['admin', 'keys'],
  queryFn: ({ signal }) => request('GET /admin/keys', { signal }),
});

export const settingsQuery = queryOptions({
  queryKey: ['admin', 'settings'],
  queryFn: ({ signal }) => request('GET /admin/settings', { signal }),
});
