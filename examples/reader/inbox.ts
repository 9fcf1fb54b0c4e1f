/**
 * The app's webhook endpoint: verifies the signature first and handles each delivery id once, because deliveries can arrive
 * more than once.
 */

import type { FastifyInstance } from 'fastify';
import { type Headers, isAuthentic, libraries, type Shape, shapes } from './verify.ts';

export interface Received {
  id: string;
  /** The key in the URL of its subscription. */
  key: string;
  kind: string;
  sequence: number;
  attempt: number;
  shape: Shape;
  library: string;
  body: unknown;
  at: string;
}

/** Maximum number of deliveries in memory. */
const keptMax = 200;

export class Inbox {
  readonly received: Received[] = [];
  /** Number of deliveries with a wrong signature. */
  refused = 0;
  readonly #secrets = new Map<string, string>();
  readonly #handled = new Set<string>();
  readonly #watchers = new Set<(delivery: Received) => void>();

  /** @param key the last part of the subscription's URL; an app can have many subscriptions */
  expect(key: string, secret: string): void {
    this.#secrets.set(key, secret);
  }

  forget(key: string): void {
    this.#secrets.delete(key);
  }

  /** @returns a function that stops watching */
  watch(onDelivery: (delivery: Received) => void): () => void {
    this.#watchers.add(onDelivery);
    return () => this.#watchers.delete(onDelivery);
  }

  /** The route that receives deliveries. */
  register(app: FastifyInstance): void {
    app.register(async (scope) => {
      // The signature covers the raw bytes: parse the body afterwards.
      scope.removeAllContentTypeParsers();
      scope.addContentTypeParser('*', { parseAs: 'string' }, (_request, body, done) => done(null, body));
      scope.post<{ Params: { shape: string; key: string }; Body: string }>(
        '/webhooks/:shape/:key',
        async ({ params, body, headers }, reply) => {
          const shape = shapes.find((candidate) => candidate === params.shape);
          const secret = this.#secrets.get(params.key);
          // 410 tells the sender that the subscription is gone.
          if (shape === undefined || secret === undefined) return reply.code(410).send();
          if (!(await isAuthentic(shape, body, headers, secret))) {
            this.refused += 1;
            return reply.code(401).send();
          }
          this.#handle(params.key, shape, body, headers);
          return reply.code(204).send();
        },
      );
    });
  }

  #handle(key: string, shape: Shape, body: string, headers: Headers): void {
    const id = String(headers['nuncio-delivery'] ?? headers['webhook-id']);
    if (this.#handled.has(id)) return;
    this.#handled.add(id);
    const delivery: Received = {
      id,
      key,
      kind: String(headers['nuncio-event']),
      sequence: Number(headers['nuncio-sequence']),
      attempt: Number(headers['nuncio-attempt'] ?? 1),
      shape,
      library: libraries[shape],
      body: JSON.parse(body),
      at: new Date().toISOString(),
    };
    this.received.unshift(delivery);
    this.received.length = Math.min(this.received.length, keptMax);
    for (const watcher of this.#watchers) watcher(delivery);
  }
}
