/**
 * The example platform: articles with comments, and two event kinds that other systems publish. Replace it with a
 * declaration of your own.
 */

import {
  defineChild,
  defineCollection,
  defineConfig,
  defineEventKind,
  Nullable,
  now,
  serverSet,
  Timestamp,
  Type,
} from './src/index.ts';

const comments = defineChild({
  name: 'comments',
  item: 'comment',
  description: 'What readers say about an article.',
  fields: {
    body: Type.String({ minLength: 1, maxLength: 10_000 }),
  },
  expansions: ['article'],
  events: ['created'],
  example: { body: 'Well said.' },
});

const articles = defineCollection({
  name: 'articles',
  item: 'article',
  description: 'Texts that a user writes as drafts and publishes.',
  scope: 'posts',
  fields: {
    title: Type.String({ minLength: 1, maxLength: 200 }),
    body: Type.String({ maxLength: 65_536, default: '' }),
    state: serverSet(Type.Enum(['draft', 'published']), 'draft'),
    published_at: serverSet(Nullable(Timestamp()), null),
  },
  // One's own, and what anybody has published.
  readable: { state: 'published' },
  filters: ['state', 'author'],
  sorts: ['created_at', 'published_at'],
  children: [comments],
  // GET /articles?expand=comments answers both at once.
  expansions: ['comments'],
  actions: {
    publish: {
      description: 'Makes a draft visible to everybody.',
      guard: { state: 'draft' },
      refusal: 'The article is published already.',
      change: { state: 'published', published_at: now },
      emits: 'published',
    },
  },
  events: ['created', 'updated', 'deleted'],
  example: { title: 'On carrying messages', body: 'An envoy says what was said, and no more.' },
});

const push = defineEventKind({
  name: 'push',
  description: 'Commits arrived on a branch.',
  object: 'posts',
  schema: Type.Object(
    {
      ref: Type.String({ minLength: 1, maxLength: 1_024 }),
      commits: Type.Array(
        Type.Object({
          id: Type.String({ minLength: 1, maxLength: 64 }),
          message: Type.String({ maxLength: 65_536 }),
        }),
        { maxItems: 2_048 },
      ),
      repository: Type.Object({ name: Type.String({ minLength: 1, maxLength: 200 }) }),
    },
    { additionalProperties: false },
  ),
  example: {
    ref: 'refs/heads/main',
    commits: [{ id: '9c1185a5c5e9fc54612808977ee8f548b2258d31', message: 'Say hello' }],
    repository: { name: 'envoy' },
  },
});

const invoicePaid = defineEventKind({
  name: 'invoice.paid',
  description: 'An invoice of the user was paid.',
  object: 'profile',
  schema: Type.Object(
    {
      invoice: Type.Object({
        id: Type.String({ minLength: 1, maxLength: 200 }),
        // In the smallest unit of the currency.
        amount: Type.Integer({ minimum: 0 }),
        currency: Type.String({ pattern: '^[A-Z]{3}$' }),
      }),
    },
    { additionalProperties: false },
  ),
  example: { invoice: { id: 'inv_1024', amount: 4_900, currency: 'EUR' } },
});

export default defineConfig({
  collections: [articles],
  eventKinds: [push, invoicePaid],
  mcp: { enabled: true },
});
