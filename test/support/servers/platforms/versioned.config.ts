/** A platform whose kinds have versions. The functions of `trial` fail as the body asks for. */

import { defineChild, defineCollection, defineConfig, defineEventKind, Type } from '../../../../src/index.ts';

const invoice = defineEventKind({
  name: 'invoice.paid',
  description: 'An invoice was paid.',
  object: 'profile',
  resource: '/invoices/{/id}',
  version: '2026-10-01',
  schema: Type.Object(
    { id: Type.String(), total: Type.Object({ cents: Type.Integer(), currency: Type.String() }) },
    { additionalProperties: false },
  ),
  example: { id: 'inv_1', total: { cents: 1_250, currency: 'EUR' } },
  versions: {
    // The currency became part of the amount.
    '2026-06-01': {
      schema: Type.Object(
        { id: Type.String(), cents: Type.Integer(), currency: Type.String() },
        { additionalProperties: false },
      ),
      from: ({ id, total }) => ({ id, ...total }),
    },
    // The amount was in units.
    '2026-01-15': {
      schema: Type.Object({ invoice: Type.String(), amount: Type.Number() }, { additionalProperties: false }),
      from: ({ id, cents }) => ({ invoice: id, amount: cents / 100 }),
      deprecation: '2026-07-01',
      sunset: '2027-01-01',
    },
  },
});

/** Ways in which a function can fail, or take long. */
const failures: Readonly<Record<string, () => unknown>> = {
  throws: () => {
    throw new Error('it has thrown');
  },
  throwsOdd: () => {
    throw Object.create(null);
  },
  loops: () => {
    for (;;);
  },
  // Like a loop, without taking the processor from other tests.
  hangs: () => pause(Number.POSITIVE_INFINITY),
  returnsNothing: () => undefined,
  returnsFunction: () => () => {},
  returnsPromise: () => Promise.resolve({ mode: 'fine' }),
  returnsHuge: () => ({ mode: 'x'.repeat(2_000_000) }),
  returnsWrong: () => ({ other: 1 }),
  returnsCircle: () => {
    const circle: Record<string, unknown> = {};
    circle.circle = circle;
    return circle;
  },
  takesMemory: () => {
    const kept: unknown[] = [];
    for (;;) kept.push(new Array(100_000).fill(kept.length));
  },
  exits: () => process.exit(1),
  dear: () => {
    pause(20);
    return { mode: 'dear' };
  },
  slow: () => {
    pause(400);
    return { mode: 'slow' };
  },
};

/** Blocks the thread. */
function pause(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

const trial = defineEventKind({
  name: 'trial',
  description: 'Its conversion does what the body says.',
  object: null,
  version: '2026-09-01',
  schema: Type.Object({ mode: Type.String(), new: Type.Boolean() }),
  example: { mode: 'fine', new: true },
  versions: {
    '2026-03-01': {
      schema: Type.Object({ mode: Type.String() }, { additionalProperties: false }),
      from: ({ mode }) => (failures[mode] === undefined ? { mode } : failures[mode]()),
    },
  },
});

const plain = defineEventKind({
  name: 'plain',
  description: 'Has no versions.',
  object: null,
  schema: Type.Object({ mark: Type.String() }),
  example: { mark: 'a' },
});

const notes = defineCollection({
  name: 'notes',
  item: 'note',
  scope: 'posts',
  fields: { headline: Type.String({ maxLength: 100 }) },
  events: ['created', 'updated'],
  version: '2026-08-01',
  versions: {
    '2026-02-01': {
      schema: Type.Object({ note: Type.Object({ id: Type.String(), title: Type.String() }) }),
      from: ({ note: { headline, ...note } }) => ({ note: { ...note, title: headline } }),
    },
  },
  children: [
    defineChild({
      name: 'remarks',
      item: 'remark',
      fields: { text: Type.String({ maxLength: 100 }) },
      example: { text: 'Yes' },
      events: ['created'],
    }),
  ],
  example: { headline: 'Hello' },
});

export default defineConfig({ collections: [notes], eventKinds: [invoice, trial, plain] });
