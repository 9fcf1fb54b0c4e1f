/**
 * Configures the Nuncio server for the Notes API: the event kinds, and the object of their scopes (`read:notes`,
 * `write:notes`).
 *
 * In your project, import from 'nuncio'.
 */

import { defineConfig, defineEventKind, Type } from '../../src/index.ts';

const note = Type.Object(
  {
    id: Type.String({ minLength: 1, maxLength: 100 }),
    text: Type.String({ maxLength: 10_000 }),
    created_at: Type.String({ format: 'date-time' }),
  },
  { additionalProperties: false },
);

const id = '5f0c6a52-5c0f-4b1e-9d53-9f0d2b9c7e11';

export default defineConfig({
  // Apps send this URL as `resource` to get tokens for the Notes API.
  oauth: { resources: [process.env.NOTES_URL ?? 'http://localhost:4100'] },
  eventKinds: [
    defineEventKind({
      name: 'note.created',
      description: 'A note was written.',
      object: 'notes',
      schema: Type.Object({ note }, { additionalProperties: false }),
      example: { note: { id, text: 'Buy milk', created_at: '2026-01-01T00:00:00.000Z' } },
    }),
    defineEventKind({
      name: 'note.deleted',
      description: 'A note was deleted.',
      object: 'notes',
      schema: Type.Object(
        { note: Type.Object({ id: Type.String({ minLength: 1, maxLength: 100 }) }) },
        { additionalProperties: false },
      ),
      example: { note: { id } },
    }),
  ],
});
