/** Mistakes in declared versions, each reported with its place before anything starts. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { EventKind } from '../../src/events/kind.ts';
import { versionFor } from '../../src/events/versions.ts';
import { defineEventKind, Type } from '../../src/index.ts';
import { createPlatform, PlatformError } from '../../src/platform.ts';

const schema = Type.Object({ a: Type.Integer() });
const earlier = { schema: Type.Object({ b: Type.Integer() }), from: ({ a }: { a: number }) => ({ b: a }) };

function problemsOf(more: Partial<EventKind>): string[] {
  const kind = defineEventKind({
    name: 'it',
    description: '',
    object: null,
    schema,
    example: { a: 1 },
    ...more,
  });
  try {
    createPlatform({ eventKinds: [kind] });
    return [];
  } catch (error) {
    assert(error instanceof PlatformError);
    return [...error.problems];
  }
}

/** Problems of a kind with one earlier version. */
const problemsWith = (each: unknown, name = '2026-01-01') =>
  problemsOf({ version: '2026-10-01', versions: { [name]: each } as NonNullable<EventKind['versions']> });

test('correct versions have no problems', () => {
  assert.deepEqual(problemsOf({ version: '2026-10-01' }), []);
  assert.deepEqual(problemsWith(earlier), []);
  assert.deepEqual(problemsWith({ ...earlier, deprecation: '2026-10-01', sunset: '2026-10-01' }), []);
});

test('names, dates and functions are checked', () => {
  const place = 'eventKinds.it';
  assert.deepEqual(problemsOf({ versions: { '2026-01-01': earlier } }), [
    `${place}.version: is required with versions: it names the newest one, such as 2026-10-01`,
  ]);
  for (const version of ['2026-13-01', '2026-02-30', 'v2', ''])
    assert.deepEqual(problemsOf({ version }), [`${place}.version: must be a date, such as 2026-10-01`]);
  for (const name of ['2026-02-30', 'v1', '__proto__x'])
    assert.match(problemsWith(earlier, name)[0] ?? '', /must be a date/);
  for (const name of ['2026-10-01', '2027-01-01'])
    assert.match(
      problemsWith(earlier, name)[0] ?? '',
      /must be earlier than the newest version, 2026-10-01$/,
    );
  for (const each of [null, {}, { schema, from: 'text' }, 7])
    assert.match(problemsWith(each)[0] ?? '', /versions\.2026-01-01\.from: must be a function/);
  assert.match(problemsWith({ ...earlier, deprecation: 'soon' })[0] ?? '', /\.deprecation: must be a date/);
  assert.match(problemsWith({ ...earlier, sunset: '2027-01-01' })[0] ?? '', /\.sunset: must not be without/);
  const reversed = { ...earlier, deprecation: '2027-01-01', sunset: '2026-12-31' };
  assert.match(problemsWith(reversed)[0] ?? '', /\.sunset: must not be without a deprecation, nor before it/);
});

test('the example is converted, also by a function that throws, loops or returns something else', () => {
  const failing: [from: () => unknown, words: RegExp][] = [
    [() => ({ a: 1 }), /\.from: makes of the example a body that does not match the schema: .*'b'/],
    [() => undefined, /\.from: makes of the example a body that does not match the schema/],
    [async () => ({ b: 1 }), /\.from: cannot convert the example: from returned a promise/],
    [
      () => {
        throw new Error('oh');
      },
      /\.from: cannot convert the example: oh$/,
    ],
    [
      () => {
        for (;;);
      },
      /\.from: cannot convert the example: Script execution timed out after 1000ms$/,
    ],
  ];
  for (const [from, words] of failing) assert.match(problemsWith({ ...earlier, from })[0] ?? '', words);
  const wrong = { ...earlier, schema: { type: 'nonsense' } };
  assert.match(problemsWith(wrong)[0] ?? '', /\.schema: is not a valid schema/);
});

test('the version for a date is the newest that is not later, or the oldest', () => {
  const names = ['2026-01-01', '2026-06-01', '2026-10-01'];
  const expected: [pinned: string | null, version: string][] = [
    [null, '2026-01-01'],
    ['2025-12-31', '2026-01-01'],
    ['2026-01-01', '2026-01-01'],
    ['2026-05-31', '2026-01-01'],
    ['2026-06-01', '2026-06-01'],
    ['2099-01-01', '2026-10-01'],
  ];
  for (const [pinned, version] of expected) assert.equal(versionFor(names, pinned), version);
});
