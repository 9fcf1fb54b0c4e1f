/** A test platform: the shipped articles and two different collections. */

import shipped from '../../../nuncio.config.ts';
import {
  createOnly,
  defineChild,
  defineCollection,
  Nullable,
  now,
  serverSet,
  Timestamp,
  Type,
} from '../../../src/index.ts';
import { createPlatform, loadPlatform } from '../../../src/platform.ts';
import { defaultQuotas } from '../../../src/webhooks/subscriptions/quotas.ts';

/** No children and no actions. Every user reads every bookmark. */
export const bookmarks = defineCollection({
  name: 'bookmarks',
  item: 'bookmark',
  scope: 'links',
  fields: {
    label: Type.String({ minLength: 1, maxLength: 80 }),
    address: createOnly(Type.String({ maxLength: 400, pattern: '^https?://' })),
    rank: Type.Integer({ minimum: -1_000, maximum: 1_000, default: 0 }),
    weight: Nullable(Type.Number({ minimum: 0 })),
    pinned: Type.Boolean({ default: false }),
    seen_at: Nullable(Timestamp()),
    tags: Type.Array(Type.String({ minLength: 1, maxLength: 20 }), { maxItems: 10, default: [] }),
    device: Nullable(Type.String({ format: 'uuid' })),
    place: Nullable(Type.Object({ city: Type.String({ maxLength: 50 }), zip: Type.Optional(Type.String()) })),
  },
  readable: 'all',
  filters: ['author', 'pinned', 'rank', 'weight', 'seen_at', 'device'],
  sorts: ['rank', 'label', 'seen_at', 'weight', 'updated_at'],
  example: { label: 'Nuncio', address: 'https://nuncio.example', tags: ['api'] },
});

/** A state machine with two actions. Only the owner can read a ticket. */
export const tickets = defineCollection({
  name: 'tickets',
  item: 'ticket',
  scope: 'tickets',
  fields: {
    subject: Type.String({ minLength: 1, maxLength: 100 }),
    // Column names that could conflict with names in generated statements.
    owner: Type.String({ maxLength: 20, default: 'nobody' }),
    sort_key: Type.String({ maxLength: 20, default: 'k' }),
    count: Type.Integer({ default: 0 }),
    state: serverSet(Type.Enum(['open', 'waiting', 'closed']), 'open'),
    answer: serverSet(Nullable(Type.String({ minLength: 1, maxLength: 500 })), null),
    closed_at: serverSet(Nullable(Timestamp()), null),
  },
  filters: ['state'],
  sorts: ['owner'],
  children: [
    defineChild({
      name: 'notes',
      item: 'note',
      fields: { text: Type.String({ minLength: 1, maxLength: 200 }) },
      createdBy: 'owner',
      example: { text: 'Called back.' },
    }),
  ],
  actions: {
    wait: { guard: { state: 'open' }, change: { state: 'waiting' } },
    close: {
      guard: { state: ['open', 'waiting'] },
      refusal: 'The ticket is closed.',
      input: ['answer'],
      change: { state: 'closed', closed_at: now },
      emits: 'closed',
    },
  },
  example: { subject: 'It does not open' },
});

export const testPlatform = createPlatform({
  collections: [...(shipped.collections ?? []), bookmarks, tickets],
  eventKinds: shipped.eventKinds ?? [],
});

export const testScopes = ['posts', 'links', 'tickets'].flatMap((object) => [
  `read:${object}`,
  `write:${object}`,
]);

/**
 * The default platform, except that hosts that never accept a delivery are tried as often as others. For tests of
 * other subjects.
 */
export async function platformWithPatientHosts() {
  const platform = await loadPlatform(null);
  const many = { attemptsPerUnknownHost: 10_000, unknownHostRate: 10_000, attemptsPerApp: 10_000 };
  return { ...platform, webhooks: { ...platform.webhooks, quotas: { ...defaultQuotas, ...many } } };
}
