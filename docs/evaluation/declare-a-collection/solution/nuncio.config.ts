import { defineCollection, defineConfig, serverSet, Type } from 'nuncio';

const bookmarks = defineCollection({
  name: 'bookmarks',
  item: 'bookmark',
  description: 'Pages that a user wants to find again.',
  scope: 'bookmarks',
  fields: {
    url: Type.String({ minLength: 1, maxLength: 2_000 }),
    title: Type.String({ maxLength: 200, default: '' }),
    state: serverSet(Type.Enum(['active', 'archived']), 'active'),
  },
  actions: {
    archive: {
      description: 'Puts a bookmark away.',
      guard: { state: 'active' },
      refusal: 'The bookmark is archived already.',
      change: { state: 'archived' },
      emits: 'archived',
    },
  },
  events: ['created'],
  example: { url: 'https://example.com/', title: 'An example' },
});

export default defineConfig({ collections: [bookmarks] });
