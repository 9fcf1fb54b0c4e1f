/** What the console's editor of filters knows without a browser: paths of schemas, drafts, operators and words. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import Type, { type TSchema } from 'typebox';
import shipped from '../../nuncio.config.ts';
import { commonPaths } from '../../src/console/pages/subscriptions/filter/body_paths.ts';
import {
  type ConditionDraft,
  type Filter,
  filterDraftOf,
  newCondition,
  problemOf,
  refusedConditions,
  toFilter,
} from '../../src/console/pages/subscriptions/filter/draft.ts';
import { filteredKinds } from '../../src/console/pages/subscriptions/filter/kinds.ts';
import { fitted, operatorsFor } from '../../src/console/pages/subscriptions/filter/operators.ts';
import { describeCondition } from '../../src/console/pages/subscriptions/filter/words.ts';
import { filterErrors, type Filter as ServerFilter, stepsOf } from '../../src/events/filter.ts';
import { patternsOf } from '../../src/events/kind_pattern.ts';
import { typesAt } from '../../src/events/schema_types.ts';
import { createPlatform } from '../../src/platform.ts';
import { testPlatform } from '../support/servers/platform.ts';

const odd = {
  type: 'object',
  properties: {
    'a/b~c': { type: 'string' },
    12: { type: 'string' },
    '': { type: 'number' },
    'nul\0': { type: 'string' },
    '\ud800': { type: 'string' },
    é: { anyOf: [{ $ref: '#/$defs/node' }, { type: 'null' }] },
    anything: true,
    nothing: false,
    any: {},
    circle: { $ref: '#/$defs/circle' },
    out: { $ref: 'https://example.com/schema' },
    tuple: { type: 'array', items: [{ const: 7 }, { type: 'string' }] },
    state: { anyOf: [{ const: 'draft' }, { const: 'published' }, { type: 'null' }] },
    ['long'.repeat(100)]: { type: 'string' },
  },
  $defs: {
    node: { type: 'object', properties: { value: { enum: [1, 2] }, next: { $ref: '#/$defs/node' } } },
    circle: { $ref: '#/$defs/circle' },
  },
};
const tree = Type.Cyclic(
  { Tree: Type.Object({ leaf: Type.Boolean(), left: Type.Ref('Tree'), right: Type.Ref('Tree') }) },
  'Tree',
);

/** Kinds with references, unions, circles and odd names, and those of two platforms. */
const schemas: readonly unknown[] = [
  odd,
  tree,
  ...createPlatform(shipped).eventKinds.map(({ schema }) => schema),
  ...testPlatform.eventKinds.map(({ schema }) => schema),
];

test('every path that is offered exists for the server, with the same types', () => {
  let count = 0;
  for (const schema of schemas) {
    for (const { path, types } of commonPaths([schema])) {
      const steps = stepsOf(path) as string[];
      assert.deepEqual([...types].sort(), [...typesAt(schema as TSchema, steps)].sort(), path);
      assert.ok(types.length > 0, path);
      count += 1;
    }
  }
  assert.ok(count > 100, `${count} paths`);
  const paths = commonPaths([odd]).map(({ path }) => path);
  for (const path of ['/a~1b~0c', '/é/next/next/value', '/tuple/0', '/any', '/anything', '/']) {
    assert.ok(paths.includes(path), path);
  }
  assert.ok(
    !paths.some((path) => path.startsWith('/12') || path.includes('nothing') || path.includes('nul')),
  );
});

test('several kinds offer what all of them have, with the types in common', () => {
  const one = Type.Object({
    id: Type.String(),
    sum: Type.Union([Type.Number(), Type.Null()]),
    rank: Type.String(),
    state: Type.Union([Type.Literal('open'), Type.Literal('closed')]),
  });
  const other = Type.Object({
    state: Type.Union([Type.Literal('closed'), Type.Literal('gone')]),
    sum: Type.Integer(),
    rank: Type.Integer(),
    other: Type.String(),
  });
  const common = commonPaths([one, other]).map(({ path, types, choices }) => [path, types, choices]);
  assert.deepEqual(common, [
    ['/sum', ['number'], []],
    ['/rank', [], []],
    ['/state', ['string'], ['closed']],
  ]);
  const rank = commonPaths([one, other])[1];
  assert.deepEqual(operatorsFor(rank), ['exists', 'absent']);
  assert.deepEqual(commonPaths([]), []);
});

test('a condition that fits its path is accepted by the server, for every path and operator', () => {
  let count = 0;
  for (const schema of schemas) {
    for (const body of commonPaths([schema])) {
      for (const operator of operatorsFor(body)) {
        const { type, ...condition } = fitted({ ...newCondition([]), path: body.path, operator }, body);
        assert.equal(condition.operator, operator);
        const text = { string: 'x', number: '-1.5e3', boolean: 'true', null: '' }[type];
        const filled = { ...condition, type, text };
        assert.equal(problemOf(filled), undefined);
        const filter = toFilter({ mode: 'any', conditions: [filled] }) as ServerFilter;
        const found = filterErrors(filter, [{ name: 'kind', schema: schema as TSchema }]);
        assert.deepEqual(found, [], JSON.stringify(filter));
        count += 1;
      }
    }
  }
  assert.ok(count > 500, `${count} conditions`);
});

test('a filter of the API comes back from the editor as it was', () => {
  const list: Filter['all'] = [
    { path: '/a', eq: 'x' },
    { path: '/a', eq: '' },
    { path: '/a', eq: null },
    { path: '/a', eq: false },
    { not: { path: '/a', eq: -1.5e300 } },
    { path: '/a', in: [null, 'a', '1', 1, true, ''] },
    { not: { path: '/a', prefix: ' spaced ' } },
    { path: '/a', exists: false },
    { not: { path: '/a', exists: true } },
    { path: '/a', gt: '2026-01-01T00:00:00Z' },
  ];
  for (const filter of [{ all: list }, { any: list }]) {
    const draft = filterDraftOf(filter);
    assert.deepEqual(toFilter(draft), filter);
    assert.deepEqual(draft.conditions.map(problemOf).filter(Boolean), []);
  }
  assert.equal(toFilter(filterDraftOf(null)), null);
});

const draft = (part: Partial<ConditionDraft>): ConditionDraft => ({
  ...newCondition([]),
  path: '/a',
  ...part,
});

test('incomplete conditions and numbers that would change are named', () => {
  const problems = (part: Partial<ConditionDraft>) => problemOf(draft(part));
  assert.deepEqual(problems({ path: ' ' }), { path: 'Choose a value of the body.' });
  assert.deepEqual(problems({ path: 'ref' }), { path: 'Begin the path with a slash, such as /ref.' });
  assert.deepEqual(problems({}), { value: 'Enter a value.' });
  assert.deepEqual(problems({ operator: 'in' }), { value: 'Add at least one value.' });
  for (const text of ['1,5', 'x', '0x10', '1e999', '--1', '01', 'Infinity', '1 000']) {
    assert.deepEqual(
      problems({ type: 'number', text }),
      { value: 'Enter a number, such as 100 or 2.5.' },
      text,
    );
  }
  for (const text of ['9007199254740993', '0.12345678901234567', '123456789012345678901']) {
    assert.deepEqual(
      problems({ type: 'number', text }),
      { value: 'Enter a number with at most 15 digits.' },
      text,
    );
  }
  for (const text of ['9007199254740991', '-0.5', ' 12 ', '1e21', '100000000000000000000000']) {
    assert.equal(problems({ type: 'number', text }), undefined, text);
  }
  const full = Array.from({ length: 100 }, (_each, index) => `v${index}`);
  assert.equal(problems({ operator: 'in', list: full, text: 'v7' }), undefined, 'no value is listed twice');
  assert.match(problems({ operator: 'in', list: full, text: 'one more' })?.value ?? '', /at most 100/);
});

test('the server’s errors find their conditions', () => {
  const found = refusedConditions(
    new Map([
      ['/filter', 'is too large'],
      ['/filter/all/0/path', 'does not exist'],
      ['/filter/all/2/not/eq', 'is a string'],
      ['/filter/any/3/in/4', 'is a number'],
      ['/filter/all/5', 'must be a condition'],
      ['/kinds/0', 'is unknown'],
      ['/filter/all/x/path', 'is odd'],
    ]),
  );
  assert.deepEqual(
    [...found],
    [
      [0, { path: 'It does not exist.' }],
      [2, { value: 'It is a string.' }],
      [3, { value: 'Value 5 is a number.' }],
      [5, { value: 'It must be a condition.' }],
    ],
  );
});

test('conditions are described in English, with and without not', () => {
  const say = (part: Partial<ConditionDraft>) => {
    const { path, words, value } = describeCondition(draft(part));
    return [path, words, value].filter(Boolean).join(' ');
  };
  assert.equal(say({ text: 'x' }), '/a is “x”');
  assert.equal(say({ type: 'boolean', text: 'false', isNot: true }), '/a is not false');
  assert.equal(say({ operator: 'gte', type: 'number', text: '5.0' }), '/a is at least 5');
  assert.equal(say({ operator: 'lt', text: '2026' }), '/a is before “2026”');
  assert.equal(say({ operator: 'in', list: ['a', 1, null] }), '/a is one of “a”, 1 or null');
  assert.equal(say({ operator: 'in', list: ['a'], text: 'b', isNot: true }), '/a is none of “a” or “b”');
  assert.match(
    say({ operator: 'in', list: Array.from({ length: 20 }, (_each, index) => `${index}`) }),
    /“7” or 12 more$/,
  );
  assert.equal(say({ operator: 'exists', isNot: true }), '/a does not exist');
  assert.equal(say({ operator: 'absent', isNot: true }), '/a exists');
  assert.equal(say({ operator: 'null' }), '/a is null');
  assert.equal(say({ operator: 'gt', type: 'number', text: 'x' }), '/a is more than …');
  assert.equal(say({ operator: 'prefix', text: 'x'.repeat(200) }), `/a begins with “${'x'.repeat(80)}…”`);
});

test('patterns select the same kinds as on the server, without those that only the server publishes', () => {
  const names = ['a', 'a.b', 'a.b.c', 'ab.c', 'ping'];
  const kinds = names.map((name) => ({ name, built_in: name === 'ping' }));
  for (const pattern of ['*', 'a', 'a.*', 'a.b.*', 'a.b', 'ab.*', 'ping', 'b']) {
    const selected = filteredKinds(kinds as unknown as Parameters<typeof filteredKinds>[0], [pattern]);
    const expected = names.filter((name) => name !== 'ping' && patternsOf(name).includes(pattern));
    assert.deepEqual(
      selected.map(({ name }) => name),
      expected,
      pattern,
    );
  }
});
