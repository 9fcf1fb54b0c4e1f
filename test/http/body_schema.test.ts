/** What the errors of a body say. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import Type, { type TSchema } from 'typebox';
import { compileBodySchema } from '../../src/http/body_schema.ts';
import { Id, Nullable, StringEnum, strict, Time, worded } from '../../src/http/schema.ts';
import { timesAsMuch } from '../support/processor_time.ts';

const short = Type.String({ minLength: 1, maxLength: 5 });

const cases: [name: string, schema: TSchema, value: unknown, errors: [pointer: string, message: string][]][] =
  [
    ['a text', short, '', [['', 'must be a string of 1 to 5 characters']]],
    ['a number', Type.Integer({ minimum: 1, maximum: 9 }), 1.5, [['', 'must be an integer from 1 to 9']]],
    ['a limit', Type.Integer({ minimum: 0 }), -1, [['', 'must be an integer of at least 0']]],
    ['a flag', Type.Boolean(), 1, [['', 'must be true or false']]],
    ['a choice', StringEnum('a', 'b'), 'c', [['', 'must be one of "a", "b"']]],
    ['an id', Id(), 'x', [['', 'must be an id (UUID)']]],
    ['a time', Time(), 'x', [['', 'must be an RFC 3339 time']]],
    ['an item', Type.Array(short), ['a', 1], [['/1', 'must be a string of 1 to 5 characters']]],
    [
      'too many items',
      Type.Array(short, { maxItems: 1 }),
      ['a', 'b'],
      [['', 'must be an array of at most 1 items']],
    ],
    ['null or a text', Nullable(short), 7, [['', 'must be a string of 1 to 5 characters, or null']]],
    [
      'an alternative that fits in part',
      Type.Union([Type.Object({ a: short, b: short }, strict), Type.Array(short)]),
      { a: 1, c: 1 },
      [
        ['/b', 'is required'],
        ['/c', 'is not a known property'],
        ['/a', 'must be a string of 1 to 5 characters'],
      ],
    ],
    [
      'a union in words inside another union',
      Nullable(
        worded(
          'one or two',
          Type.Union([Type.Literal(1), Type.Object({ two: Type.Array(short, { maxItems: 1 }) })]),
        ),
      ),
      { two: ['a', 'b'] },
      [['', 'must be one or two, or null']],
    ],
    [
      'a union in words',
      worded('a list of texts', Type.Union([Type.Array(short)])),
      [1],
      [['', 'must be a list of texts']],
    ],
    ['a name with a slash', Type.Object({}, strict), { 'a/b': 1 }, [['/a~1b', 'is not a known property']]],
  ];

for (const [name, schema, value, errors] of cases) {
  test(`the errors of ${name} name the place and what it must be`, () => {
    assert.deepEqual(
      compileBodySchema(schema)(value).map(({ pointer, message }) => [pointer, message]),
      errors,
    );
  });
}

test('an error has the code of its schema', () => {
  const check = compileBodySchema(Type.Array(worded('a kind', StringEnum('push'), 'unknown-kind')));
  assert.deepEqual(check(['pull']), [{ pointer: '/0', message: 'must be a kind', code: 'unknown-kind' }]);
});

test('attack: the errors of a small body with thousands of wrong unions take no quadratic time', async () => {
  const names = ['a', 'b', 'c', 'd', 'e', 'f'];
  const having = (...members: string[]) =>
    Type.Object(Object.fromEntries(members.map((name) => [name, Type.String()])));
  const body = Array.from({ length: 1_900 }, () => ({}));
  // As many errors, of unions and without them.
  const union = worded('one of six objects', Type.Union(names.map((name) => having(name))));
  const checks = [union, having(...names)].map((schema) => compileBodySchema(Type.Array(schema)));
  const [ofUnions, ofObjects] = checks.map((check) => () => assert.equal(check(body).length, 100));
  assert.ok(ofUnions !== undefined && ofObjects !== undefined);
  ofUnions();
  ofObjects();
  const ratio = await timesAsMuch(ofUnions, ofObjects);
  assert.ok(ratio < 5, `${ratio} times as much`);
});
