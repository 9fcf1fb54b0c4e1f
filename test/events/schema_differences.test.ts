/** Which changes of a schema break a subscriber, and in which words. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { schemaDifferences } from '../../src/events/schema_differences.ts';
import { Nullable, Type } from '../../src/index.ts';

const amount = Type.Object({ cents: Type.Integer(), currency: Type.String() });

test('what adds or narrows breaks nobody', () => {
  const compatible = [
    [amount, Type.Object({ cents: Type.Integer(), currency: Type.String(), tax: Type.Integer() })],
    [Type.Object({ a: Type.Optional(Type.String()) }), Type.Object({ a: Type.String() })],
    [Type.Number(), Type.Integer()],
    [Nullable(Type.String()), Type.String()],
    [Type.String(), Type.Enum(['a', 'b'])],
    [Type.Enum(['a', 'b']), Type.Enum(['b'])],
    [
      Type.String({ maxLength: 5 }),
      Type.String({ maxLength: 9, format: 'email', description: 'New words.' }),
    ],
    [Type.Array(amount), Type.Array(amount, { maxItems: 3 })],
    [Nullable(amount), Nullable(amount)],
    [Type.Unknown(), Type.String()],
    [{ type: ['string', 'null'] }, { anyOf: [{ type: 'null' }, { type: 'string' }] }],
    [{ const: 1 }, { enum: [1] }],
  ];
  for (const [before, after] of compatible) assert.deepEqual(schemaDifferences(before, after), []);
});

test('what may be missing, gone or of another type is named with its place', () => {
  const breaking: [before: unknown, after: unknown, ...words: string[]][] = [
    [amount, Type.Object({ cents: Type.Integer() }), '/currency was removed'],
    [amount, Type.Object({}), '/cents was removed', '/currency was removed'],
    [
      amount,
      Type.Object({ cents: Type.Integer(), currency: Type.Optional(Type.String()) }),
      '/currency was always there and may now be missing',
    ],
    [
      Type.Object({ a: amount }),
      Type.Object({ a: Type.String() }),
      '/a was an object and may now be a string',
    ],
    [Type.Integer(), Type.Number(), 'the body was an integer and may now be a number'],
    [
      Type.Object({ a: Type.String() }),
      Type.Object({ a: Nullable(Type.String()) }),
      '/a was a string and may now be null',
    ],
    [
      Type.Object({ a: Type.String() }),
      Type.Object({ a: Type.Unknown() }),
      '/a was a string and may now be anything',
    ],
    [Type.Enum(['a']), Type.Enum(['a', 'b']), 'the body may now be "b"'],
    [Type.Enum(['a']), Type.String(), 'the body was one of "a" and may now have other values'],
    [Type.Array(Type.Object({ 'x/y~': amount })), Type.Array(Type.Object({})), '/*/x~1y~0 was removed'],
    [Type.Array(Type.String()), { type: 'array' }, '/* was a string and may now be anything'],
    [{ $ref: '#/a', type: 'object' }, { $ref: '#/b', type: 'object' }, 'the body refers to another schema'],
  ];
  for (const [before, after, ...words] of breaking) assert.deepEqual(schemaDifferences(before, after), words);
});

test('a schema that nests without end is compared to a limit', () => {
  const nested = (depth: number, leaf: unknown): unknown =>
    depth === 0 ? leaf : { items: nested(depth - 1, leaf) };
  assert.deepEqual(schemaDifferences(nested(2_000, { type: 'string' }), nested(2_000, { type: 'null' })), []);
});
