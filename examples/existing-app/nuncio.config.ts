/**
 * The Nuncio server's configuration for the shop: its login page and its events.
 *
 * In your own project, import from 'nuncio'.
 */

import { defineConfig, defineEventKind, Type } from '../../src/index.ts';

export default defineConfig({
  accounts: { login: { url: `${process.env.SHOP_URL ?? 'http://localhost:4200'}/login` } },
  eventKinds: [
    defineEventKind({
      name: 'order.placed',
      description: 'The user placed an order.',
      object: 'orders',
      schema: Type.Object({ order: Type.Object({ id: Type.String(), item: Type.String() }) }),
      example: { order: { id: '1', item: 'Tea' } },
    }),
  ],
});
