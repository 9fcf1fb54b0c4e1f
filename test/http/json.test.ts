/** What looking for bad values of a body may cost. */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseJson } from '../../src/http/json.ts';
import { Problem } from '../../src/http/problem.ts';
import { timesAsMuch } from '../support/processor_time.ts';

/** @returns the errors of a body */
function errorsOf(text: string): unknown {
  try {
    parseJson(Buffer.from(text));
  } catch (error) {
    assert.ok(error instanceof Problem);
    return error.errors;
  }
  return undefined;
}

test('attack: a bad value at the end of a megabyte costs little more than parsing it', async () => {
  const good = `[${'0,'.repeat(500_000)}1]`;
  const bad = `[${'0,'.repeat(500_000)}1e999]`;
  const times = await timesAsMuch(
    () => errorsOf(bad),
    () => errorsOf(good),
  );
  assert.ok(times < 4, `${times} times as much`);
  assert.deepEqual(errorsOf(bad), [{ pointer: '/500000', message: 'is a number out of range' }]);
});

test('each bad value and name has its place', () => {
  const text = '{"a":[1e999,{"b~/":"\\u0000"}],"\\u0000":{"x":1e999},"c":"\\ud800"}';
  const message = 'contains a NUL character or a lone surrogate';
  assert.deepEqual(errorsOf(text), [
    { pointer: '/a/0', message: 'is a number out of range' },
    { pointer: '/a/1/b~0~1', message },
    { pointer: '', message: 'has a member whose name contains a NUL character or a lone surrogate' },
    { pointer: '/c', message },
  ]);
});

test('attack: errors do not repeat the long names around them', () => {
  const name = '~'.repeat(1_600);
  const body = Buffer.from(JSON.stringify({ [name]: Array(25).fill('\0') }));
  assert.throws(
    () => parseJson(body),
    (error) => error instanceof Problem && error.errors?.length === 1,
  );
});
