/**
 * `/meta`: what a subscriber needs to know to tell deliveries from forgeries (specification 5.4). Public.
 */

import type { FastifyInstance } from 'fastify';
import type { Config } from '../config/config.ts';
import type { WebhookSettings } from './settings.ts';
import { signatureShapes } from './signature.ts';

export function registerMeta(
  api: FastifyInstance,
  config: Config,
  { headers, addresses }: WebhookSettings,
): void {
  api.get('/meta', async (_request, reply) => {
    return reply.header('cache-control', 'public, max-age=300').send({
      issuer: config.baseUrl,
      // As the operator says: a server does not know what it looks like from outside.
      addresses,
      signatures: signatureShapes,
      headers,
      _links: { self: { href: '/meta' } },
    });
  });
}
