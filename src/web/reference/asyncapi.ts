/** The AsyncAPI 3 document: the events that subscribers receive. */

import type { EventKind } from '../../events/kind.ts';
import { describeVersions } from '../../events/versions.ts';
import { version } from '../../version.ts';
import { schemaKey } from '../../webhooks/sending/presentation.ts';
import { describedHeaders } from '../../webhooks/subscriptions/delivery_headers.ts';
import type { ReferenceSource } from './openapi.ts';

export function asyncApiDocument({ name, baseUrl, kinds }: ReferenceSource): Record<string, unknown> {
  const described = kinds.flatMap(describeMessages);
  const messages = described.map(({ key, kind, example, payload, title, note }) => ({
    key,
    message: {
      name: kind.name,
      title,
      summary: kind.description,
      ...(note === null ? {} : { description: note }),
      contentType: 'application/json',
      headers: {
        type: 'object',
        properties: Object.fromEntries(
          describedHeaders.map(([header, description]) => [header, { type: 'string', description }]),
        ),
      },
      payload,
      examples: [{ name: 'example', payload: example }],
    },
  }));
  const schemas = described.flatMap(({ schema }) => (schema === null ? [] : [schema]));
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
    components: {
      messages: Object.fromEntries(messages.map(({ key, message }) => [key, message])),
      ...(schemas.length === 0 ? {} : { schemas: Object.fromEntries(schemas) }),
    },
  };
}

interface DescribedMessage {
  key: string;
  kind: EventKind;
  example: unknown;
  payload: unknown;
  title: string;
  note: string | null;
  /** The schema that the payload refers to, with its key. */
  schema: readonly [key: string, schema: unknown] | null;
}

/** One message for a kind without versions, otherwise one for each version. The newest has the key of the kind alone. */
function describeMessages(kind: EventKind): DescribedMessage[] {
  const key = kind.name.replaceAll('.', '_');
  const versions = describeVersions(kind);
  if (versions.length === 0) {
    return [
      { key, kind, example: kind.example, payload: kind.schema, title: kind.name, note: null, schema: null },
    ];
  }
  return versions.map(({ version, schema, example, deprecation, sunset }, index) => ({
    key: index === 0 ? key : `${key}_${version}`,
    kind,
    example,
    payload: { $ref: `#/components/schemas/${schemaKey(kind.name, version)}` },
    title: index === 0 ? kind.name : `${kind.name} (version ${version})`,
    note: noteOf(version, index === 0, deprecation, sunset),
    schema: [
      schemaKey(kind.name, version),
      deprecation === null ? schema : { ...schema, deprecated: true },
    ] as const,
  }));
}

function noteOf(
  version: string,
  isNewest: boolean,
  deprecation: string | null,
  sunset: string | null,
): string {
  const end =
    deprecation === null
      ? ''
      : ` Deprecated from ${deprecation}${sunset === null ? '' : `, gone from ${sunset}`}.`;
  return `Version ${version}${isNewest ? ', the newest' : ''}.${end}`;
}
