/**
 * `/meta`: what a subscriber needs to know to tell deliveries from forgeries (specification 5.4). Public.
 */

import type { FastifyInstance } from 'fastify';
import type { Config } from '../config/config.ts';
import { defaultHeaderNames } from './delivery_request.ts';
import { signatureShapes } from './signature.ts';

export function registerMeta(api: FastifyInstance, config: Config): void {
  api.get('/meta', async (_request, reply) => {
    return reply.header('cache-control', 'public, max-age=300').send({
      issuer: config.baseUrl,
      // Where the server sends from is known to its operator alone.
      addresses: [],
      signatures: signatureShapes,
      headers: {
        event: defaultHeaderNames.event,
        delivery: defaultHeaderNames.delivery,
        signature: defaultHeaderNames.signature,
        sequence: defaultHeaderNames.sequence,
        attempt: defaultHeaderNames.attempt,
      },
      _links: { self: { href: '/meta' } },
    });
  });
}
