/** The delivery log: paged requests and live updates. */

import type { InfiniteData } from '@tanstack/react-query';
import { infiniteQueryOptions, queryOptions } from '@tanstack/react-query';
import type { Delivery, DeliveryList } from './generated.ts';
import { nextAfter } from './queries.ts';
import { request, send } from './request.ts';

export interface DeliveryFilter {
  status?: string;
  kind?: string;
  /** RFC 3339. */
  since?: string;
  until?: string;
  id?: string;
}

const pageSize = 50;
/** Milliseconds between reloads of a list that deliveries leave. The live stream does not say which do. */
const leftPauseMs = 5_000;

export const deliveriesQuery = (id: string, filter: DeliveryFilter) =>
  infiniteQueryOptions({
    queryKey: ['subscription', id, 'deliveries', filter],
    queryFn: ({ pageParam, signal }) => {
      const query = { ...filter, limit: pageSize, after: pageParam ?? undefined };
      return request('GET /subscriptions/{id}/deliveries', { path: { id }, query, signal });
    },
    initialPageParam: null as string | null,
    getNextPageParam: nextAfter,
    refetchInterval: ['pending', 'failing'].includes(filter.status ?? '') ? leftPauseMs : false,
  });

/** Milliseconds between requests for an unfinished delivery. */
const pendingPauseMs = 1_500;

export const deliveryQuery = (id: string) =>
  queryOptions({
    queryKey: ['delivery', id],
    queryFn: ({ signal }) => request('GET /deliveries/{id}', { path: { id }, signal }),
    refetchInterval: ({ state }) => (state.data?.next_attempt_at == null ? false : pendingPauseMs),
  });

/** Returns the list with a new or changed delivery. */
export function withDelivery(
  data: InfiniteData<DeliveryList> | undefined,
  changed: Delivery,
): InfiniteData<DeliveryList> | undefined {
  if (data === undefined) return undefined;
  let isKnown = false;
  const pages = data.pages.map((page) => ({
    ...page,
    items: page.items.map((each) => {
      if (each.id !== changed.id) return each;
      isKnown = true;
      return changed;
    }),
  }));
  const [first] = pages;
  const newest = first?.items[0];
  // Older deliveries belong to pages that are not loaded.
  if (!isKnown && first !== undefined && (newest === undefined || changed.sequence > newest.sequence)) {
    first.items = [changed, ...first.items];
  }
  return { ...data, pages };
}

/**
 * Streams new and changed deliveries until the server ends the stream.
 * @throws ApiError for an error response
 */
export async function* streamDeliveries(
  id: string,
  filter: DeliveryFilter,
  signal: AbortSignal,
): AsyncGenerator<Delivery> {
  const query = new URLSearchParams(Object.entries(filter).filter(([, value]) => value !== undefined));
  const url = `/subscriptions/${encodeURIComponent(id)}/deliveries?${query}`;
  const response = await send(url, { headers: { accept: 'text/event-stream' }, signal });
  if (response.body === null) return;
  let text = '';
  for await (const part of response.body.pipeThrough(new TextDecoderStream())) {
    text += part;
    const messages = text.split('\n\n');
    text = messages.pop() as string;
    for (const message of messages) {
      const delivery = readMessage(message);
      if (delivery !== null) yield delivery;
    }
  }
}

function readMessage(message: string): Delivery | null {
  const lines = message.split('\n');
  if (!lines.includes('event: delivery')) return null;
  const data = lines.find((line) => line.startsWith('data: '));
  return data === undefined ? null : (JSON.parse(data.slice('data: '.length)) as Delivery);
}
