/** Filters: which are refused, and what the compiled path means to PostgreSQL, held against an evaluator written here. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import Type from 'typebox';
import {
  type Condition,
  comparisons,
  conditionsOf,
  type Filter,
  filterErrors,
  filterPath,
  type Negatable,
  operators,
  type Scalar,
} from '../../src/events/filter.ts';
import { createDatabase } from '../support/database/database.ts';
import { createRandom } from '../support/values/random.ts';

const schema = Type.Object({
  title: Type.String(),
  count: Type.Integer(),
  price: Type.Union([Type.Number(), Type.Null()]),
  state: Type.Union([Type.Literal('draft'), Type.Literal('published')]),
  isLive: Type.Boolean(),
  tags: Type.Array(Type.String()),
  author: Type.Object({ name: Type.String(), 'a/b~c': Type.Optional(Type.String()) }),
  more: Type.Optional(Type.Record(Type.String(), Type.Number())),
  any: Type.Optional(Type.Any()),
});
const kinds = [{ name: 'post.created', schema }];

const errorsOf = (condition: Record<string, unknown>) =>
  filterErrors({ all: [condition as Condition] }, kinds).map(
    ({ place, message }) => `${place.join('/')} ${message}`,
  );

test('a path that the body of a kind does not have is refused', () => {
  for (const path of [
    '/missing',
    '/title/length',
    '/author/missing',
    '/tags/name',
    '/tags/-',
    '/tags/01',
    '/__proto__',
    '/constructor',
    '/author/__proto__',
    '/author/toString',
    '/properties/title',
    '//title',
  ]) {
    assert.deepEqual(
      errorsOf({ path, exists: true }),
      ['all/0/path does not exist in the body of post.created'],
      path,
    );
  }
  for (const path of ['title', '$.title', '/a~2b', '/~', '#/title', '/a\u0000b', '/a\ud800']) {
    assert.match(errorsOf({ path, exists: true })[0] ?? '', /is not a JSON pointer/, path);
  }
  for (const path of [
    '/title',
    '/author/name',
    '/author/a~1b~0c',
    '/tags/0',
    '/more/anything',
    '/any/deep/0/x',
  ]) {
    assert.deepEqual(errorsOf({ path, exists: true }), [], path);
  }
});

test('a value of another type than the schema’s is refused', () => {
  for (const [condition, message] of [
    [{ path: '/title', eq: 1 }, 'all/0/eq is a number, but the value is string in the body of post.created'],
    [
      { path: '/count', eq: '1' },
      'all/0/eq is a string, but the value is number in the body of post.created',
    ],
    [
      { path: '/count', in: [1, '2'] },
      'all/0/in/1 is a string, but the value is number in the body of post.created',
    ],
    [{ path: '/title', eq: null }, 'all/0/eq is a null, but the value is string in the body of post.created'],
    [
      { path: '/isLive', gt: 0 },
      'all/0/gt is a number, but the value is boolean in the body of post.created',
    ],
    [
      { path: '/author', eq: 'x' },
      'all/0/eq is a string, but the value is object in the body of post.created',
    ],
    [{ path: '/tags', eq: 'x' }, 'all/0/eq is a string, but the value is array in the body of post.created'],
    [
      { path: '/count', prefix: '1' },
      'all/0/prefix is a string, but the value is number in the body of post.created',
    ],
  ] as const) {
    assert.deepEqual(errorsOf(condition), [message]);
  }
  for (const condition of [
    { path: '/price', eq: null },
    { path: '/price', gte: 1.5 },
    { path: '/state', in: ['draft'] },
    { path: '/title', lt: 'm' },
    { path: '/isLive', eq: false },
  ]) {
    assert.deepEqual(errorsOf(condition), [], JSON.stringify(condition));
  }
  assert.match(errorsOf({ path: '/title', eq: 'a\u0000' })[0] ?? '', /characters/);
  assert.match(errorsOf({ path: '/title', prefix: '\udfff' })[0] ?? '', /characters/);
});

test('every kind of the subscription must have the value', () => {
  const other = { name: 'post.deleted', schema: Type.Object({ title: Type.Integer() }) };
  const filter = { any: [{ not: { path: '/title', eq: 'x' } }, { path: '/count', eq: 1 }] };
  assert.deepEqual(filterErrors(filter, [...kinds, other]), [
    {
      place: ['any', 0, 'not', 'eq'],
      message: 'is a string, but the value is number in the body of post.deleted',
      code: 'filter-type-mismatch',
    },
    {
      place: ['any', 1, 'path'],
      message: 'does not exist in the body of post.deleted',
      code: 'unknown-filter-path',
    },
  ]);
});

test('the compiled path grows with the filter, and not with the product of its parts', () => {
  const path = '/any'.repeat(64);
  const choices = Array.from({ length: 100 }, (_none, index) => index);
  const filter: Filter = { all: Array.from({ length: 10 }, () => ({ not: { path, in: choices } })) };
  assert.deepEqual(errorsOf({ path, in: choices }), []);
  const compiled = filterPath(filter).length;
  assert.ok(compiled < 4 * JSON.stringify(filter).length, `${compiled} characters`);
});

/** The meaning of filters, written without the code under test. */
function evaluate(filter: Filter, body: unknown): boolean {
  const valueAt = (path: string): unknown =>
    path
      .split('/')
      .slice(1)
      .reduce<unknown>((value, step) => {
        if (typeof value !== 'object' || value === null) return undefined;
        const key = step.replaceAll('~1', '/').replaceAll('~0', '~');
        if (Array.isArray(value) !== /^\d+$/.test(key)) return undefined;
        return Object.hasOwn(value, key) ? (value as Record<string, unknown>)[key] : undefined;
      }, body);
  const meets = (each: Negatable): boolean => {
    if ('not' in each) return !meets(each.not);
    const value = valueAt(each.path);
    if (each.exists !== undefined) return (value !== undefined) === each.exists;
    if (each.eq !== undefined) return value === each.eq;
    if (each.in !== undefined) return (each.in as unknown[]).includes(value);
    if (each.prefix !== undefined)
      return typeof value === 'string' && value.startsWith(each.prefix as string);
    for (const name of comparisons) {
      const bound = each[name];
      if (bound === undefined) continue;
      if (typeof value !== typeof bound || (typeof value !== 'string' && typeof value !== 'number'))
        return false;
      // By code points, as UTF-8 bytes compare.
      const order =
        typeof value === 'string'
          ? Buffer.compare(Buffer.from(value), Buffer.from(bound as string))
          : value - (bound as number);
      return { gt: order > 0, gte: order >= 0, lt: order < 0, lte: order <= 0 }[name];
    }
    throw new Error('no operator');
  };
  return 'all' in filter ? filter.all.every(meets) : filter.any.some(meets);
}

const paths = ['/a', '/b/c', '/b/0', '/l/0', '/l/1/x', '/q"u\\o', '/a~1b', '/missing/x', '/é', '/$.a', '/b'];
const scalars: Scalar[] = [
  ...[null, true, false, 0, 1, -1, 1.5, 1e21, -0.000001, 9007199254740992],
  ...['', 'a', 'ab', 'b', '1', 'null', 'é', '𝒳', '\uffff', 'x"y\\z', '$', '%_', '\n', "'; drop table events"],
];

test('the path means the same to PostgreSQL as the filter to its reader, for random filters and bodies', async (t) => {
  const database = await createDatabase();
  const { openDatabase } = await import('../../src/database/database.ts');
  const db = openDatabase({ connectionString: database.url, connectionsMax: 1 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  const random = createRandom(20_261_123);
  const pick = <T>(items: readonly T[]): T => items[Math.floor(random() * items.length)] as T;
  const condition = (): Condition => {
    const operator = pick(operators);
    const path = pick(paths);
    if (operator === 'exists') return { path, exists: pick([true, false]) };
    if (operator === 'in') return { path, in: Array.from({ length: 1 + random() * 4 }, () => pick(scalars)) };
    if (operator === 'prefix') return { path, prefix: pick(['a', 'x"', 'é', '%']) };
    if (operator === 'eq') return { path, eq: pick(scalars) };
    return {
      path,
      [operator]: pick(scalars.filter((value) => /string|number/.test(typeof value) && value !== null)),
    };
  };
  const filters = Array.from({ length: 1_500 }, (): Filter => {
    const list = Array.from({ length: 1 + random() * 4 }, () =>
      random() < 0.3 ? { not: condition() } : condition(),
    );
    return random() < 0.5 ? { all: list } : { any: list };
  });
  const value = (): unknown => (random() < 0.15 ? [pick(scalars), { x: pick(scalars) }] : pick(scalars));
  const bodies = filters.map(() => {
    const body: Record<string, unknown> = {};
    for (const key of ['a', 'é', 'q"u\\o', 'a/b', '$.a']) if (random() < 0.7) body[key] = value();
    if (random() < 0.7) body.b = random() < 0.5 ? { c: value() } : value();
    if (random() < 0.7) body.l = [value(), { x: value() }];
    return body;
  });
  const { rows } = await sql<{ matches: boolean | null }>`
    select jsonb_path_match(body_as_json(body), path::jsonpath, '{}', true) as matches
    from unnest(${bodies.map((body) => JSON.stringify(body))}::text[], ${filters.map(filterPath)}::text[])
      with ordinality as given (body, path, number) order by number`.execute(db);
  let met = 0;
  for (const [index, filter] of filters.entries()) {
    const expected = evaluate(filter, bodies[index]);
    met += Number(expected);
    const shown = JSON.stringify([filter, bodies[index], filterPath(filter)]);
    assert.equal(rows[index]?.matches ?? false, expected, shown);
  }
  assert.ok(met > 300 && met < 1_200, `${met} of the filters are met`);
  assert.equal(conditionsOf({ any: [] }).length, 0);
});

test('bodies that PostgreSQL cannot read as JSON meet no filter, and stop nothing', async (t) => {
  const database = await createDatabase();
  const { openDatabase } = await import('../../src/database/database.ts');
  const db = openDatabase({ connectionString: database.url, connectionsMax: 1 });
  t.after(async () => {
    await db.destroy();
    await database.drop();
  });
  for (const body of [
    '{"a":"\\u0000"}',
    '{"a":"\\ud800"}',
    '{"a":1e999999}',
    'no JSON',
    `${'['.repeat(20_000)}`,
  ]) {
    const { rows } = await sql<{ matches: boolean | null }>`
      select jsonb_path_match(body_as_json(${body}), 'strict (exists($."a"))', '{}', true) as matches`.execute(
      db,
    );
    assert.equal(rows[0]?.matches, null);
  }
});
