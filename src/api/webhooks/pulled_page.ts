/** Events as a consumer that asks for them gets them. */

import type { EventPage, ReadItem } from '../../webhooks/reader/event_reader.ts';

/** An item as JSON. The body is the exact text that is signed. */
export function itemText({ sequence, event, headers, body }: ReadItem): string {
  const members = {
    sequence,
    id: event.id,
    kind: event.kind,
    created_at: new Date(event.createdAt).toISOString(),
    account: event.accountId,
    headers,
  };
  return `${JSON.stringify(members).slice(0, -1)},"body":${body.toString()}}`;
}

export function pageText({ items, gaps }: EventPage, self: string, next: string): string {
  const rest = { gaps, _links: { self: { href: self }, next: { href: next } } };
  return `{"items":[${items.map(itemText).join(',')}],${JSON.stringify(rest).slice(1)}`;
}
