/**
 * docs/conformance.md says which test holds each line: here it is held to that.
 */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

const root = new URL('../', import.meta.url);
const text = readFileSync(new URL('docs/conformance.md', root), 'utf8');
const rows = [...text.matchAll(/^\| (\d+) \| (.+?) \| (.+?) \| (.*?) ?\|$/gm)].map(
  ([, line, , tests, difference]) => ({
    line: Number(line),
    files: [...(tests ?? '').matchAll(/`([^`]+)`/g)].map(([, file]) => file ?? ''),
    difference: difference ?? '',
  }),
);

test('every line from 1 to 98 has its row, in order', () => {
  assert.deepEqual(
    rows.map((row) => row.line),
    Array.from({ length: 98 }, (_, index) => index + 1),
  );
});

test('every row names files that have a test of its line, or says that it is not in', () => {
  for (const { line, files, difference } of rows) {
    if (files.length === 0) assert.match(difference, /\*\*Not in\.\*\*/, `line ${line}`);
    for (const file of files) {
      const source = readFileSync(new URL(`test/${file}`, root), 'utf8');
      assert.ok(source.includes(`test('oauth ${line}:`), `line ${line} in ${file}`);
    }
  }
});
