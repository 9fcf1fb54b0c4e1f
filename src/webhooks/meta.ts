/**
 * `/meta`: what a subscriber needs to know to tell deliveries from forgeries (specification 5.4). Public.
 */

import type { FastifyInstance } from 'fastify';
import type { Config } from '../config/config.ts';
import { standardPublicKey } from './sending/delivery_key.ts';
import type { DeliveryKeyring } from './sending/delivery_keyring.ts';
import type { WebhookSettings } from './settings.ts';
import { signatureShapes } from './subscriptions/signature.ts';

export function registerMeta(
  api: FastifyInstance,
  config: Config,
  { headers, addresses }: WebhookSettings,
  keys: DeliveryKeyring,
): void {
  api.get('/meta', async (_request, reply) => {
    return reply.header('cache-control', 'public, max-age=300').send({
      issuer: config.baseUrl,
      // As the operator says: a server does not know what it looks like from outside.
      addresses,
      signatures: signatureShapes,
      headers,
      // What `ed25519` is checked with, the newest first; the same keys are in the JWKS, by their `kid`.
      public_keys: keys.published.map((key) => ({
        kid: key.kid,
        key: standardPublicKey(key),
        signs_from: new Date(key.signsFrom).toISOString(),
        signs_until: key.signsUntil === null ? null : new Date(key.signsUntil).toISOString(),
      })),
      _links: { self: { href: '/meta' }, jwks: { href: '/oauth/jwks' } },
    });
  });
}
