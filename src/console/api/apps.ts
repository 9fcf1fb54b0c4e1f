/** Queries of the app pages. */

import { infiniteQueryOptions, queryOptions } from '@tanstack/react-query';
import { nextAfter } from './queries.ts';
import { request, send } from './request.ts';

/** Items of a page. */
const pageSize = 50;
/** Milliseconds that scopes are cached. They only change when the server restarts. */
const scopesMs = 300_000;

export const appsQuery = infiniteQueryOptions({
  queryKey: ['apps'],
  queryFn: ({ pageParam, signal }) =>
    request('GET /apps', { query: { limit: pageSize, after: pageParam ?? undefined }, signal }),
  initialPageParam: null as string | null,
  getNextPageParam: nextAfter,
});

export const appQuery = (id: string) =>
  queryOptions({
    queryKey: ['app', id],
    queryFn: ({ signal }) => request('GET /apps/{id}', { path: { id }, signal }),
  });

/** An app has at most 100 members and invitations, which fit on one page. */
export const membersQuery = (id: string) =>
  queryOptions({
    queryKey: ['app', id, 'members'],
    queryFn: ({ signal }) =>
      request('GET /apps/{id}/members', { path: { id }, query: { limit: 200 }, signal }),
  });

/** Milliseconds between refreshes of connections. */
export const connectionsRefreshMs = 3_000;

export const appConnectionsQuery = (id: string) =>
  infiniteQueryOptions({
    queryKey: ['app', id, 'connections'],
    queryFn: ({ pageParam, signal }) =>
      request('GET /apps/{id}/connections', {
        path: { id },
        query: { limit: pageSize, after: pageParam ?? undefined },
        signal,
      }),
    initialPageParam: null as string | null,
    getNextPageParam: nextAfter,
    refetchInterval: connectionsRefreshMs,
  });

/** An app has at most 20 subscriptions of its own. */
export const appSubscriptionsQuery = (id: string) =>
  queryOptions({
    queryKey: ['app', id, 'subscriptions'],
    queryFn: ({ signal }) =>
      request('GET /apps/{id}/subscriptions', { path: { id }, query: { limit: 50 }, signal }),
  });

export const invitationsQuery = queryOptions({
  queryKey: ['app-invitations'],
  queryFn: ({ signal }) => request('GET /app-invitations', { query: { limit: pageSize }, signal }),
});

export interface Scope {
  name: string;
  /** Completes "The app can …". */
  description: string;
}

/** The scopes of OpenID Connect. The reference lists only those of the API. */
const openidScopes: readonly Scope[] = [
  { name: 'openid', description: 'identify the user' },
  { name: 'profile', description: 'see the user’s name' },
  { name: 'email', description: 'see the user’s email address' },
  { name: 'offline_access', description: 'keep access while the user is away' },
];

interface ReferenceScopes {
  components: {
    securitySchemes: { oauth: { flows: { authorizationCode: { scopes: Record<string, string> } } } };
  };
}

/** All scopes that users can grant, with their descriptions. */
export const scopesQuery = queryOptions({
  queryKey: ['scopes'],
  queryFn: async ({ signal }): Promise<readonly Scope[]> => {
    const document = (await (await send('/openapi.json', { signal })).json()) as ReferenceScopes;
    const { scopes } = document.components.securitySchemes.oauth.flows.authorizationCode;
    const described = Object.entries(scopes).map(([name, description]) => ({ name, description }));
    return [...described, ...openidScopes];
  },
  staleTime: scopesMs,
});
