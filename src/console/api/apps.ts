/** What the pages of apps ask for. */

import { infiniteQueryOptions, queryOptions } from '@tanstack/react-query';
import { nextAfter } from './queries.ts';
import { request } from './request.ts';

const pageSize = 50;

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

export const membersQuery = (id: string) =>
  queryOptions({
    queryKey: ['app', id, 'members'],
    queryFn: ({ signal }) =>
      request('GET /apps/{id}/members', { path: { id }, query: { limit: 200 }, signal }),
  });

export const appSubscriptionsQuery = (id: string) =>
  queryOptions({
    queryKey: ['app', id, 'subscriptions'],
    queryFn: ({ signal }) => request('GET /apps/{id}/subscriptions', { path: { id }, query: {}, signal }),
  });

export const invitationsQuery = queryOptions({
  queryKey: ['app-invitations'],
  queryFn: ({ signal }) => request('GET /app-invitations', { query: {}, signal }),
});

interface ApiDocument {
  components: {
    securitySchemes: { oauth: { flows: { authorizationCode: { scopes: Record<string, string> } } } };
  };
}

/** What users can allow an app, in words, by name. */
export const scopesQuery = queryOptions({
  queryKey: ['scopes'],
  queryFn: async ({ signal }) => {
    const document = (await (await fetch('/openapi.json', { signal })).json()) as ApiDocument;
    return document.components.securitySchemes.oauth.flows.authorizationCode.scopes;
  },
  staleTime: Number.POSITIVE_INFINITY,
});
