/**
 * Publishing over HTTP: `POST /events`, for the operator's machine clients. A batch is stored as a whole or not at all, and the
 * response is sent once it is durable. Requests with one event share statements (single.ts). Events with the same id are one
 * event, as are requests with the same `Idempotency-Key`.
 */

import type { FastifyInstance } from 'fastify';
import type { Database, Transaction } from '../database/database.ts';
import type { Guard } from '../grants/principal.ts';
import { readIdempotencyKey, runIdempotent } from '../http/idempotency.ts';
import { type JsonResponse, sendResponse } from '../http/json_response.ts';
import { Problem } from '../http/problem.ts';
import { type Batch, batchBytesMax, type PublishedEvent, parseBatch, readBatch } from './batch.ts';
import type { Catalogue } from './catalogue.ts';
import { collectSingles, type SingleEvent } from './single.ts';
import { type StoredEvent, storeEvents } from './store.ts';

export interface PublishingOptions {
  app: FastifyInstance;
  db: Database;
  guard: Guard;
  catalogue: Catalogue;
  /** Called after each commit with the stored events. */
  onPublished: (events: StoredEvent[]) => void;
}

export function registerPublishing(options: PublishingOptions): void {
  const { app, guard, catalogue } = options;
  // Encapsulated because of its own body parser.
  app.register(async (part) => registerBatches(part, options));

  app.get('/event-kinds', async (request, reply) => {
    await guard(request);
    const items = [...catalogue.kinds.values()].map((kind) => ({
      name: kind.name,
      description: kind.description,
      scope: kind.object === null ? null : `read:${kind.object}`,
      schema: kind.schema,
      example: kind.example,
    }));
    return reply
      .header('cache-control', 'private')
      .send({ items, _links: { self: { href: '/event-kinds' } } });
  });
}

function registerBatches(part: FastifyInstance, options: PublishingOptions): void {
  const { db, guard, catalogue, onPublished } = options;
  const storeSingle = collectSingles(db, onPublished);
  part.removeContentTypeParser('application/json');
  part.addContentTypeParser(
    'application/json',
    { parseAs: 'buffer' },
    async (_request: unknown, body: Buffer) => parseBatch(body),
  );
  part.post('/events', { bodyLimit: batchBytesMax }, async (request, reply) => {
    const principal = await guard(request, 'write:events');
    if (principal.accountId !== null) {
      throw new Problem(403, 'Only a client that acts for itself can publish events.', {
        code: 'not-a-machine',
      });
    }
    const batch = readBatch(request.body, catalogue);
    const isList = Array.isArray(request.body);
    const keyed = readIdempotencyKey(request.headers['idempotency-key'], `- ${principal.clientId}`, request);
    const response = responseOf(batch, isList);
    const [event, ...others] = batch.events as [PublishedEvent, ...PublishedEvent[]];
    if (others.length === 0) {
      const isChosen = batch.chosen.length > 0;
      const single: SingleEvent = { event, isChosen, keyed, pointer: isList ? '/0' : '', response };
      return sendResponse(reply, await storeSingle(principal.clientId, single));
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
