/** The AsyncAPI 3 document: the events that subscribers receive. */

import { version } from '../../version.ts';
import { describedHeaders } from '../../webhooks/subscriptions/delivery_headers.ts';
import type { ReferenceSource } from './openapi.ts';

export function asyncApiDocument({ name, baseUrl, kinds }: ReferenceSource): Record<string, unknown> {
  const messages = kinds.map((kind) => ({
    key: kind.name.replaceAll('.', '_'),
    message: {
      name: kind.name,
      title: kind.name,
      summary: kind.description,
      contentType: 'application/json',
      headers: {
        type: 'object',
        properties: Object.fromEntries(
          describedHeaders.map(([header, description]) => [header, { type: 'string', description }]),
        ),
      },
      payload: kind.schema,
      examples: [{ name: 'example', payload: kind.example }],
    },
  }));
  return {
    asyncapi: '3.0.0',
    info: {
      title: `${name} events`,
      version,
      description: 'Each event is sent as a signed POST to the URLs that are subscribed to its kind.',
    },
    defaultContentType: 'application/json',
    channels: {
      deliveries: {
        // Each subscription has a URL of its own.
        address: null,
        title: 'A subscriber’s URL',
        description: `Subscribed through ${baseUrl}/subscriptions.`,
        messages: Object.fromEntries(
          messages.map(({ key }) => [key, { $ref: `#/components/messages/${key}` }]),
        ),
      },
    },
    operations: {
      deliver: {
        action: 'send',
        channel: { $ref: '#/channels/deliveries' },
        summary: 'Delivered at least once. 2xx confirms; everything else is retried.',
        messages: messages.map(({ key }) => ({ $ref: `#/channels/deliveries/messages/${key}` })),
      },
    },
    components: { messages: Object.fromEntries(messages.map(({ key, message }) => [key, message])) },
  };
}
