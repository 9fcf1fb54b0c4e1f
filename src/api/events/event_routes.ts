/** The kinds of events, the erasure of one event's body, and `/meta`, with which subscribers verify deliveries. */

import Type from 'typebox';
import { isEventId } from '../../events/batch.ts';
import { links, listOf, ok, pathParameter } from '../../http/describe.ts';
import { Problem } from '../../http/problem.ts';
import { Nullable, named, strict, Time } from '../../http/schema.ts';
import { eraseEvent } from '../../webhooks/log/retention.ts';
import { standardPublicKey } from '../../webhooks/sending/delivery_key.ts';
import { signatureShapes } from '../../webhooks/subscriptions/signature.ts';
import { anyone, machineToken, token } from '../admission.ts';
import { route, serve } from '../route.ts';
import { EventId, type EventRoutesOptions, tag } from './options.ts';

const KindShown = named(
  'EventKind',
  Type.Object(
    {
      name: Type.String(),
      description: Type.String(),
      scope: Nullable(Type.String()),
      schema: Type.Any(),
      example: Type.Any(),
      resource: Nullable(
        Type.String({ description: 'The link of `format: "thin"`, with JSON pointers of the body.' }),
      ),
      version: Nullable(
        Type.String({ description: 'The newest version, which `schema` and `example` describe.' }),
      ),
      versions: Type.Array(
        Type.Object(
          {
            version: Type.String(),
            schema: Type.Any(),
            example: Type.Any(),
            deprecation: Nullable(Type.String({ format: 'date' })),
            sunset: Nullable(Type.String({ format: 'date' })),
          },
          strict,
        ),
        { description: 'Newest first.' },
      ),
      built_in: Type.Boolean({ description: 'Whether only the server publishes it. Filters do not apply.' }),
    },
    strict,
  ),
);

const Meta = named(
  'Meta',
  Type.Object({
    issuer: Type.String({ format: 'uri' }),
    addresses: Type.Array(Type.String()),
    signatures: Type.Array(Type.String()),
    headers: Type.Record(Type.String(), Type.String()),
    public_keys: Type.Array(
      Type.Object({
        kid: Type.String(),
        key: Type.String(),
        signs_from: Time(),
        signs_until: Nullable(Time()),
      }),
    ),
    client_certificate: Nullable(
      Type.Object(
        { pem: Type.String(), sha256: Type.String(), valid_until: Time() },
        {
          ...strict,
          description: 'The certificate of deliveries with `auth: { "type": "mtls" }`, with its chain.',
        },
      ),
    ),
    _links: links,
  }),
);

export const eventRoutes = {
  erase: route({
    id: 'erase_event_body',
    method: 'delete',
    path: '/events/{id}/body',
    tag,
    summary: 'Erase the body of an event',
    description: 'Cancels deliveries that have not been sent. The ids of the event and its deliveries stay.',
    admission: machineToken('write:events'),
    parameters: [pathParameter('id', 'The id of the event.', EventId())],
    responses: { 204: { description: 'The body is erased.' } },
  }),
  kinds: route({
    id: 'list_event_kinds',
    method: 'get',
    path: '/event-kinds',
    tag,
    summary: 'List the kinds of events',
    admission: token(),
    responses: ok('All kinds.', listOf(KindShown, undefined)),
  }),
  meta: route({
    id: 'read_meta',
    method: 'get',
    path: '/meta',
    tag,
    summary: 'Read the addresses, header names and public keys of deliveries',
    description:
      'Returns the addresses that deliveries come from, the names of their headers, and the public keys.',
    admission: anyone,
    responses: ok('Addresses, signature formats, header names and public keys.', Meta),
  }),
};

export function registerEventRoutes(options: EventRoutesOptions): void {
  const { db, catalogue, config, settings, deliveryKeys, clientCertificate, onErased } = options;

  serve(options, eventRoutes.erase, async ({ reply, params: { id } }) => {
    const positions = isEventId(id) ? await eraseEvent(db, id) : [];
    if (positions.length === 0) throw new Problem(404, 'Event not found, or its body is already erased.');
    onErased(positions);
    return reply.code(204).send();
  });

  serve(options, eventRoutes.kinds, async ({ reply }) => {
    const items = [...catalogue.kinds.values()].map((kind) => ({
      name: kind.name,
      description: kind.description,
      scope: kind.object === null ? null : `read:${kind.object}`,
      schema: kind.schema,
      example: kind.example,
      resource: kind.resource ?? null,
      version: kind.version ?? null,
      versions: kind.versions,
      built_in: kind.isBuiltIn,
    }));
    return reply
      .header('cache-control', 'private')
      .send({ items, _links: { self: { href: '/event-kinds' } } });
  });

  serve(options, eventRoutes.meta, async ({ reply }) =>
    reply.header('cache-control', 'public, max-age=300').send({
      issuer: config.baseUrl,
      // Set by the operator: a server cannot know its own public addresses.
      addresses: settings.addresses,
      signatures: signatureShapes,
      headers: settings.headers,
      // Public keys of `ed25519` signatures, newest first. The JWKS contains the same keys by `kid`.
      public_keys: deliveryKeys.published.map((key) => ({
        kid: key.kid,
        key: standardPublicKey(key),
        signs_from: new Date(key.signsFrom).toISOString(),
        signs_until: key.signsUntil === null ? null : new Date(key.signsUntil).toISOString(),
      })),
      client_certificate: clientCertificate && {
        pem: clientCertificate.pem,
        sha256: clientCertificate.sha256,
        valid_until: clientCertificate.validUntil.toISOString(),
      },
      _links: { self: { href: '/meta' }, jwks: { href: '/oauth/jwks' } },
    }),
  );
}
