/** The types of a value by its schema: references within the schema. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Ajv } from 'ajv';
import Type, { type TSchema } from 'typebox';
import { typesAt } from '../../src/events/schema_types.ts';

const at = (schema: unknown, path: string) =>
  [...typesAt(schema as TSchema, path.split('/').slice(1))].sort().join(' ');

const money = { type: 'object', properties: { amount: { type: 'integer' }, unit: { $ref: '#/$defs/unit' } } };
const schema = {
  type: 'object',
  properties: {
    price: { $ref: '#/$defs/money' },
    costs: { type: 'array', items: { $ref: '#/$defs/money' } },
    discount: { anyOf: [{ $ref: '#/$defs/money' }, { type: 'null' }] },
    wide: { $ref: '#/$defs/a~1b%20c' },
    old: { $ref: '#/definitions/flag' },
    sibling: { type: ['string', 'null'], $ref: '#/$defs/text' },
  },
  $defs: {
    money,
    unit: { $ref: '#/$defs/text' },
    text: { type: 'string' },
    'a/b c': { type: 'boolean' },
  },
  definitions: { flag: { enum: [true, false] } },
};

test('references within a schema are followed to the types of a value', () => {
  for (const [path, types] of [
    ['/price', 'object'],
    ['/price/amount', 'number'],
    ['/price/unit', 'string'],
    ['/costs/3/unit', 'string'],
    ['/discount', 'null object'],
    ['/discount/amount', 'number'],
    ['/wide', 'boolean'],
    ['/old', 'boolean'],
    ['/sibling', 'null string'],
    ['/price/missing', ''],
    ['/price/unit/missing', ''],
    ['/$defs/money', ''],
  ] as const) {
    assert.equal(at(schema, path), types, path);
  }
});

test('a schema that refers to itself is read, at the place and below it', () => {
  const tree = {
    $ref: '#/$defs/node',
    $defs: {
      node: {
        type: 'object',
        properties: { name: { type: 'string' }, child: { $ref: '#/$defs/node' }, parent: { $ref: '#' } },
      },
      loop: { $ref: '#/$defs/pool' },
      pool: { anyOf: [{ $ref: '#/$defs/loop' }, { $ref: '#/$defs/pool' }] },
    },
  };
  assert.equal(at(tree, '/child/child/parent/child/name'), 'string');
  assert.equal(at(tree, `${'/child'.repeat(500)}/name`), 'string');
  assert.equal(at({ ...tree, $ref: '#/$defs/loop' }, '/name'), '');
  // Two references at each level: without a bound they would be 2^30 schemas.
  const twice = Object.fromEntries(
    Array.from({ length: 30 }, (_each, index) => [
      `level${index}`,
      { anyOf: [{ $ref: `#/$defs/level${index + 1}` }, { $ref: `#/$defs/level${index + 1}` }] },
    ]),
  );
  const bomb = { $ref: '#/$defs/level0', $defs: { ...twice, level30: { type: 'number' } } };
  assert.equal(at({ properties: { x: bomb }, $defs: bomb.$defs }, '/x'), 'number');
});

test('the recursive schemas of TypeBox are followed, which name definitions by their id', () => {
  const comment = Type.Cyclic(
    { Comment: Type.Object({ text: Type.String(), answers: Type.Array(Type.Ref('Comment')) }) },
    'Comment',
  );
  const body = { text: 'a', answers: [{ text: 'b', answers: [] }] };
  assert.equal(new Ajv({ strict: false }).compile(comment)(body), true, 'as the catalogue validates it');
  assert.equal(at(comment, '/text'), 'string');
  assert.equal(at(comment, '/answers/0/answers/1/text'), 'string');
  assert.equal(at(comment, '/answers/0/other'), '');
});

test('a reference that leads out of the schema or to no schema says nothing and stops nothing', () => {
  for (const $ref of [
    'https://example.com/schema.json',
    '#/$defs/none',
    '#anchor',
    '#/$defs/__proto__',
    '#/__proto__',
    '#/constructor/prototype',
    '#/$defs/%E0%A4%A',
    '#/title',
    '',
    'toString',
    '__proto__',
    7,
    { deep: true },
  ]) {
    const odd = { title: 'text', properties: { x: { $ref } }, $defs: { some: { type: 'string' } } };
    assert.ok(at(odd, '/x').includes('string'), `any type is possible: ${JSON.stringify($ref)}`);
    assert.equal(at(odd, '/x/below'), '', JSON.stringify($ref));
  }
});
