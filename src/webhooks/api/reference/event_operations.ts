/** Reference: operations on events. */

import type { EventKind } from '../../../events/kind.ts';
import { keyParameter } from '../../../http/describe.ts';
import type { Operation } from '../../../http/operation.ts';
import { bodyProblems, EventId, jsonBody } from './parts.ts';

export function eventOperations(kinds: readonly EventKind[]): Operation[] {
  const kind = kinds.at(-1);
  const example = {
    kind: kind?.name ?? 'push',
    account: '01981f6d-0f3c-7e1b-a6d5-4c2b1a0f9e88',
    body: kind?.example ?? {},
  };
  return [
    {
      id: 'publish_events',
      method: 'post',
      path: '/events',
      tag: 'events',
      summary: 'Publish events',
      description:
        'The body is one event or an array of up to 1,000. Either all events are accepted or none. Publishing an event again with the same id has no effect.',
      scopes: ['write:events'],
      parameters: [keyParameter],
      body: jsonBody('NewEvents', example),
      responses: {
        202: {
          description: 'The events are durable.',
          schema: 'EventIds',
          headers: ['Idempotency-Replayed'],
        },
      },
      problems: [409, ...bodyProblems],
    },
    {
      id: 'erase_event_body',
      method: 'delete',
      path: '/events/{id}/body',
      tag: 'events',
      summary: 'Erase the body of an event',
      description:
        'Cancels deliveries that have not been sent. The ids of the event and its deliveries stay.',
      scopes: ['write:events'],
      parameters: [
        {
          name: 'id',
          in: 'path',
          description: 'The id of the event.',
          schema: EventId(),
          required: true,
        },
      ],
      responses: { 204: { description: 'The body is erased.' } },
      problems: [404, 413, 415],
    },
    {
      id: 'list_event_kinds',
      method: 'get',
      path: '/event-kinds',
      tag: 'events',
      summary: 'List the kinds of events',
      scopes: [],
      parameters: [],
      responses: { 200: { description: 'All kinds.', schema: 'EventKindList' } },
      problems: [],
    },
    {
      id: 'read_meta',
      method: 'get',
      path: '/meta',
      tag: 'events',
      summary: 'Read the addresses, header names and public keys of deliveries',
      description:
        'Returns the addresses that deliveries come from, the names of their headers, and the public keys.',
      scopes: null,
      parameters: [],
      responses: {
        200: { description: 'Addresses, signature formats, header names and public keys.', schema: 'Meta' },
      },
      problems: [],
    },
  ];
}
