/**
 * docs/conformance.md and docs/conformance-webhooks.md name the tests for each row. These tests check the names.
 * After a run of all files, the runner checks that the named tests ran and passed (test/support/runner/run.ts).
 */

import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  checklists,
  hasAssertion,
  linesOf,
  missingFrom,
  readRows,
  readTests,
  testsIn,
} from './support/runner/checklist.ts';

const tests = readTests();

for (const checklist of checklists) {
  const { prefix, document, lines } = checklist;
  const rows = readRows(checklist);
  const held = tests.filter(({ name }) => linesOf(name, checklist).length > 0);

  test(`${document} has one row for each line of its checklist, in order`, () => {
    assert.deepEqual(
      rows.map(({ line }) => line),
      Array.from({ length: lines }, (_, index) => index + 1),
    );
  });

  test(`every row of ${document} names files with tests of its line, or says why there are none`, () => {
    for (const { line, files, difference } of rows) {
      if (files.length === 0)
        assert.match(difference, /\S/, `${prefix} ${line} has neither a test nor a reason`);
      for (const file of files) {
        const here = held.filter(
          (each) => each.file === file && linesOf(each.name, checklist).includes(line),
        );
        assert.ok(here.length > 0, `${file} has no test of ${prefix} ${line}`);
      }
    }
  });

  test(`every test of a line is in a file that the row in ${document} names`, () => {
    for (const { file, name } of held) {
      for (const line of linesOf(name, checklist)) {
        const row = rows.find((each) => each.line === line);
        assert.ok(row?.files.includes(file), `${prefix} ${line} does not name ${file}`);
      }
    }
  });

  test(`every test of a line of ${document} has its own name and an assertion, and cannot be skipped`, () => {
    const names = new Set<string>();
    for (const each of held) {
      const what = `${each.file}: ${each.name}`;
      assert.ok(!names.has(each.name), `${what} is there twice`);
      names.add(each.name);
      assert.doesNotMatch(
        each.text,
        /^ *test\.(skip|todo|only)|\b(skip|todo|only):|\bt\.(skip|todo)\(/,
        what,
      );
      assert.ok(hasAssertion(each), `${what} asserts nothing`);
    }
  });
}

test('a checklist test that is skipped, empty or asserts nothing is found out', () => {
  const source = [
    "test('oauth 1: asserts', () => {",
    '  assert.ok(true);',
    '});',
    '',
    "test.skip('oauth 2: skipped', { skip: true }, () => {",
    '  assert.ok(true);',
    '});',
    '',
    "test('oauth 3, 4: empty', async () => {",
    '  await fetch(url);',
    '});',
    '',
  ].join('\n');
  const found = testsIn('conformance.test.ts', source);
  assert.deepEqual(
    found.map((each) => [linesOf(each.name, checklists[0]), /skip/.test(each.text), hasAssertion(each)]),
    [
      [[1], false, true],
      [[2], true, true],
      [[3, 4], false, false],
    ],
  );
});

test('a run in which a test of a line did not run, or was skipped, is found out', () => {
  const file = 'oauth/refresh.test.ts';
  const lines = readRows(checklists[0]).filter(({ files }) => files.includes(file));
  assert.ok(lines.length > 1);
  const all = lines.map(({ line }) => ({ file, name: `oauth ${line}: x`, hasPassed: true, durationMs: 0 }));
  assert.deepEqual(missingFrom(all, [file]), []);
  assert.equal(missingFrom(all.slice(1), [file]).length, 1);
  const skipped = all.map((ran, index) => ({ ...ran, hasPassed: index > 0 }));
  assert.equal(missingFrom(skipped, [file]).length, 2);
});
