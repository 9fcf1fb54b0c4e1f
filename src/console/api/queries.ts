/** Queries of the pages, with their cache keys. */

import { infiniteQueryOptions, queryOptions } from '@tanstack/react-query';
import { request, send } from './request.ts';

/** The parameter `after` of the link to the next page; null on the last page. */
export function nextAfter(page: { _links: object }): string | null {
  const { next } = page._links as { next?: { href: string } };
  return next === undefined ? null : new URL(next.href, location.origin).searchParams.get('after');
}

/** Items of a page. */
const pageSize = 50;
/** Milliseconds that the catalogue is cached. It only changes when the server restarts. */
const catalogueMs = 300_000;

export interface User {
  /** The account's id. */
  sub: string;
  name?: string;
  email?: string;
}

/** The signed-in user (OpenID Connect userinfo). */
export const userQuery = queryOptions({
  queryKey: ['user'],
  queryFn: async ({ signal }) => (await (await send('/oauth/userinfo', { signal })).json()) as User,
  staleTime: Number.POSITIVE_INFINITY,
});

export const kindsQuery = queryOptions({
  queryKey: ['event-kinds'],
  queryFn: ({ signal }) => request('GET /event-kinds', { signal }),
  staleTime: catalogueMs,
});

export const metaQuery = queryOptions({
  queryKey: ['meta'],
  queryFn: ({ signal }) => request('GET /meta', { signal }),
  staleTime: catalogueMs,
});

export const subscriptionsQuery = infiniteQueryOptions({
  queryKey: ['subscriptions'],
  queryFn: ({ pageParam, signal }) =>
    request('GET /subscriptions', { query: { limit: pageSize, after: pageParam ?? undefined }, signal }),
  initialPageParam: null as string | null,
  getNextPageParam: nextAfter,
});

export const subscriptionQuery = (id: string) =>
  queryOptions({
    queryKey: ['subscription', id],
    queryFn: ({ signal }) => request('GET /subscriptions/{id}', { path: { id }, signal }),
  });

export const secretQuery = (id: string) =>
  queryOptions({
    queryKey: ['subscription', id, 'secret'],
    queryFn: ({ signal }) => request('GET /subscriptions/{id}/secret', { path: { id }, signal }),
    // Do not cache secrets.
    gcTime: 0,
    staleTime: 0,
  });
