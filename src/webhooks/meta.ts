/** `/meta`: the public facts with which a subscriber verifies deliveries (specification 5.4). */

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
      // Set by the operator: a server cannot know its own public addresses.
      addresses,
      signatures: signatureShapes,
      headers,
      // Public keys of `ed25519` signatures, newest first. The JWKS contains the same keys by `kid`.
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
