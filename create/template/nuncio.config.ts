/** What this platform offers to apps. The server refuses to start with a mistake, and names its place. */

import { defineCollection, defineConfig, defineEventKind, Type } from 'nuncio';

/** Becomes a table, the routes below /notes, event kinds, tools for agents and pages of the reference. */
const notes = defineCollection({
  name: 'notes',
  item: 'note',
  description: 'Short texts that a user keeps.',
  // Users allow apps read:notes or write:notes.
  scope: 'notes',
  fields: {
    text: Type.String({ minLength: 1, maxLength: 10_000 }),
    done: Type.Boolean({ default: false }),
  },
  filters: ['done'],
  sorts: ['created_at'],
  events: ['created', 'updated', 'deleted'],
  example: { text: 'Buy milk' },
});

/** An event that your own backend publishes, with POST /events or select nuncio.publish(…). */
const invoicePaid = defineEventKind({
  name: 'invoice.paid',
  description: 'An invoice of the user was paid.',
  object: 'invoices',
  schema: Type.Object({
    invoice: Type.Object({ id: Type.String({ maxLength: 64 }), cents: Type.Integer({ minimum: 0 }) }),
  }),
  example: { invoice: { id: 'in_1', cents: 4_200 } },
});

export default defineConfig({
  brand: { name: 'My platform' },
  collections: [notes],
  eventKinds: [invoicePaid],
  // Agents connect to /mcp.
  mcp: { enabled: true },
});
