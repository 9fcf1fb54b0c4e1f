/**
 * Publishing over HTTP: `POST /events`, for the operator's machine clients. A batch is stored as a whole or not at all, and the
 * response is sent once it is durable. Requests with one event share statements (single.ts). Events with the same id are one
 * event, as are requests with the same `Idempotency-Key`.
 */

import Type from 'typebox';
import type { Database, Transaction } from '../../database/database.ts';
import {
  type Batch,
  batchBytesMax,
  batchEventsMax,
  type PublishedEvent,
  parseInTurns,
  readBatch,
} from '../../events/batch.ts';
import type { EventKind } from '../../events/kind.ts';
import { batchSingles, type SingleEvent } from '../../events/single.ts';
import { type StoredEvent, storeEvents } from '../../events/store.ts';
import { addBodyParser, bodyTurn } from '../../http/body_limit.ts';
import { jsonBody, keyParameter } from '../../http/describe.ts';
import { readIdempotencyKey, runIdempotent } from '../../http/idempotency.ts';
import { type JsonResponse, sendResponse } from '../../http/json_response.ts';
import { named, StringEnum, strict } from '../../http/schema.ts';
import { AccountNameSchema } from '../account_name.ts';
import { machineToken } from '../admission.ts';
import { route, serve } from '../route.ts';
import { EventId, type EventRoutesOptions, tag } from './options.ts';

/** @param kinds the platform's kinds, which bodies name */
export function publishRoutes(kinds: readonly EventKind[]) {
  const newEvent = (kind: EventKind) =>
    Type.Object(
      {
        kind: StringEnum(kind.name),
        account: AccountNameSchema,
        body: kind.schema,
        id: Type.Optional(EventId()),
      },
      strict,
    );
  const kind = kinds.at(-1);
  // Without declared kinds, there is nothing to publish.
  const event = named(
    'NewEvent',
    kind === undefined ? Type.Unsafe<never>({ not: {} }) : Type.Union(kinds.map(newEvent)),
  );
  const events = named(
    'NewEvents',
    Type.Union([event, Type.Array(event, { minItems: 1, maxItems: batchEventsMax })]),
  );
  const example = {
    kind: kind?.name ?? 'push',
    account: '01981f6d-0f3c-7e1b-a6d5-4c2b1a0f9e88',
    body: kind?.example ?? {},
  };
  return {
    publish: route({
      id: 'publish_events',
      method: 'post',
      path: '/events',
      tag,
      summary: 'Publish events',
      description:
        'The body is one event or an array of up to 1,000. Either all events are accepted or none. Publishing an event again with the same id has no effect.',
      admission: machineToken('write:events'),
      parameters: [keyParameter],
      // Events are stored as the text that was sent, and each is validated by the schema of its kind (events/batch.ts).
      body: { ...jsonBody(events, example), isRaw: true, bytesMax: batchBytesMax },
      responses: {
        202: {
          description: 'The events are durable.',
          schema: EventIds,
          headers: ['Idempotency-Replayed'],
        },
      },
      problems: [409],
    }),
  };
}

const EventIds = named(
  'EventIds',
  Type.Object({ id: Type.Optional(Type.String()), ids: Type.Array(Type.String()) }, strict),
);

export function registerPublishing(options: EventRoutesOptions, kinds: readonly EventKind[]): void {
  // Encapsulated because of its own body parser.
  options.api.register(async (part) => registerBatches({ ...options, api: part }, publishRoutes(kinds)));
}

function registerBatches(options: EventRoutesOptions, { publish }: ReturnType<typeof publishRoutes>): void {
  const { api, db, catalogue, onPublished } = options;
  const storeSingle = batchSingles(db, onPublished);
  api.removeContentTypeParser('application/json');
  addBodyParser(api, 'application/json', (bytes, request) =>
    parseInTurns(bytes, (count) => bodyTurn(request, count)),
  );
  serve(options, publish, async ({ request, reply, caller: { clientId } }) => {
    const batch = await readBatch(request.body, catalogue, (bytes) => bodyTurn(request, bytes));
    const isList = Array.isArray(request.body);
    const keyed = readIdempotencyKey(request.headers['idempotency-key'], `- ${clientId}`, request);
    const response = responseOf(batch, isList);
    const [event, ...others] = batch.events as [PublishedEvent, ...PublishedEvent[]];
    if (others.length === 0) {
      const isChosen = batch.chosen.length > 0;
      const single: SingleEvent = { event, isChosen, keyed, pointer: isList ? '/0' : '', response };
      return sendResponse(reply, await storeSingle(clientId, single));
    }
    let stored: StoredEvent[] = [];
    const work = async (within: Database | Transaction): Promise<JsonResponse> => {
      stored = await storeEvents(within, batch.events, batch.chosen);
      return response;
    };
    const given =
      keyed === undefined
        ? await work(db)
        : await db.transaction().execute((tx) => runIdempotent(tx, keyed, work));
    onPublished(stored);
    return sendResponse(reply, given);
  });
}

function responseOf({ events }: Batch, isList: boolean): JsonResponse {
  const ids = events.map(({ id }) => id);
  return { status: 202, headers: {}, body: JSON.stringify(isList ? { ids } : { id: ids[0], ids }) };
}
