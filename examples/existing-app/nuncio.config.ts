/**
 * What the Nuncio server has to know of the shop: where its users sign in, and which events there are.
 *
 * In a project of your own the import is from 'nuncio'.
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
