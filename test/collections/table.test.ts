/** Tables from declarations: what is created, changed and refused. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { migrateCollections, requireCollections } from '../../src/collections/migrate.ts';
import { connectClient } from '../../src/database/schema.ts';
import {
  createOnly,
  defineChild,
  defineCollection,
  defineConfig,
  type EventKind,
  Nullable,
  now,
  serverSet,
  Timestamp,
  Type,
} from '../../src/index.ts';
import { createPlatform, loadPlatform, PlatformError } from '../../src/platform.ts';
import { createDatabase } from '../support/database/database.ts';

const note = { name: 'notes', item: 'note', scope: 'notes' } as const;
const text = Type.String({ maxLength: 100 });

test('a table has typed columns, and a second migration changes nothing', async (t) => {
  const database = await createDatabase();
  t.after(() => database.drop());
  const { collections } = createPlatform({
    collections: [
      defineCollection({
        ...note,
        fields: {
          text,
          count: Type.Integer({ default: 3, minimum: 0, maximum: 10 }),
          ratio: Type.Number({ default: 0.5 }),
          on: Type.Boolean({ default: false }),
          at: Nullable(Timestamp()),
          tags: createOnly(Type.Array(Type.String(), { default: ["it's"], maxItems: 9 })),
          state: serverSet(Type.Enum(['a', 'b']), 'a'),
        },
        filters: ['state'],
        sorts: ['at', 'count'],
        readable: { state: ['a', 'b'], on: true },
        example: { text: 'x' },
      }),
    ],
  });
  const done = await migrateCollections(database.url, collections);
  assert.deepEqual(done, ['table notes created']);
  assert.deepEqual(await migrateCollections(database.url, collections), []);
  await requireCollections(database.url, collections);
  const columns = await query(
    database.url,
    `select column_name || ' ' || data_type || ' ' || is_nullable as line from information_schema.columns
      where table_schema = 'nuncio' and table_name = 'notes' order by ordinal_position`,
  );
  assert.deepEqual(
    columns.map((row) => row.line),
    [
      'id uuid NO',
      'author uuid NO',
      'version bigint NO',
      'created_at timestamp with time zone NO',
      'updated_at timestamp with time zone NO',
      'text text NO',
      'count bigint NO',
      'ratio double precision NO',
      'on boolean NO',
      'at timestamp with time zone YES',
      'tags jsonb NO',
      'state text NO',
    ],
  );
});

test('a migration adds columns with defaults, updates indexes and keeps old columns', async (t) => {
  const database = await createDatabase();
  t.after(() => database.drop());
  const first = createPlatform({
    collections: [
      defineCollection({
        ...note,
        fields: { text, old: text },
        sorts: ['text'],
        example: { text: 'x', old: 'y' },
      }),
    ],
  });
  await migrateCollections(database.url, first.collections);
  await query(
    database.url,
    `insert into accounts (id, email, name) values (gen_random_uuid(), 'a@b.c', 'A')`,
  );
  await query(
    database.url,
    `insert into notes (id, author, text, old) select gen_random_uuid(), id, 'one', 'kept' from accounts`,
  );
  const second = createPlatform({
    collections: [
      defineCollection({
        ...note,
        fields: { text, mood: Type.String({ maxLength: 9, default: "it's" }) },
        filters: ['mood'],
        example: { text: 'x' },
      }),
    ],
  });
  await assert.rejects(
    requireCollections(database.url, second.collections),
    /pending: column notes.mood added/,
  );
  const done = await migrateCollections(database.url, second.collections);
  assert.equal(done.length, 4, done.join('; '));
  assert.deepEqual(await query(database.url, 'select text, old, mood from notes'), [
    { text: 'one', old: 'kept', mood: "it's" },
  ]);
  await query(
    database.url,
    `insert into notes (id, author, text) select gen_random_uuid(), id, 'two' from accounts`,
  );
  assert.deepEqual(await migrateCollections(database.url, second.collections), []);
});

test('a migration that would lose data is refused and changes nothing', async (t) => {
  const database = await createDatabase();
  t.after(() => database.drop());
  const first = createPlatform({
    collections: [
      defineCollection({ ...note, fields: { text, maybe: Nullable(text) }, example: { text: 'x' } }),
    ],
  });
  await migrateCollections(database.url, first.collections);
  await query(
    database.url,
    `insert into accounts (id, email, name) values (gen_random_uuid(), 'a@b.c', 'A')`,
  );
  await query(
    database.url,
    `insert into notes (id, author, text) select gen_random_uuid(), id, 'one' from accounts`,
  );
  const second = createPlatform({
    collections: [
      defineCollection({
        ...note,
        fields: { text: Type.Integer(), maybe: text, fresh: text, fine: Type.Boolean({ default: true }) },
        example: { text: 1, maybe: 'x', fresh: 'y' },
      }),
    ],
  });
  await assert.rejects(migrateCollections(database.url, second.collections), (error: Error) => {
    assert.deepEqual(
      error.message.split('\n').map((line) => line.split(':')[0]),
      ['notes.text', 'notes.maybe', 'notes.fresh'],
    );
    return true;
  });
  assert.deepEqual(await query(database.url, 'select text, maybe from notes'), [
    { text: 'one', maybe: null },
  ]);
});

test('a table without a declaration is left alone', async (t) => {
  const database = await createDatabase();
  t.after(() => database.drop());
  await query(database.url, 'create table notes (precious text)');
  const { collections } = createPlatform({
    collections: [defineCollection({ ...note, fields: { text }, example: { text: 'x' } })],
  });
  await assert.rejects(
    migrateCollections(database.url, collections),
    /notes: the database has a table of that name/,
  );
});

test('two nodes that migrate concurrently agree', async (t) => {
  const database = await createDatabase();
  t.after(() => database.drop());
  const { collections } = createPlatform({
    collections: [defineCollection({ ...note, fields: { text }, example: { text: 'x' } })],
  });
  const runs = await Promise.all([1, 2, 3, 4].map(() => migrateCollections(database.url, collections)));
  assert.deepEqual(runs.flat(), ['table notes created']);
});

test('every problem of a declaration is reported with its place', () => {
  const broken = () =>
    createPlatform({
      collections: [
        defineCollection({
          ...note,
          fields: { text },
          // @ts-expect-error a guard names a field that does not exist
          actions: { go: { guard: { txt: 'x' }, change: {} } },
          children: [
            defineChild({
              name: 'replies',
              item: 'reply',
              fields: { text },
              addedPerMinute: 0,
              expansions: ['note', 'replies'],
              example: { text: 'x' },
            }),
          ],
          expansions: ['replies', 'go', 'replies', 'things', 'things', 'things'],
          example: { text: 'x' },
        }),
        defineCollection({
          name: 'events',
          item: 'Thing',
          scope: 'posts',
          fields: {
            id: text,
            free: Type.String(),
            odd: Type.Unknown(),
            long: Nullable(Type.String({ maxLength: 501 })),
            state: serverSet(Type.Enum(['a']), 'a'),
          },
          // @ts-expect-error no such value
          readable: { state: 'b', free: [] },
          // @ts-expect-error no such field
          filters: ['nothing'],
          sorts: ['long'],
          // @ts-expect-error wrong type
          example: { free: 7 },
        }),
        {} as ReturnType<typeof defineCollection>,
      ],
      eventKinds: [
        { name: 'Bad', description: '', object: null, schema: Type.String(), example: 1 } as EventKind,
      ],
    });
  assert.throws(broken, (error) => {
    assert.ok(error instanceof PlatformError);
    const places = error.problems.map((line) => line.split(': ')[0]);
    for (const place of [
      'collections.notes.actions.go.guard.txt',
      'collections.notes.actions.go.change',
      'collections.notes.children.replies.addedPerMinute',
      'collections.notes.children.replies.expansions',
      'collections.notes.expansions',
      'collections.events.name',
      'collections.events.item',
      'collections.events.fields.id',
      'collections.events.fields.free',
      'collections.events.fields.odd',
      'collections.events.readable.state',
      'collections.events.readable.free',
      'collections.events.filters',
      'collections.events.example.free',
      'collections[2]',
      'eventKinds.Bad.name',
      'eventKinds.Bad.example',
    ]) {
      assert.ok(places.includes(place), `${place} is not among ${places.join(', ')}`);
    }
    assert.ok(
      error.problems.some((line) =>
        line.startsWith('collections.events.sorts: long allows more than 500 characters'),
      ),
    );
    assert.deepEqual(
      error.problems.filter((line) => line.includes('expansions')).map((line) => line.split(': ').slice(1)),
      [
        ['replies is not a link to resources', 'it must be one of note'],
        ['there are 6, but at most 5 are allowed'],
        ['replies is named twice'],
        ['things is named twice'],
        ['go is not a link to resources', 'it must be one of replies'],
        ['things is not a link to resources', 'it must be one of replies'],
        ['things is not a link to resources', 'it must be one of replies'],
        ['things is not a link to resources', 'it must be one of replies'],
      ],
    );
    return true;
  });
});

test('the shipped example loads with its collections’ kinds', async () => {
  const platform = await loadPlatform(null);
  assert.deepEqual(platform.eventKinds.map((kind) => kind.name).sort(), [
    'article.created',
    'article.deleted',
    'article.published',
    'article.updated',
    'comment.created',
    'invoice.paid',
    'push',
  ]);
  assert.deepEqual(platform.objects, ['posts', 'profile']);
});

test('a file that is no declaration is refused with its name', async () => {
  await assert.rejects(
    loadPlatform('/nowhere/nuncio.config.ts'),
    /\/nowhere\/nuncio.config.ts: cannot be loaded/,
  );
  await assert.rejects(
    loadPlatform(new URL('../support/database/database.ts', import.meta.url).pathname),
    /default export/,
  );
});

test('guards, changes and inputs are typed', () => {
  defineConfig({
    collections: [
      defineCollection({
        ...note,
        fields: { state: serverSet(Type.Enum(['a', 'b']), 'a'), at: serverSet(Nullable(Timestamp()), null) },
        actions: {
          good: { guard: { state: ['a', 'b'] }, change: { state: 'b', at: now } },
          // @ts-expect-error a value that the field never has
          bad: { guard: { state: 'c' }, change: { state: 'b' } },
          // @ts-expect-error a field that does not exist
          worse: { change: { status: 'b' } },
          // @ts-expect-error a field that does not exist
          worst: { input: ['status'], change: { state: 'b' } },
        },
        example: {},
      }),
    ],
  });
});

async function query(url: string, statement: string): Promise<Record<string, unknown>[]> {
  const client = await connectClient(url, 'test');
  try {
    return (await client.query(statement)).rows;
  } finally {
    await client.end();
  }
}
